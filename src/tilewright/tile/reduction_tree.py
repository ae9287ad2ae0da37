"""Trees of reductions with an epilogue: register tiles in L1 and L2 tiles, K-blocks, packed operands, remainders.

parallel L2 tiles
  L1 tiles
    K-blocks of the reduction                   # where the reduction is K-blocked
      register tiles: accumulators += ..        # in registers, over the points of the K-block
                      partial sums += accumulators
    register tiles: the epilogue
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from tilewright.expr.nodes import Const, Expr, MemoryScope
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.ir import Block, IterKind, LoopKind
from tilewright.schedule.tails import Tail
from tilewright.tile.problem import is_reorderable
from tilewright.tile.program import REGISTER, SizeTuples
from tilewright.tile.transposed_columns import MIN_COLUMNS
from tilewright.tile.tree import (
    CacheWrite,
    Compute,
    Loop,
    LoopPart,
    Node,
    Pack,
    Partition,
    Prefetch,
    RFactor,
    Staging,
    TileTree,
    nest,
)

MAX_UNROLLED_EPILOGUE = 16
"""Iterations of an epilogue's loop that are unrolled."""

TRANSPOSED_LANES = 8
"""Lanes of accumulators that an epilogue transposes at a time: half of the longest vector, so that an epilogue with
functions does not keep LLVM busy; 16 take as many shuffles per vector."""


@dataclass(frozen=True, slots=True)
class TiledPart:
    """The loops over all whole register tiles of an axis with a remainder, or over a part of the remainder.

    Attributes:
        sizes: tile sizes [level][axis].
        parallel_loops: how many of the outermost loops over L2 tiles threads share.
        prefetches: software prefetches in the reduction loop around register tiles, or that of a lane reduction.
    """

    sizes: SizeTuples
    parallel_loops: int = 0
    prefetches: tuple[Prefetch, ...] = ()


# without slots, because cached properties need a place
@dataclass(frozen=True)
class TiledReduction:
    """How a reduction and its epilogue are tiled. Axes are positions among the iteration variables of the reduction.

    Attributes:
        node: the block that reduces.
        epilogue: the block that reads its results; None where it has none.
        lane: the vectorised axis; of a reduction axis every lane accumulates a partial sum.
        order: spatial axes, the outermost loop first; the same at every level.
        parts: of the partitioned axis; a single one without partition.
        k_block: (axis, points) of the K-blocks; None without K-blocking, and where lanes reduce.
        store_axes: axes along which results may be stored as vectors, the best first; the lane axis where register
            tiles have too few points along all of them.
        partitioned: the axis that is cut into the parts.
        shared: loops over L2 tiles around all parts, outermost first.
        packs: packed copies of operands.
        copies: the loops that fill those that are not constant; without them they keep their untransformed loops.
    """

    node: Block
    epilogue: str | None
    lane: int
    order: tuple[int, ...]
    parts: tuple[TiledPart, ...]
    k_block: tuple[int, int] | None = None
    store_axes: tuple[int, ...] = ()
    partitioned: int | None = None
    shared: tuple[Loop, ...] = ()
    packs: tuple[Pack, ...] = ()
    copies: tuple[Node, ...] = ()

    def axis(self, position: int) -> str:
        """The name of an axis."""
        return self.node.iters[position].var.name

    @property
    def final(self) -> str:
        """The statement of the epilogue."""
        return self.epilogue or f"{self.node.name}.store"

    @property
    def is_lane_reduction(self) -> bool:
        """Whether the lanes of vectors hold partial sums."""
        return self.node.iters[self.lane].kind is IterKind.REDUCE

    @property
    def summed(self) -> str:
        """The statement that reads the operands."""
        is_split = self.is_lane_reduction or self.k_block is not None
        return f"{self.node.name}.partial" if is_split else self.node.name

    @property
    def spatial(self) -> tuple[int, ...]:
        """The axes of the results."""
        return tuple(k for k, i in enumerate(self.node.iters) if i.kind is IterKind.SPATIAL)

    @property
    def reduce(self) -> tuple[int, ...]:
        """The reduction axes."""
        return tuple(k for k, i in enumerate(self.node.iters) if i.kind is IterKind.REDUCE)

    @property
    def staging(self) -> tuple[Staging, ...]:
        """The statements besides the kernel's blocks, without packed copies."""
        stages: list[Staging] = []
        if self.epilogue is None:
            stages.append(CacheWrite(self.node.name, self.final))
        if self.is_lane_reduction:
            size = self.parts[0].sizes[REGISTER][self.lane]
            stages.append(RFactor(self.node.name, self.summed, self.axis(self.lane), size, lanes=True))
        elif self.k_block is not None:
            axis, size = self.k_block
            stages.append(RFactor(self.node.name, self.summed, self.axis(axis), size))
        return tuple(stages)

    @cached_property
    def operand_axes(self) -> tuple[frozenset[int], ...]:
        """Per operand the axes that its index depends on."""
        variables = [i.var for i in self.node.iters]
        operands = [x for x in loads(self.node.body.value) if x.buffer != self.node.body.buffer]
        return tuple(
            frozenset(k for k, v in enumerate(variables) if any(v in free_vars(i) for i in x.indices)) for x in operands
        )

    def points(self, axis: int) -> Expr:
        """Points of an axis; of the K-blocked one those of a K-block."""
        extent = self.node.iters[axis].extent
        is_blocked = self.k_block is not None and self.k_block[0] == axis
        return Const(self.k_block[1], extent.dtype) if self.k_block is not None and is_blocked else extent


