"""Loads and stores: the instructions that access the elements at an address, for one lane or many.

Offsets known at compile time become plain vector loads, loads with shuffles, or scalar loads; run-time offsets become
gathers and scatters. Inactive elements are masked off or, for a whole vector at once, read from a block of zeros.

No vector register is loaded or stored under a mask without an active lane: where the page after an array is not
present, x86 processors take hundreds of cycles for such an access, every time, as no fault makes the page present. So a
mask is a constant with an active lane, or known to have one (metadata `some_lane`), or tested first.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from llvmlite import ir

from tilewright.codegen.address import ALL_ACTIVE, ActiveLanes, Address, offset_pointer
from tilewright.codegen.arith import Arith
from tilewright.codegen.llvm_types import (
    I1,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    as_opaque_pointer,
    call_intrinsic,
    constant,
    constant_mask,
    is_constant_splat,
    lane_count,
    logical_and,
    memory_type,
    shuffle,
    splat,
    type_suffix,
    undefined,
)
from tilewright.codegen.llvm_workarounds import opaque_gather_mask, opaque_truncation
from tilewright.codegen.strided_loads import NO_MARGIN, ReadMargin, RegisterStream, constant_stride, load_start
from tilewright.codegen.subvectors import concat_vectors, extract_subvector, subvector_length
from tilewright.expr.dtype import DType

NONEMPTY_MASK = "some_lane"
"""Metadata of masked accesses whose mask is known to have an active lane."""

ZERO_BLOCK_BYTES = 1024
"""Size of the block of zeros that guarded loads read where their guard fails."""


def zero_block(module: ir.Module) -> ir.GlobalVariable:
    """The module's block of zeros."""
    block = module.globals.get("tilewright_zeros")
    if block is None:
        kind = ir.ArrayType(I8, ZERO_BLOCK_BYTES)
        block = ir.GlobalVariable(module, kind, "tilewright_zeros")
        block.linkage, block.global_constant, block.align = "internal", True, 64
        block.initializer = ir.Constant(kind, None)
        as_opaque_pointer(block)
    return block


