"""Loops of vectors: an axis in lanes, a reduction to one value along its contiguous operands."""

from dataclasses import dataclass

from tilewright.expr.nodes import Const, Expr, MemoryScope, Var, const
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, Func, IterKind, LoopKind
from tilewright.optimize.reduction_blocking import KBlockLimits
from tilewright.optimize.strides import is_literal, load_stride
from tilewright.schedule.tails import Tail
from tilewright.tile.problem import is_reorderable
from tilewright.tile.statements import extents_by_axis
from tilewright.tile.tree import Compute, Loop, Node, RFactor, TileTree, nest

K_BLOCK_LIMITS = KBlockLimits(max_unblocked=64, root_multiple=1, min_size=1, max_size=1 << 40, slack=4)
"""K-blocks of sums along a row; the additions wait for loads, so more blocks cost little."""

REDUCTION_VECTORS = 4
"""Vectors per step of a sum along a row: this many independent dependency chains hide the latency of an addition."""


def lane_loops(axis: str, extent: Expr, lanes: int, is_exact: bool = True) -> list[Loop]:
    """The loops over an axis in vectors: over tiles of `lanes` points, then the lanes.

    The lanes alone where the extent is a power of two of at most `lanes`; another extent below `lanes` has tiles of the
    next power of two, masked. Its registers are those of `Target.lanes` for that extent.

    Args:
        axis: its name.
        extent: its points.
        lanes: elements of the vectors.
        is_exact: whether the loops have exactly these points; otherwise a shorter vector has a loop around it.
    """
    inner = Loop(axis, 1, (), LoopKind.VECTORIZED)
    n = int(extent.value) if isinstance(extent, Const) else 0
    is_short = isinstance(extent, Const) and n <= lanes and n & (n - 1) == 0
    if not is_short:
        shortest = 1 << (n - 1).bit_length() if isinstance(extent, Const) else lanes
        return [Loop(axis, min(lanes, shortest), ()), inner]
    return [inner] if is_exact else [Loop(axis, n, ()), inner]


def with_outer_loops(tree: TileTree, func: Func) -> TileTree:
    """A tree with a loop of a single iteration around outermost loops that are vectorized or unrolled."""
    extents = extents_by_axis(func)

    def enclosed(node: Node) -> Node:
        if not isinstance(node, Loop) or node.kind not in (LoopKind.VECTORIZED, LoopKind.UNROLLED):
            return node
        points = extents[node.axis]
        # one tile has all points, also where there are none or one
        return Loop(node.axis, max(2, int(points.value)), (node,)) if isinstance(points, Const) else node

    return TileTree(tuple(map(enclosed, tree.body)), tree.staging)


@dataclass(frozen=True, slots=True)
class BlockedSum:
    """A reduction, in K-blocks where it is long.

    Attributes:
        node: its block.
        names: of the axes of its iteration variables.
        k_block: (position among the reduction axes, points) of the K-blocks; None without K-blocking.
    """

    node: Block
    names: tuple[str, ...]
    k_block: tuple[int, int] | None = None

    @property
    def partial(self) -> str:
        """The statement that computes the partial sums of K-blocks."""
        return f"{self.node.name}.partial"

    @property
    def axes(self) -> list[tuple[str, Var, Expr]]:
        """The reduction axes: name, iteration variable, and points, of the K-blocked one those of a K-block."""
        pairs = zip(self.names, self.node.iters, strict=True)
        axes = [(name, i.var, i.extent) for name, i in pairs if i.kind is IterKind.REDUCE]
        if self.k_block is not None:
            k, points = self.k_block
            axes[k] = (*axes[k][:2], const(points))
        return axes

    @property
    def staging(self) -> tuple[RFactor, ...]:
        """The statement of the partial sums."""
        if self.k_block is None:
            return ()
        return (RFactor(self.node.name, self.partial, self.axes[self.k_block[0]][0], self.k_block[1]),)

    def over_k_blocks(self, tail: Tail = Tail.GUARD) -> list[Loop]:
        """The loop over K-blocks; [] without K-blocking."""
        if self.k_block is None:
            return []
        return [Loop(self.axes[self.k_block[0]][0], self.k_block[1], (), tail=tail)]

    def loops(self) -> list[Loop]:
        """The loops over all points, of a K-block where there are some."""
        return [Loop(name, 1, ()) for name, _, _ in self.axes]

    def lane_loops(self, lanes: int) -> list[Loop]:
        """The same, in vectors along the axis along which loads are contiguous; `lanes` points per step."""
        lane = next((v for _, v, n in self.axes if _is_vectorizable(self.node, v, n)), None)
        others = [Loop(name, 1, ()) for name, v, _ in self.axes if v is not lane]
        return others + [x for name, v, n in self.axes if v is lane for x in lane_loops(name, n, lanes)]

    def to_one_value(self, lanes: int) -> tuple[Node, ...]:
        """The reduction of one result in vectors; sums are on the stack."""
        total = Compute(self.node.name, MemoryScope.STACK)
        if self.k_block is None:
            return nest(self.lane_loops(lanes), total)
        partial = nest(self.lane_loops(lanes), Compute(self.partial, MemoryScope.STACK))
        return nest(self.over_k_blocks(), *partial, total)


def vectorizable_reduction_axis(node: Block) -> int | None:
    """Position of the reduction variable that gets the lanes of a reduction to one value; None where there is none."""
    candidates = (k for k, i in enumerate(node.iters)
                  if i.kind is IterKind.REDUCE and _is_vectorizable(node, i.var, i.extent))  # fmt: skip
    return next(candidates, None)


def _is_vectorizable(node: Block, var: Var, extent: Expr) -> bool:
    is_short = isinstance(extent, Const) and extent.value < 4
    return not is_short and is_contiguous_along(node, var) and is_reorderable(node)


def is_contiguous_along(node: Block, var: Var) -> bool:
    """Whether an operand of a reduction is contiguous along a variable."""
    strides = (load_stride(x, var) for x in loads(node.body.value) if x.buffer != node.body.buffer)
    return any(is_literal(stride, 1) for stride in strides)