def reduction_tree(tiling: TiledReduction) -> TileTree:
    """The tree of a tiled reduction."""
    trees = [_PartTree(tiling, part) for part in tiling.parts]
    body, staging = trees[0].body(), trees[0].staging
    if tiling.partitioned is not None:
        parts = (LoopPart(x.part.sizes[REGISTER][tiling.partitioned], x.body(), x.staging) for x in trees)
        body, staging = (Partition(tiling.axis(tiling.partitioned), tuple(parts)),), ()
    return TileTree((*tiling.copies, *nest(tiling.shared, *body)), (*tiling.staging, *tiling.packs, *staging))


@dataclass(frozen=True)
class _PartTree:
    """The loops over one part of a tiled reduction."""

    reduction: TiledReduction
    part: TiledPart

    @property
    def sizes(self) -> SizeTuples:
        """Tile sizes [level][axis]."""
        return self.part.sizes

    @property
    def staging(self) -> tuple[Staging, ...]:
        """The copy of a register tile that the epilogue reads transposed."""
        return (CacheWrite(self.reduction.node.name, self._tile_copy),) if self._is_transposed else ()

    @property
    def _tile_copy(self) -> str:
        return f"{self.reduction.node.name}.tile"

    @cached_property
    def _points(self) -> list[int]:
        """Spatial axes along which a register tile has several points."""
        return [a for a in self.reduction.spatial if self.sizes[REGISTER][a] > 1]

    @cached_property
    def _store_axis(self) -> int:
        """The axis along which results are stored as vectors.

        Not one of two or three points below an epilogue: it would compute with so many lanes.
        """
        lane, register = self.reduction.lane, self.sizes[REGISTER]
        least = 2 if self.reduction.epilogue is None else MIN_COLUMNS
        return next((a for a in self.reduction.store_axes if a != lane and register[a] >= least), lane)

    @property
    def _is_transposed(self) -> bool:
        """Whether accumulators are copied to the stack, to be stored along another axis."""
        is_plain = self.reduction.summed == self.reduction.node.name
        return is_plain and self._store_axis != self.reduction.lane

    def body(self) -> tuple[Node, ...]:
        """The loops over L2 tiles, L1 tiles and register tiles around the reduction and its epilogue."""
        over_l2, over_l1, over_register = self._tile_loops()
        if self.reduction.k_block is not None:
            epilogue = nest(over_register, *self._epilogue())
            return nest([*over_l2, *over_l1], *self._k_blocks(self.reduction.k_block, over_register), *epilogue)
        loops = [*over_l2, *over_l1, *over_register]
        if self.reduction.is_lane_reduction:
            return nest(loops, *self._lane_reduction(), *self._epilogue())
        tile = self._tile_nest(self.reduction.node.name)
        if not self._is_transposed:
            return nest(loops, *tile, *self._epilogue())
        lane_axis = self.reduction.axis(self.reduction.lane)
        copy = nest(self._tile_points(), Compute(self._tile_copy, MemoryScope.STACK, lane_axis))
        return nest(loops, *tile, *copy, *self._epilogue())

    def _tile_loops(self) -> tuple[list[Loop], list[Loop], list[Loop]]:
        """The loops over L2 tiles, L1 tiles and register tiles; inner loops with a single iteration are left out."""
        register, l1, l2 = self.sizes
        order, shared = self.reduction.order, {x.axis for x in self.reduction.shared}
        over_l2 = [a for a in order if self.reduction.axis(a) not in shared]
        kinds = [LoopKind.PARALLEL if k < self.part.parallel_loops else LoopKind.SERIAL for k in range(len(over_l2))]
        return (
            [self._axis_loop(a, l2[a], kind) for a, kind in zip(over_l2, kinds, strict=True)],
            [self._axis_loop(a, l1[a]) for a in order if l2[a] > l1[a]],
            [self._axis_loop(a, register[a]) for a in order if l1[a] > register[a]],
        )

    def _axis_loop(self, axis: int, step: int, kind: LoopKind = LoopKind.SERIAL, tail: Tail = Tail.GUARD) -> Loop:
        return Loop(self.reduction.axis(axis), step, (), kind, tail)

    def _epilogue(self) -> tuple[Node, ...]:
        """The epilogue of a register tile."""
        store, lane = self._store_axis, self.reduction.lane
        points = [a for a in self.reduction.order if a in self._points and a not in (store, lane)]
        if store == lane:
            points += [store] if store in self._points else []
            loops = self._result_loops(points, vectorized=store in self._points)
        else:
            loops = [*(self._axis_loop(a, 1) for a in points), *self._transposed_loops(lane, store)]
        return nest(loops, Compute(self.reduction.final))

    def _transposed_loops(self, lane: int, store: int) -> list[Loop]:
        """The loops of a transposed store: vectors along the stored axis, for so many lanes of the accumulators at a
        time that code generation transposes them in registers."""
        size = self.sizes[REGISTER][lane]
        loops = [self._axis_loop(lane, gcd(size, TRANSPOSED_LANES))] if size > TRANSPOSED_LANES else []
        return [
            *loops,
            self._axis_loop(lane, 1, LoopKind.UNROLLED),
            self._axis_loop(store, 1, LoopKind.VECTORIZED),
        ]

    def _result_loops(self, points: Sequence[int], vectorized: bool) -> list[Loop]:
        """Loops over the results of a register tile: the innermost one is vectorised, short others are unrolled."""
        loops: list[Loop] = []
        for k, a in enumerate(points):
            is_lane = vectorized and k == len(points) - 1
            is_short = self.sizes[REGISTER][a] <= MAX_UNROLLED_EPILOGUE
            kind = LoopKind.VECTORIZED if is_lane else LoopKind.UNROLLED if is_short else LoopKind.SERIAL
            loops.append(self._axis_loop(a, 1, kind))
        return loops

    def _k_blocks(self, k_block: tuple[int, int], tiles: Sequence[Loop]) -> tuple[Node, ...]:
        """Partial sums of the L1 tile on the stack: per K-block and register tile, accumulators are added."""
        order, lane = self.reduction.order, self.reduction.lane
        points = [a for a in order if a in self._points and a != lane]
        points += [lane] if lane in self._points else []
        loops = self._result_loops(points, vectorized=lane in self._points)
        total = nest(loops, Compute(self.reduction.node.name, MemoryScope.STACK, self.reduction.axis(lane)))
        blocks = self._axis_loop(*k_block, tail=Tail.REMAINDER)
        return nest([blocks, *tiles], *self._tile_nest(self.reduction.summed), *total)

    def _tile_nest(self, statement: str) -> tuple[Node, ...]:
        """Reduction loops outside, their unrolled part and the unrolled rows inside, lanes innermost; accumulators in
        registers. What may not be reordered keeps the order of the axes."""
        loops: list[Loop] = []
        for r in self.reduction.reduce:
            size, extent = self.sizes[REGISTER][r], self.reduction.points(r)
            if size == 1 or not isinstance(extent, Const):
                loops.append(self._axis_loop(r, 1))
            elif self._is_unrolled(r):
                loops.append(self._axis_loop(r, 1, LoopKind.UNROLLED))
            else:
                loops += [self._axis_loop(r, size), self._axis_loop(r, 1, LoopKind.UNROLLED)]
        if is_reorderable(self.reduction.node):
            loops.sort(key=lambda x: x.kind is LoopKind.UNROLLED)
        serial = [k for k, x in enumerate(loops) if x.kind is LoopKind.SERIAL]
        if serial:
            loops[serial[-1]] = replace(loops[serial[-1]], prefetches=self.part.prefetches)
        lane_axis = self.reduction.axis(self.reduction.lane)
        leaf = Compute(statement, MemoryScope.REGISTER, lane_axis)
        return nest([*loops, *self._tile_points()], leaf)

    def _is_unrolled(self, axis: int) -> bool:
        """Whether a register tile has several points of a reduction axis, all that there are."""
        size, points = self.sizes[REGISTER][axis], self.reduction.points(axis)
        return isinstance(points, Const) and size == points.value > 1

    def _tile_points(self) -> list[Loop]:
        """The results of a register tile: lanes innermost and vectorised, the other axes unrolled.

        Loops that select other vectors, but not other elements of everything multiplied by them, go inside the rest.
        Then vectors stay in registers, and an element that multiplies all of them occupies a register only meanwhile.
        In the other order all elements of a step would stay in registers for the next vector.
        """
        lane, operands = self.reduction.lane, self.reduction.operand_axes

        def position(a: int) -> tuple[bool, bool]:
            selects_vectors = any(lane in o and a in o for o in operands)
            return a == lane, selects_vectors and any(a not in o for o in operands)

        return [
            self._axis_loop(a, 1, LoopKind.VECTORIZED if a == lane else LoopKind.UNROLLED)
            for a in sorted(self._points, key=position)
        ]

    def _lane_reduction(self) -> tuple[Node, ...]:
        """Partial sums per lane in registers over the whole reduction, results on the stack.

        With n elements of the register tile along the reduction, lane k of n accumulates every n-th point from the k-th
        on. This suits operands that are contiguous along the reduction where no axis of the results is: products of
        rows with rows, a matrix with a vector, narrow results. A partial last step is peeled: only it is masked.
        """
        lane = self.reduction.lane
        windows = [r for r in self.reduction.reduce if r != lane and self._is_unrolled(r)]
        steps = [r for r in self.reduction.reduce if r not in windows]
        loops = [
            *(self._lane_loop() if r == lane else self._axis_loop(r, 1) for r in steps),
            *(self._axis_loop(r, 1, LoopKind.UNROLLED) for r in windows),
            *(self._axis_loop(a, 1, LoopKind.UNROLLED) for a in self._points),
            self._axis_loop(lane, 1, LoopKind.VECTORIZED),
        ]
        partial = nest(loops, Compute(self.reduction.summed, MemoryScope.REGISTER))
        results = [self._axis_loop(a, 1, LoopKind.UNROLLED) for a in self._points]
        combine = [*results, self._axis_loop(lane, 1, LoopKind.VECTORIZED)]
        return (*partial, *nest(combine, Compute(self.reduction.node.name, MemoryScope.STACK)))

    def _lane_loop(self) -> Loop:
        """The loop over the vectors of a lane reduction."""
        lane = self.reduction.lane
        loop = self._axis_loop(lane, self.sizes[REGISTER][lane], tail=Tail.REMAINDER)
        return replace(loop, prefetches=self.part.prefetches)
