"""Trees of reductions with an epilogue: register tiles in L1 and L2 tiles, K-blocks, packed operands, remainders.

parallel L2 tiles
  L1 tiles
    K-blocks of the reduction                   # where the reduction is K-blocked
      register tiles: accumulators += ..        # in registers, over the points of the K-block
                      partial sums += accumulators
    register tiles: the epilogue
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.expr.nodes import Const, Expr, MemoryScope
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.ir import Block, Func, IterKind, LoopKind
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.tails import Tail
from tilewright.tile.packing import pack_nests, pack_stages, prefetches
from tilewright.tile.program import L1, L2, REGISTER, Sketch, TileProgram
from tilewright.tile.remainder import remainder_parts
from tilewright.tile.tree import (
    CacheWrite,
    Compute,
    Loop,
    LoopPart,
    Node,
    Partition,
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

SizeTuples = tuple[tuple[int, ...], ...]
"""Tile sizes [level][axis]."""


def reduction_tree(program: TileProgram, func: Func, parallel: bool, cores: int) -> TileTree:
    """The tree of a program.

    Args:
        program: a program of a reduction.
        func: its kernel's untransformed loops.
        parallel: whether threads share the tiles.
        cores: maximum number of cores.

    Raises:
        ScheduleError: an operand can't be packed along its axis.
    """
    reduction = _Reduction(program, func)
    packs = pack_stages(program, reduction.summed)
    parts = remainder_parts(program, [i.extent for i in reduction.node.iters], cores)
    bodies: list[LoopPart] = []
    for sizes in parts.sizes:
        part = _PartTree(reduction, sizes, frozenset(parts.shared), parallel)
        bodies.append(LoopPart(sizes[REGISTER][parts.axis] if parts.axis is not None else 1, part.body(), part.staging))
    body, staging = bodies[0].body, bodies[0].staging
    if parts.axis is not None:
        body, staging = (Partition(reduction.axis(parts.axis), tuple(bodies)),), ()
    kind = LoopKind.PARALLEL if parallel else LoopKind.SERIAL
    shared = [Loop(reduction.axis(a), program.sizes[L2][a], (), kind) for a in parts.shared]
    copies = pack_nests(program, reduction.node, packs, parallel)
    return TileTree((*copies, *nest(shared, *body)), (*reduction.staging, *packs.values(), *staging))


class _Reduction:
    """Names and facts of a program's kernel."""

    def __init__(self, program: TileProgram, func: Func) -> None:
        self.program, self.func = program, func
        self.node: Block = find_block(func, program.problem.block)[0]

    @property
    def sketch(self) -> Sketch:
        return self.program.sketch

    def axis(self, position: int) -> str:
        """The name of an axis of the problem."""
        return self.node.iters[position].var.name

    @property
    def block(self) -> str:
        """The statement that reduces, or that combines partial sums."""
        return self.program.problem.block

    @cached_property
    def final(self) -> str:
        """The statement of the epilogue."""
        has_epilogue = self.program.problem.final != self.block
        return self.program.problem.final if has_epilogue else f"{self.block}.store"

    @cached_property
    def is_lane_reduction(self) -> bool:
        """Whether the lanes of vectors hold partial sums."""
        return self.program.problem.axes[self.sketch.lane].is_reduction

    @cached_property
    def is_k_blocked(self) -> bool:
        """Whether partial sums of K-blocks are added up."""
        k = self.sketch.k_block_axis
        return k is not None and self.program.sizes[L1][k] < self.program.problem.axes[k].extent

    @property
    def summed(self) -> str:
        """The statement that reads the operands."""
        return f"{self.block}.partial" if self.is_lane_reduction or self.is_k_blocked else self.block

    @cached_property
    def staging(self) -> tuple[Staging, ...]:
        """The statements besides the kernel's blocks, without packed copies."""
        stages: list[Staging] = []
        if self.final != self.program.problem.final:
            stages.append(CacheWrite(self.block, self.final))
        lane, k = self.sketch.lane, self.sketch.k_block_axis
        if self.is_lane_reduction:
            size = self.program.sizes[REGISTER][lane]
            stages.append(RFactor(self.block, self.summed, self.axis(lane), size, lanes=True))
        elif self.is_k_blocked and k is not None:
            stages.append(RFactor(self.block, self.summed, self.axis(k), self.program.sizes[L1][k]))
        return tuple(stages)

    @cached_property
    def operand_axes(self) -> tuple[frozenset[int], ...]:
        """Per operand the positions of the axes that its index depends on."""
        variables = [i.var for i in self.node.iters]
        operands = [x for x in loads(self.node.body.value) if x.buffer != self.node.body.buffer]
        return tuple(
            frozenset(k for k, v in enumerate(variables) if any(v in free_vars(i) for i in x.indices)) for x in operands
        )

    @cached_property
    def extents(self) -> tuple[Expr, ...]:
        """Extents of the axes; of the K-blocked one those of a K-block."""
        extents: list[Expr] = []
        for position, i in enumerate(self.node.iters):
            is_blocked = self.is_k_blocked and position == self.sketch.k_block_axis
            extents.append(Const(self.program.sizes[L1][position], i.extent.dtype) if is_blocked else i.extent)
        return tuple(extents)

    @property
    def reduce(self) -> tuple[int, ...]:
        """Positions of the reduction axes."""
        return tuple(k for k, i in enumerate(self.node.iters) if i.kind is IterKind.REDUCE)


