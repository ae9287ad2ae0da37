"""Reductions vectorised along the reduction axis: partial sums per lane, combined by a horizontal reduction.

With n elements of the register tile along the axis, lane k of n accumulates every n-th point from the k-th on. This
suits operands that are contiguous along the reduction where no axis of the results is: products of rows with rows, a
matrix with a vector, narrow results.

    sums = 0                                # one or more vectors per result
    steps along the reduction: sums += ..   # whole vectors of all operands
    the partial step: sums += ..            # under a mask
    results = horizontal sums of the lanes
"""

from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.nodes import Const, MemoryScope, Var
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import IterKind
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, TileProgram
from tilewright.tile.remainder import LoopPart
from tilewright.tile.schedule_helpers import BlockLoops, apply_and_get_blocks, buffer_of


def split_into_lanes(s: Schedule, block: str, program: TileProgram) -> str:
    """Splits an untransformed reduction into as many partial sums as the register tile has lanes; returns the name of
    the block that computes them."""
    lane = program.sketch.lane
    position = program.problem.reduce.index(lane)
    return apply_and_get_blocks(s, "rfactor", block, position, program.sizes[REGISTER][lane], None, True)[0]


def lower_lane_reduction(s: Schedule, nest: LoopPart, program: TileProgram, at: str) -> None:
    """Places the register tile at a loop: partial sums per lane in registers over the whole reduction, results on the
    stack.

    Raises:
        ScheduleError: a step is not legal for these loops.
    """
    partial = nest.partial or nest.producer
    s.do("compute_at", nest.producer, at)
    s.do("set_scope", buffer_of(s, nest.producer), MemoryScope.STACK)
    loops = BlockLoops.of(s, nest.producer)
    init = s.decompose_reduction(nest.producer, loops.reduce[0])
    for loop in (*loops.spatial, *BlockLoops.of(s, init).spatial):
        s.do("unroll", loop)
    s.do("vectorize", loops.reduce[0])
    s.do("compute_at", partial, at)
    s.do("set_scope", buffer_of(s, partial), MemoryScope.REGISTER)
    _accumulate(s, partial, program)


def _accumulate(s: Schedule, block: str, program: TileProgram) -> None:
    """Reduction loops outside, unrolled results inside, lanes innermost."""
    problem, own_loops = program.problem, BlockLoops.of(s, block)
    reduction = _reduction_loops(s, block, own_loops.reduce, problem)
    steps = reduction[program.sketch.lane]
    windows = [
        x for k, x in reduction.items() if x != steps and program.sizes[REGISTER][k] == problem.axes[k].extent > 1
    ]
    outer = [x for x in own_loops.reduce if x not in windows]
    s.do("reorder", (*outer, *windows, *own_loops.spatial))
    init = s.decompose_reduction(block, outer[0])
    for x in windows:
        s.do("unroll", x)
    for loops in (own_loops.spatial, BlockLoops.of(s, init).spatial):
        for x in loops[:-1]:
            s.do("unroll", x)
        s.do("vectorize", loops[-1])
    _peel_tail(s, steps, program)


def _reduction_loops(s: Schedule, block: str, loops: tuple[str, ...], problem: Problem) -> dict[int, str]:
    """The loop that drives each axis of the reduction."""
    node = find_block(s.func, block)[0]
    reduced = [i for i in node.iters if i.kind is IterKind.REDUCE]
    return {
        axis: loop
        for axis, i in zip(problem.reduce, reduced, strict=True)
        for loop in loops
        if Var(loop) in free_vars(i.binding)
    }


def _peel_tail(s: Schedule, steps: str, program: TileProgram) -> None:
    """Peels a partial last step, so that only it is masked."""
    extent = find_block(s.origin, program.problem.block)[0].iters[program.sketch.lane].extent
    size = program.sizes[REGISTER][program.sketch.lane]
    if not can_prove((extent % size).equals(0)) and not (isinstance(extent, Const) and extent.value < size):
        s.do("peel", steps, extent // size)
