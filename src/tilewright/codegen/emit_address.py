"""Buffer indices to addresses, and what is known of them at compile time: strides, bounds, readable margins."""

from collections.abc import Callable
from dataclasses import replace

from llvmlite import ir

from tilewright.codegen.address import ActiveLanes, Address, offset_pointer
from tilewright.codegen.emit_index import IndexEmitter, IndexParts
from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.strided_loads import NO_MARGIN, ReadMargin, constant_stride
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Buffer, Expr, MemoryScope
from tilewright.loops.private_memory import PRIVATE_PADDING
from tilewright.lower.lane_access import LaneAccesses


class AddressEmitter:
    """Emits addresses at a builder's position.

    Args:
        builder: where the instructions go.
        scope: variables and cached values.
        indices: emits index arithmetic at the same position.
        accesses: what is known of accesses before they are emitted.
        pointer: returns the address of a buffer.

    Attributes:
        unmasked_buffers: the private buffers of which inactive lanes are accessed, too, by name.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        scope: EmitScope,
        indices: IndexEmitter,
        accesses: LaneAccesses,
        pointer: Callable[[Buffer], ir.Value],
    ) -> None:
        self.builder, self.scope, self.indices, self.accesses, self.pointer = builder, scope, indices, accesses, pointer
        self.unmasked_buffers: dict[str, Buffer] = {}

    def address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Address:
        """The address of an element, with an offset per lane where the indices vary by lane.

        It is emitted once per region for all unrolled iterations in which it is the same.
        """
        scope = self.scope
        position = self.accesses.linear_index(buffer, indices, scope.bounds)
        dependencies = [scope.dependencies(e) for e in (position, *indices)]
        if any(d.reads_memory for d in dependencies):
            return self._emit_address(buffer, indices, position)
        constants = scope.constants
        unrolled = frozenset([(v, constants[v]) for d in dependencies for v in d.variables if v in constants])
        key = (buffer.name, indices, scope.lane, scope.lanes, unrolled)
        address = scope.lookup_address(key)
        if address is None:
            address = self._emit_address(buffer, indices, position)
            scope.cache_address(key, address)
        return address

    def _emit_address(self, buffer: Buffer, indices: tuple[Expr, ...], position: Expr) -> Address:
        first, *others = [self._emit_parts(buffer, parts) for parts in self.indices.split_by_subvector(position)]
        if others:
            return replace(first, offsets=None, subvectors=(first, *others))
        if first.offsets is None:
            return first
        margin = self._read_margin(buffer, indices, position) if constant_stride(first.offsets) else NO_MARGIN
        return replace(first, in_bounds=self.accesses.is_in_bounds(buffer, position, self.scope.bounds), margin=margin)

    def _emit_parts(self, buffer: Buffer, parts: IndexParts) -> Address:
        base = self.pointer(buffer)
        if parts.uniform is not None:
            base = self._offset_pointer(buffer.dtype, base, parts.uniform)
        if parts.offset:
            base = self._offset_pointer(buffer.dtype, base, parts.offset)
        if isinstance(parts.lanes, ir.Value):
            return Address(base, vector=parts.lanes)
        return Address(base, offsets=parts.lanes)

    def _offset_pointer(self, dtype: DType, base: ir.Value, offset: ir.Value | int) -> ir.Value:
        """`offset_pointer`, once for all accesses of a region with the same values."""
        key = ("pointer", base, offset, dtype)
        pointer = self.scope.lookup(key)
        if pointer is None:
            pointer = offset_pointer(self.builder, dtype, base, offset)
            self.scope.cache(key, pointer, is_shareable=True)
        return pointer

    def _read_margin(self, buffer: Buffer, indices: tuple[Expr, ...], position: Expr) -> ReadMargin:
        """Elements that may be read around an access, in all iterations of the loops that are not unrolled."""
        size = constant_value(polynomial(buffer.size))
        low, high = self.indices.interval(position)
        *outer, innermost = indices
        along_lanes = innermost if not any(self.scope.is_lane_varying(i) for i in outer) else position
        padding = PRIVATE_PADDING if buffer.scope is not MemoryScope.MEMORY else 0
        return ReadMargin(
            self.indices.constant_part(along_lanes),
            max(0, low) if low is not None else 0,
            max(0, size + padding - 1 - high) if size is not None and high is not None else 0,
        )

    def accessible_lanes(self, buffer: Buffer, address: Address, active: ActiveLanes) -> ActiveLanes:
        """The lanes that may be accessed: all of them, without a mask, in a private buffer with its padding.

        LLVM promotes only unmasked accesses to registers. A buffer that threads share keeps its masks, because writing
        an inactive element back would race. A slice of the workspace, which is too large for registers, keeps them
        because earlier kernels may have left denormal numbers in its inactive lanes, on which arithmetic is slow.
        """
        if active.mask is None or not self.is_within_padding(buffer, address, active):
            return active
        pointer = self.pointer(buffer)
        if not (isinstance(pointer, ir.Instruction) and pointer.opname == "alloca"):
            return active
        self.unmasked_buffers[buffer.name] = buffer
        return replace(active, mask=None)

    def is_within_padding(self, buffer: Buffer, address: Address, active: ActiveLanes) -> bool:
        """Whether all lanes of a vector access, active or not, are in a private buffer or its padding."""
        if buffer.scope is MemoryScope.MEMORY or address.offsets is None:
            return False
        if not (active.nonempty or address.in_bounds):
            return False
        return min(address.offsets) >= 0 and max(address.offsets) < PRIVATE_PADDING