class MemoryEmitter:
    """Emits loads and stores at the position of an `Arith`'s builder."""

    def __init__(self, arith: Arith) -> None:
        self.arith, self.builder = arith, arith.builder

    def _offset(self, dtype: DType, base: ir.Value, offset: int) -> ir.Value:
        return offset_pointer(self.builder, dtype, base, offset)

    def any_lane(self, mask: ir.Value) -> ir.Value:
        """Whether any lane of a mask is set."""
        bits = self.builder.bitcast(mask, ir.IntType(lane_count(mask)))
        return self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    def uniform_guard(self, active: ActiveLanes) -> ir.Value | None:
        """The condition for an access that all lanes share."""
        if active.mask is None or active.nonempty:
            return active.guard
        present = self.any_lane(active.mask)
        return present if active.guard is None else self.builder.and_(active.guard, present)

    def _pointer_or_zeros(self, base: ir.Value, guard: ir.Value | None) -> ir.Value:
        """`base`, or the block of zeros where the guard fails."""
        if guard is None:
            return base
        return self.builder.select(guard, base, zero_block(self.builder.module))

    def _full_mask(self, active: ActiveLanes, lanes: int) -> ir.Value:
        mask, guard = active.mask, active.guard
        if guard is not None:
            lanes_guard = splat(self.builder, guard, lanes)
            mask = lanes_guard if mask is None else logical_and(self.builder, mask, lanes_guard)
        return constant(ir.VectorType(I1, lanes), 1) if mask is None else mask

    # loads

    def load(self, dtype: DType, address: Address, active: ActiveLanes = ALL_ACTIVE) -> ir.Value:
        """The register value of the elements; inactive lanes are 0 or undefined."""
        parts = self._subvectors(address, window=2)
        loaded = [
            self._load_subvector(dtype, part, self._active_in_subvector(active, i, len(parts)))
            for i, part in enumerate(parts)
        ]
        return self.arith.from_memory(dtype, concat_vectors(self.builder, loaded))

    def _load_subvector(self, dtype: DType, address: Address, active: ActiveLanes) -> ir.Value:
        if address.vector is not None:
            return self._gather(dtype, address, self._full_mask(active, lane_count(address.vector)))
        if address.offsets is None:
            return self._plain_load(dtype, self._pointer_or_zeros(address.base, self.uniform_guard(active)))
        return self._load_constant_offsets(dtype, address.base, address.offsets, active, address.margin)

    def _subvectors(self, address: Address, window: int) -> tuple[Address, ...]:
        """The accesses of an address: one per subvector where these are farther apart than `window` times the lanes.
        Nearer ones are covered by two loads and shuffles; stores have no such window."""
        offsets = address.offsets
        if offsets is None or max(offsets) - min(offsets) < window * len(offsets):
            return address.subvectors or (address,)
        length = subvector_length([((), offset) for offset in offsets])
        if length == len(offsets):
            return (address,)
        return tuple(Address(address.base, offsets[i : i + length]) for i in range(0, len(offsets), length))

    def _active_in_subvector(self, active: ActiveLanes, i: int, subvectors: int) -> ActiveLanes:
        """The active lanes of one subvector."""
        if subvectors == 1 or active.mask is None:
            return active
        length = lane_count(active.mask) // subvectors
        return replace(active, mask=extract_subvector(self.builder, active.mask, i * length, length), nonempty=False)

    def _plain_load(self, dtype: DType, pointer: ir.Value, lanes: int = 0) -> ir.Value:
        kind = memory_type(dtype)
        return self.builder.load(pointer, align=dtype.bytes, typ=ir.VectorType(kind, lanes) if lanes else kind)

    def _load_constant_offsets(
        self, dtype: DType, base: ir.Value, offsets: Sequence[int], active: ActiveLanes, margin: ReadMargin = NO_MARGIN
    ) -> ir.Value:
        lanes, low = len(offsets), min(offsets)
        base = self._offset(dtype, base, low)
        offsets = [o - low for o in offsets]
        span = max(offsets) + 1
        if span == 1:
            element = self._plain_load(dtype, self._pointer_or_zeros(base, self.uniform_guard(active)))
            return splat(self.builder, element, lanes)
        if span * dtype.bytes > ZERO_BLOCK_BYTES and active.guard is not None:
            active = replace(active, guard=None, mask=self._full_mask(active, lanes))
        contiguous = offsets == list(range(lanes))
        if active.mask is not None:
            if contiguous and isinstance(active.mask, ir.Constant) and not isinstance(active.guard, ir.Constant):
                # selecting a pointer is cheaper than combining guard and mask
                return self._masked_load(
                    dtype, self._pointer_or_zeros(base, active.guard), active.mask, active.nonempty
                )
            if contiguous:
                nonempty = active.nonempty and active.guard is None
                return self._masked_load(dtype, base, self._full_mask(active, lanes), nonempty)
            if lanes < span <= 2 * lanes and len(set(offsets)) == lanes:
                return self._masked_window_load(dtype, base, offsets, self._full_mask(active, lanes))
            vector = constant(ir.VectorType(I64, lanes), offsets)
            return self._gather(dtype, Address(base, vector=vector), self._full_mask(active, lanes))
        stride = constant_stride(offsets)
        if stride and not lanes & (lanes - 1):
            return self._strided_load(
                dtype, base, stride, lanes, margin if active.guard is None else NO_MARGIN, active.guard
            )
        base = self._pointer_or_zeros(base, active.guard)
        if contiguous:
            return self._plain_load(dtype, base, lanes)
        if span <= 2 * lanes:
            return self._window_load(dtype, base, offsets, span)
        return self._load_by_lane(dtype, base, offsets)

    def _strided_load(
        self, dtype: DType, base: ir.Value, stride: int, lanes: int, margin: ReadMargin, guard: ir.Value | None
    ) -> ir.Value:
        """Every `stride`-th element, shuffled out of vectors that other accesses to the same row load as well."""
        register_lanes = min(lanes, self.arith.target.lanes(8 * dtype.bytes))
        before = load_start(stride, lanes, margin)
        last = before + stride * (lanes - 1)
        base = self._pointer_or_zeros(self._offset(dtype, base, -before), guard)
        # where nothing after the last lane may be read, the last vector ends with it
        starts = [min(start, last + 1 + margin.after - register_lanes) for start in range(0, last + 1, register_lanes)]
        loaded = RegisterStream(
            tuple((s, self._plain_load(dtype, self._offset(dtype, base, s), register_lanes)) for s in starts),
            register_lanes,
        )
        skipped = before // stride
        phase = loaded.phase(self.builder, stride, before % stride, skipped + lanes)
        registers = [v for _, v in phase.every_nth(self.builder, 1, skipped, lanes).registers]
        if skipped and stride == 2:
            # LLVM would emit two shuffles of three loaded vectors where one shuffle of two suffices
            start = before + stride * (lanes - register_lanes)
            registers[-1] = self._window_load(
                dtype, self._offset(dtype, base, start), range(0, 2 * register_lanes, 2), 2 * register_lanes - 1
            )
        return concat_vectors(self.builder, registers)

    def _window_load(self, dtype: DType, base: ir.Value, offsets: Sequence[int], span: int) -> ir.Value:
        """All elements from the first to the last, with at most two loads, then shuffled; nothing outside is read."""
        lanes = len(offsets)
        if span <= lanes:
            low = self._plain_load(dtype, base, span)
            return shuffle(self.builder, low, low, offsets)
        low = self._plain_load(dtype, base, lanes)
        start = span - lanes
        high = self._plain_load(dtype, self._offset(dtype, base, start), lanes)
        return shuffle(self.builder, low, high, [o if o < lanes else lanes + o - start for o in offsets])

    def _masked_window_load(self, dtype: DType, base: ir.Value, offsets: Sequence[int], mask: ir.Value) -> ir.Value:
        """Two masked loads, with the mask spread to the lanes' elements, then shuffled. A gather takes several times as
        long."""
        lanes, start = len(offsets), max(offsets) + 1 - len(offsets)
        no_lane = constant(mask.type, 0)
        lane_at = {o: lane for lane, o in enumerate(offsets)}
        parts: list[ir.Value] = []
        for first in (0, start):
            lane_indices = [lane_at.get(first + k, lanes) for k in range(lanes)]
            window_mask = shuffle(self.builder, mask, no_lane, lane_indices)
            parts.append(self._masked_load(dtype, self._offset(dtype, base, first), window_mask))
        low, high = parts
        return shuffle(self.builder, low, high, [o if o < lanes else lanes + o - start for o in offsets])

    def _load_by_lane(self, dtype: DType, base: ir.Value, offsets: Sequence[int]) -> ir.Value:
        result: ir.Value = undefined(ir.VectorType(memory_type(dtype), len(offsets)))
        for i, offset in enumerate(offsets):
            value = self._plain_load(dtype, self._offset(dtype, base, offset))
            result = self.builder.insert_element(result, value, I32(i))
        return result

    def _register_parts(self, lanes: int, bits: int) -> list[tuple[int, int]]:
        """Start and length of the vector registers of a masked access; one part for a target without masked accesses,
        for which LLVM emits a branch per lane."""
        register_lanes = min(lanes, self.arith.target.lanes(bits)) if self._has_masked_accesses else lanes
        return [(start, register_lanes) for start in range(0, lanes, register_lanes)]

    def _active_width(self, dtype: DType, mask: ir.Value) -> int:
        """Lanes of the narrowest register that holds all active lanes of a mask, where these are known.

        An access to a register counts whole, even where lanes are masked: it may touch two cache lines where its active
        lanes touch one, and a store to a line that other cores have read waits for each.
        """
        lanes, active = lane_count(mask), constant_mask(mask)
        if active is None or not self._has_masked_accesses:
            return lanes
        last = max((i for i, is_active in enumerate(active) if is_active), default=0)
        return min(lanes, self.arith.target.lanes(8 * dtype.bytes, last + 1))

    @property
    def _has_masked_accesses(self) -> bool:
        return self.arith.target.has("avx")

    def _masked_load(self, dtype: DType, base: ir.Value, mask: ir.Value, nonempty: bool = False) -> ir.Value:
        """Contiguous elements under a mask; `nonempty` where the mask is known to have an active lane."""
        registers = self._register_parts(lane_count(mask), 8 * dtype.bytes)
        nonempty = (nonempty and len(registers) == 1) or not self._has_masked_accesses
        parts: list[ir.Value] = []
        for start, lanes in registers:
            kind = ir.VectorType(memory_type(dtype), lanes)
            part_mask = extract_subvector(self.builder, mask, start, lanes)
            pointer, zeros = self._offset(dtype, base, start), constant(kind, 0)
            if is_constant_splat(part_mask, 0):
                parts.append(zeros)
                continue
            if (narrow := self._active_width(dtype, part_mask)) < lanes:
                low = self._masked_load(dtype, pointer, extract_subvector(self.builder, part_mask, 0, narrow))
                zeros = constant(low.type, 0)
                parts.append(shuffle(self.builder, low, zeros, [min(i, narrow) for i in range(lanes)]))
                continue
            if is_constant_splat(part_mask, 1):
                parts.append(self._plain_load(dtype, pointer, lanes))
                continue
            if not nonempty and not isinstance(part_mask, ir.Constant):
                pointer = self._pointer_or_zeros(pointer, self.any_lane(part_mask))
            arguments = [pointer, I32(dtype.bytes), part_mask, zeros]
            loaded = call_intrinsic(self.builder, f"masked.load.{type_suffix(kind)}.p0", kind, arguments)
            parts.append(self._mark_nonempty(loaded, nonempty, part_mask))
        return concat_vectors(self.builder, parts)

    def _masked_store(self, dtype: DType, base: ir.Value, stored: ir.Value, mask: ir.Value, nonempty: bool) -> None:
        """Stores contiguous elements under a mask; `nonempty` where the mask is known to have an active lane."""
        registers = self._register_parts(lane_count(mask), 8 * dtype.bytes)
        nonempty = (nonempty and len(registers) == 1) or not self._has_masked_accesses
        for start, lanes in registers:
            part_mask = extract_subvector(self.builder, mask, start, lanes)
            if is_constant_splat(part_mask, 0):
                continue
            lanes = self._active_width(dtype, part_mask)
            part_mask = extract_subvector(self.builder, part_mask, 0, lanes)
            value = extract_subvector(self.builder, stored, start, lanes)
            pointer = self._offset(dtype, base, start)
            if is_constant_splat(part_mask, 1):
                self.builder.store(value, pointer, align=dtype.bytes)
                continue
            value = opaque_truncation(self.builder, self.arith.target, value)
            present = None if nonempty or isinstance(part_mask, ir.Constant) else self.any_lane(part_mask)
            with nullcontext() if present is None else self.builder.if_then(present):
                arguments = [value, pointer, I32(dtype.bytes), part_mask]
                call = call_intrinsic(self.builder, f"masked.store.{type_suffix(value.type)}.p0", VOID, arguments)
                self._mark_nonempty(call, nonempty, part_mask)

    def _mark_nonempty(self, access: ir.Value, nonempty: bool, mask: ir.Value) -> ir.Value:
        """Marks an access whose non-constant mask is known to have an active lane."""
        if nonempty and self._has_masked_accesses and not isinstance(mask, ir.Constant):
            access.set_metadata(NONEMPTY_MASK, self.builder.module.add_metadata([]))
        return access

    def _lane_pointers(self, dtype: DType, address: Address, lanes: int) -> ir.Value:
        base = splat(self.builder, address.base, lanes)
        if address.vector is None:
            raise ValueError("an address without run-time offsets")
        return self.builder.gep(base, [address.vector], source_etype=memory_type(dtype))

    def _gather(self, dtype: DType, address: Address, mask: ir.Value) -> ir.Value:
        lanes = lane_count(mask)
        kind = ir.VectorType(memory_type(dtype), lanes)
        name = f"masked.gather.{type_suffix(kind)}.{type_suffix(ir.VectorType(PTR, lanes))}"
        mask = opaque_gather_mask(self.builder, self.arith.target, mask, 8 * dtype.bytes)
        pointers = self._lane_pointers(dtype, address, lanes)
        return call_intrinsic(self.builder, name, kind, [pointers, I32(dtype.bytes), mask, constant(kind, 0)])

    def prefetch(self, pointer: ir.Value) -> None:
        """Prefetches a cache line for reading into all cache levels; any address is valid."""
        read, locality, data_cache = I32(0), I32(3), I32(1)
        call_intrinsic(self.builder, "prefetch.p0", VOID, [pointer, read, locality, data_cache])

    # stores

    def store(self, dtype: DType, address: Address, value: ir.Value, active: ActiveLanes = ALL_ACTIVE) -> None:
        """Stores the value to every active lane, at distinct offsets. A guard must have been branched on."""
        stored = self.arith.to_memory(dtype, value)
        parts = self._subvectors(address, window=1)
        for i, part in enumerate(parts):
            length = lane_count(stored) // len(parts)
            part_value = (
                extract_subvector(self.builder, stored, i * length, length) if length and len(parts) > 1 else stored
            )
            self._store_subvector(dtype, part, part_value, self._active_in_subvector(active, i, len(parts)))

    def _store_subvector(self, dtype: DType, address: Address, stored: ir.Value, active: ActiveLanes) -> None:
        if address.vector is not None:
            lanes = lane_count(address.vector)
            self._scatter(dtype, address, splat(self.builder, stored, lanes), self._full_mask(active, lanes))
        elif address.offsets is None:
            self.builder.store(stored, address.base, align=dtype.bytes)
        else:
            self._store_constant_offsets(dtype, address, splat(self.builder, stored, len(address.offsets)), active)

    def _store_constant_offsets(self, dtype: DType, address: Address, stored: ir.Value, active: ActiveLanes) -> None:
        offsets = list(address.offsets or (0,))
        start, lanes = offsets[0], len(offsets)
        descending = list(range(start, start - lanes, -1))
        mask = active.mask
        if offsets in (descending, list(range(start, start + lanes))):
            base = self._offset(dtype, address.base, min(offsets))
            if lanes > 1 and offsets == descending:
                backwards = range(lanes - 1, -1, -1)
                stored = shuffle(self.builder, stored, stored, backwards)
                mask = None if mask is None else shuffle(self.builder, mask, mask, backwards)
            if mask is None:
                self.builder.store(stored, base, align=dtype.bytes)
            else:
                self._masked_store(dtype, base, stored, mask, active.nonempty and active.guard is None)
            return
        vector = constant(ir.VectorType(I64, lanes), offsets)
        self._scatter(dtype, Address(address.base, vector=vector), stored, self._full_mask(active, lanes))

    def _scatter(self, dtype: DType, address: Address, stored: ir.Value, mask: ir.Value) -> None:
        pointers = self._lane_pointers(dtype, address, lane_count(mask))
        name = f"masked.scatter.{type_suffix(stored.type)}.{type_suffix(pointers.type)}"
        call_intrinsic(self.builder, name, VOID, [stored, pointers, I32(dtype.bytes), mask])