@dataclass(frozen=True)
class _PartTree:
    """The loops over all whole register tiles of the axis with a remainder, or over the remainder.

    Attributes:
        reduction: the program and its kernel.
        sizes: tile sizes of the part.
        shared: axes whose loops over L2 tiles are outside of the parts.
        parallel: whether threads share the L2 tiles of the other axes.
    """

    reduction: _Reduction
    sizes: SizeTuples
    shared: frozenset[int]
    parallel: bool

    @property
    def staging(self) -> tuple[Staging, ...]:
        """The copy of a register tile that the epilogue reads transposed."""
        return (CacheWrite(self.reduction.block, self._tile_copy),) if self._is_transposed else ()

    @property
    def _tile_copy(self) -> str:
        return f"{self.reduction.block}.tile"

    @cached_property
    def _points(self) -> list[int]:
        """Spatial axes along which a register tile has several points."""
        return [a for a in self.reduction.program.problem.spatial if self.sizes[REGISTER][a] > 1]

    @cached_property
    def _store_axis(self) -> int:
        """The axis along which results are stored as vectors: the lane axis, unless the store is transposed."""
        sketch = self.reduction.sketch
        if not sketch.transposed_store:
            return sketch.lane
        strides = self.reduction.program.problem.results[-1].strides
        return next((a for a in self._points if a != sketch.lane and strides[a] == 1), sketch.lane)

    @property
    def _is_transposed(self) -> bool:
        """Whether accumulators are copied to the stack, to be stored along another axis."""
        is_plain = not (self.reduction.is_lane_reduction or self.reduction.is_k_blocked)
        return is_plain and self._store_axis != self.reduction.sketch.lane

    def body(self) -> tuple[Node, ...]:
        """The loops over L2 tiles, L1 tiles and register tiles around the reduction and its epilogue."""
        over_l2, over_l1, over_register = self._tile_loops()
        if self.reduction.is_k_blocked and not self.reduction.is_lane_reduction:
            epilogue = nest(over_register, *self._epilogue())
            return nest([*over_l2, *over_l1], *self._k_blocks(), *epilogue)
        loops = [*over_l2, *over_l1, *over_register]
        if self.reduction.is_lane_reduction:
            return nest(loops, *self._lane_reduction(), *self._epilogue())
        tile = self._tile_nest(self.reduction.block)
        if not self._is_transposed:
            return nest(loops, *tile, *self._epilogue())
        lane_axis = self.reduction.axis(self.reduction.sketch.lane)
        copy = nest(self._tile_points(), Compute(self._tile_copy, MemoryScope.STACK, lane_axis))
        return nest(loops, *tile, *copy, *self._epilogue())

    def _tile_loops(self) -> tuple[list[Loop], list[Loop], list[Loop]]:
        """The loops over L2 tiles, L1 tiles and register tiles; inner loops with a single iteration are left out."""
        register, l1, l2 = self.sizes
        order = self.reduction.sketch.order
        kind = LoopKind.PARALLEL if self.parallel and not self.shared else LoopKind.SERIAL
        return (
            [self._axis_loop(a, l2[a], kind) for a in order if a not in self.shared],
            [self._axis_loop(a, l1[a]) for a in order if l2[a] > l1[a]],
            [self._axis_loop(a, register[a]) for a in order if l1[a] > register[a]],
        )

    def _axis_loop(self, axis: int, step: int, kind: LoopKind = LoopKind.SERIAL, tail: Tail = Tail.GUARD) -> Loop:
        return Loop(self.reduction.axis(axis), step, (), kind, tail)

    def _epilogue(self) -> tuple[Node, ...]:
        """The epilogue of a register tile."""
        store, lane = self._store_axis, self.reduction.sketch.lane
        points = [a for a in self.reduction.sketch.order if a in self._points and a not in (store, lane)]
        if store == lane:
            points += [store] if store in self._points else []
            loops = self._result_loops(points, vectorized=store in self._points)
        else:
            loops = [*(self._axis_loop(a, 1) for a in points), *self._transposed_lanes(lane)]
            loops.append(self._axis_loop(store, 1, LoopKind.VECTORIZED))
        return nest(loops, Compute(self.reduction.final))

    def _transposed_lanes(self, lane: int) -> list[Loop]:
        """The loops over the lanes of accumulators that are stored along another axis: so many at a time that code
        generation transposes them in registers."""
        blocks = [self._axis_loop(lane, TRANSPOSED_LANES)] if self.sizes[REGISTER][lane] > TRANSPOSED_LANES else []
        return [*blocks, self._axis_loop(lane, 1, LoopKind.UNROLLED)]

    def _result_loops(self, points: Sequence[int], vectorized: bool) -> list[Loop]:
        """Loops over the results of a register tile: the innermost one is vectorised, short others are unrolled."""
        loops: list[Loop] = []
        for k, a in enumerate(points):
            is_lane = vectorized and k == len(points) - 1
            is_short = self.sizes[REGISTER][a] <= MAX_UNROLLED_EPILOGUE
            kind = LoopKind.VECTORIZED if is_lane else LoopKind.UNROLLED if is_short else LoopKind.SERIAL
            loops.append(self._axis_loop(a, 1, kind))
        return loops

    def _k_blocks(self) -> tuple[Node, ...]:
        """Partial sums of the L1 tile on the stack: per K-block and register tile, accumulators are added."""
        register, l1, _ = self.sizes
        sketch, k = self.reduction.sketch, self.reduction.sketch.k_block_axis or 0
        tiles = [self._axis_loop(a, register[a]) for a in sketch.order if l1[a] > register[a] and register[a] > 1]
        rows = [self._axis_loop(a, 1) for a in sketch.order if l1[a] > 1 and register[a] == 1]
        by_axis = {x.axis: x for x in (*tiles, *rows)}
        tiles = [by_axis[self.reduction.axis(a)] for a in sketch.order if self.reduction.axis(a) in by_axis]
        points = [a for a in sketch.order if a in self._points and a != sketch.lane]
        points += [sketch.lane] if sketch.lane in self._points else []
        loops = self._result_loops(points, vectorized=sketch.lane in self._points)
        total = nest(loops, Compute(self.reduction.block, MemoryScope.STACK, self.reduction.axis(sketch.lane)))
        blocks = self._axis_loop(k, l1[k], tail=Tail.REMAINDER)
        return nest([blocks, *tiles], *self._tile_nest(self.reduction.summed), *total)

    def _tile_nest(self, statement: str) -> tuple[Node, ...]:
        """Reduction loops outside, their unrolled part and the unrolled rows inside, lanes innermost; accumulators in
        registers."""
        serial: list[Loop] = []
        unrolled: list[Loop] = []
        for r in self.reduction.reduce:
            size, extent = self.sizes[REGISTER][r], self.reduction.extents[r]
            if size == 1 or not isinstance(extent, Const):
                serial.append(self._axis_loop(r, 1))
            elif size == extent.value:
                unrolled.append(self._axis_loop(r, 1, LoopKind.UNROLLED))
            else:
                serial.append(self._axis_loop(r, size))
                unrolled.append(self._axis_loop(r, 1, LoopKind.UNROLLED))
        if serial:
            last, hints = serial[-1], prefetches(self.reduction.program, self.sizes)
            serial[-1] = Loop(last.axis, last.step, (), last.kind, last.tail, hints)
        lane_axis = self.reduction.axis(self.reduction.sketch.lane)
        leaf = Compute(statement, MemoryScope.REGISTER, lane_axis)
        return nest([*serial, *unrolled, *self._tile_points()], leaf)

    def _tile_points(self) -> list[Loop]:
        """The results of a register tile: lanes innermost and vectorised, the other axes unrolled.

        Loops that select other vectors, but not other elements of everything multiplied by them, go inside the rest.
        Then vectors stay in registers, and an element that multiplies all of them occupies a register only meanwhile.
        In the other order all elements of a step would stay in registers for the next vector.
        """
        lane, operands = self.reduction.sketch.lane, self.reduction.operand_axes

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
        lane, register = self.reduction.sketch.lane, self.sizes[REGISTER]
        axes = self.reduction.program.problem.axes
        windows = [r for r in self.reduction.reduce if r != lane and register[r] == axes[r].extent > 1]
        steps = [r for r in self.reduction.reduce if r not in windows]
        loops = [
            *(self._axis_loop(r, register[r] if r == lane else 1, tail=Tail.REMAINDER if r == lane else Tail.GUARD)
              for r in steps),
            *(self._axis_loop(r, 1, LoopKind.UNROLLED) for r in windows),
            *(self._axis_loop(a, 1, LoopKind.UNROLLED) for a in self._points),
            self._axis_loop(lane, 1, LoopKind.VECTORIZED),
        ]  # fmt: skip
        partial = nest(loops, Compute(self.reduction.summed, MemoryScope.REGISTER))
        results = [self._axis_loop(a, 1, LoopKind.UNROLLED) for a in self._points]
        combine = [*results, self._axis_loop(lane, 1, LoopKind.VECTORIZED)]
        return (*partial, *nest(combine, Compute(self.reduction.block, MemoryScope.STACK)))
