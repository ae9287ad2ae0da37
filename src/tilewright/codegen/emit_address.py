"""Buffer indices to addresses, and what is known of them at compile time: strides, bounds, readable margins."""

from collections.abc import Callable
from dataclasses import replace

from llvmlite import ir

from tilewright.codegen.address import ActiveLanes, Address, offset_pointer
from tilewright.codegen.emit_index import IndexEmitter, IndexParts, linearize
from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.strided_loads import NO_MARGIN, ReadMargin, constant_stride
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.nodes import Buffer, Expr, MemoryScope, Var
from tilewright.loops.private_memory import PRIVATE_PADDING


class AddressEmitter:
    """Emits addresses at a builder's position.

    Args:
        builder: where the instructions go.
        scope: variables and cached values.
        indices: emits index arithmetic at the same position.
        pointer: returns the address of a buffer.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        scope: EmitScope,
        indices: IndexEmitter,
        pointer: Callable[[Buffer], ir.Value],
    ) -> None:
        self.builder, self.scope, self.indices, self.pointer = builder, scope, indices, pointer
        self._linear_indices: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        self._in_bounds: dict[tuple[str, Expr], bool] = {}

    def address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Address:
        """The address of an element, with an offset per lane where the indices vary by lane."""
        position = self.linear_index(buffer, indices)
        first, *others = [self._emit_parts(buffer, parts) for parts in self.indices.split_by_subvector(position)]
        if others:
            return replace(first, offsets=None, subvectors=(first, *others))
        if first.offsets is None:
            return first
        margin = self._read_margin(buffer, indices, position) if constant_stride(first.offsets) else NO_MARGIN
        return replace(first, in_bounds=self._is_position_in_bounds(buffer, position), margin=margin)

    def _emit_parts(self, buffer: Buffer, parts: IndexParts) -> Address:
        base = self.pointer(buffer)
        if parts.uniform is not None:
            base = offset_pointer(self.builder, buffer.dtype, base, parts.uniform)
        base = offset_pointer(self.builder, buffer.dtype, base, parts.offset)
        if isinstance(parts.lanes, ir.Value):
            return Address(base, vector=parts.lanes)
        return Address(base, offsets=parts.lanes)

    def is_in_bounds(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether the access is provably to a private buffer or its padding, in all lanes."""
        return self._is_position_in_bounds(buffer, self.linear_index(buffer, indices))

    def _is_position_in_bounds(self, buffer: Buffer, position: Expr) -> bool:
        """Whether a linear index provably lies in a private buffer or its padding, in all iterations.

        Loop variables are unique in a function (`verify/verifier.py`), so a position has one range, which is cached.
        """
        in_bounds = self._in_bounds.get((buffer.name, position))
        if in_bounds is None:
            size = None if buffer.scope is MemoryScope.MEMORY else constant_value(polynomial(buffer.size))
            low, high = interval(position, self.scope.bounds.without_facts())
            if size is None or low is None or high is None:
                in_bounds = False
            else:
                in_bounds = low >= 0 and high - size < PRIVATE_PADDING
            self._in_bounds[buffer.name, position] = in_bounds
        return in_bounds

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

    def linear_index(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The row-major index of an element."""
        linear = self._linear_indices.get((buffer.name, indices))
        if linear is None:
            linear = self._linear_indices[buffer.name, indices] = linearize(buffer, indices, self.scope)
        return linear

    def lane_stride(self, buffer: Buffer, indices: tuple[Expr, ...], lane: Var) -> int | None:
        """Elements between the accesses of neighbouring lanes; None where that is not one constant."""
        position, dependencies = self.linear_index(buffer, indices), self.scope.dependencies
        if lane not in dependencies(position).variables:
            return 0
        lane_terms = [t for t in polynomial(position).items() if any(lane in dependencies(a).variables for a in t[0])]
        if not lane_terms:
            return 0
        return lane_terms[0][1] if len(lane_terms) == 1 and lane_terms[0][0] == (lane,) else None

    def accessible_lanes(self, buffer: Buffer, address: Address, active: ActiveLanes) -> ActiveLanes:
        """The lanes that may be accessed: all of them, without a mask, in a private buffer with its padding.

        LLVM promotes only unmasked accesses to registers. A buffer that threads share keeps its masks, because writing
        an inactive element back would race. A slice of the workspace, which is too large for registers, keeps them
        because earlier kernels may have left denormal numbers in its inactive lanes, on which arithmetic is slow.
        """
        if active.mask is None or not self.is_within_padding(buffer, address, active):
            return active
        pointer = self.pointer(buffer)
        is_private = isinstance(pointer, ir.Instruction) and pointer.opname == "alloca"
        return replace(active, mask=None) if is_private else active

    def is_within_padding(self, buffer: Buffer, address: Address, active: ActiveLanes) -> bool:
        """Whether all lanes of a vector access, active or not, are in a private buffer or its padding."""
        if buffer.scope is MemoryScope.MEMORY or address.offsets is None:
            return False
        if not (active.nonempty or address.in_bounds):
            return False
        return min(address.offsets) >= 0 and max(address.offsets) < PRIVATE_PADDING
