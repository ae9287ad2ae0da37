"""What is known of vector accesses before code is emitted: strides of lanes, bounds, masks, and columns of tiles."""

from collections.abc import Callable, Iterator

from tilewright.expr.algebra.bounds import Bounds, interval
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.nodes import Buffer, Expr, Load, MemoryScope, Select, Var, const
from tilewright.expr.traversal import loads
from tilewright.loops.private_memory import PRIVATE_PADDING
from tilewright.lower.dependencies import DependencyAnalysis
from tilewright.lower.nested_blocks import NestedBlock
from tilewright.lower.resolve_block import ResolvedBlock
from tilewright.machine import Target
from tilewright.tile.transposed_columns import MIN_BYTES, MIN_COLUMNS, MIN_STRIDE


class LaneAccesses:
    """Strides, bounds and masks of the accesses of one function, cached.

    Args:
        dependencies: of the function's expressions.
        target: what the code runs on.
    """

    def __init__(self, dependencies: DependencyAnalysis, target: Target) -> None:
        self.dependencies, self.target = dependencies, target
        self._linear_indices: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        self._in_bounds: dict[tuple[str, Expr], bool] = {}

    def linear_index(self, buffer: Buffer, indices: tuple[Expr, ...], bounds: Bounds) -> Expr:
        """The row-major index of an element, simplified with the enclosing bounds."""
        linear = self._linear_indices.get((buffer.name, indices))
        if linear is None:
            total: Expr | None = None
            for index, extent in zip(indices, buffer.shape, strict=True):
                total = index if total is None else total * extent + index
            linear = const(0) if total is None else simplify(total, bounds)
            self._linear_indices[buffer.name, indices] = linear
        return linear

    def stride(self, buffer: Buffer, indices: tuple[Expr, ...], var: Var, bounds: Bounds) -> int | None:
        """Elements between the accesses of neighbouring lanes, or iterations; None where that is not one constant."""
        position, dependencies = self.linear_index(buffer, indices, bounds), self.dependencies
        if var not in dependencies(position).variables:
            return 0
        terms = [t for t in polynomial(position).items() if any(var in dependencies(a).variables for a in t[0])]
        if not terms:
            return 0
        return terms[0][1] if len(terms) == 1 and terms[0][0] == (var,) else None

    def is_in_bounds(self, buffer: Buffer, position: Expr, bounds: Bounds) -> bool:
        """Whether a linear index provably lies in a private buffer or its padding, in all lanes and iterations.

        Loop variables are unique in a function (`verify/verifier.py`), so a position has one range, which is cached.
        """
        in_bounds = self._in_bounds.get((buffer.name, position))
        if in_bounds is None:
            size = None if buffer.scope is MemoryScope.MEMORY else constant_value(polynomial(buffer.size))
            low, high = interval(position, bounds.without_facts())
            if size is None or low is None or high is None:
                in_bounds = False
            else:
                in_bounds = low >= 0 and high - size < PRIVATE_PADDING
            self._in_bounds[buffer.name, position] = in_bounds
        return in_bounds

    def has_native_masks(
        self, r: ResolvedBlock, lane: Var | None, bounds: Bounds, is_transposed: Callable[[Load], bool]
    ) -> bool:
        """Whether the target masks all accesses of a block natively: element types that it masks, and contiguous
        elements; in private buffers also other patterns, where all lanes are in bounds and need no mask.

        Args:
            r: the block.
            lane: the variable of the vectorized loop around it, if any.
            bounds: that hold there.
            is_transposed: whether a load is a column of a tile that is transposed in registers, under any mask.
        """
        target = self.target
        accesses = [(r.target.buffer, r.target.indices)]
        accesses += [(n.buffer, n.indices) for n in loads(r.target.value) if not is_transposed(n)]
        all_widths = target.has("avx512bw") and target.mask_registers
        if not all_widths and (not target.has("avx2") or any(b.dtype.bits < 32 for b, _ in accesses)):
            return False
        return lane is None or all(
            self.stride(b, i, lane, bounds) in (0, 1) or self.is_in_bounds(b, self.linear_index(b, i, bounds), bounds)
            for b, i in accesses
        )

    def has_cheap_masks(self, nested: NestedBlock) -> bool:
        """Whether a nested block costs little more with a mask than without."""
        lane = next((v for v in nested.expanded if v in nested.lanes), None)
        return self.target.mask_registers and self.has_native_masks(nested.block, lane, nested.bounds, lambda _: False)

    def has_slow_masked_store(self, nested: NestedBlock) -> bool:
        """Whether a block stores under masks of AVX2, which are slower than a test whether they are needed: Zen 3 takes
        18 cycles for one. Buffers that fit registers are stored whole; targets without masked stores test anyway."""
        masks_in_vectors = self.target.has("avx2") and not self.target.mask_registers
        return masks_in_vectors and not self.fits_registers(nested.block.target.buffer)

    def fits_registers(self, buffer: Buffer) -> bool:
        """Whether a buffer fits the vector registers."""
        size = constant_value(polynomial(buffer.size))
        register_bits = self.target.vector_registers * self.target.vector_bits
        return buffer.scope is MemoryScope.REGISTER or (size is not None and size * buffer.dtype.bits <= register_bits)

    def column_variables(self, nested: NestedBlock) -> frozenset[Var]:
        """The variables of the unrolled loops around a block whose iterations read columns of tiles that are transposed
        in registers."""
        lane = column_lane(nested)
        return frozenset(
            var
            for var, size in nested.expanded.items()
            if lane is not None and var is not lane and size >= MIN_COLUMNS
            for load in self.loads_of_all_iterations(nested, var)
            if self.is_column(load, var, lane, nested.bounds)
        )

    def loads_of_all_iterations(self, nested: NestedBlock, var: Var) -> Iterator[Load]:
        """The loads of a block that happen in all iterations of a loop around it or in none: not those that a select
        leaves out by a condition that differs between iterations."""

        def visit(e: Expr) -> Iterator[Load]:
            if isinstance(e, Load):
                yield e
            elif not isinstance(e, Select):
                for child in e.children():
                    yield from visit(child)
            elif var not in self.dependencies(e.cond).variables:
                yield from visit(e.a)
                yield from visit(e.b)

        return visit(nested.block.target.value)

    def is_column(self, load: Load, var: Var, lane: Var, bounds: Bounds) -> bool:
        """Whether the lanes of a load read elements that are far apart, and iterations neighbouring ones."""
        stride = self.stride(load.buffer, load.indices, lane, bounds)
        return (
            load.buffer.dtype.bytes >= MIN_BYTES
            and stride is not None
            and abs(stride) >= MIN_STRIDE
            and self.stride(load.buffer, load.indices, var, bounds) == 1
        )


def column_lane(nested: NestedBlock) -> Var | None:
    """The variable of the vectorized loop around a block that has enough lanes for columns."""
    lane = next((v for v in nested.expanded if v in nested.lanes), None)
    return lane if lane is not None and nested.expanded[lane] >= MIN_COLUMNS else None
