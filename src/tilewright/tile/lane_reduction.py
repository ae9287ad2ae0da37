"""Register tiles with lanes along the reduction: every lane adds up a strand of it, and lanes are combined at the end.

A strand is every n-th point of an axis, n the elements of the tile along it. It suits operands that are contiguous
along the reduction where results have no axis that is: products of rows with rows, a matrix with a vector, narrow
results.

    sums = 0                                # a vector, or several, per result
    steps along the reduction: sums += ..   # whole vectors of all operands
    the step that is not whole: sums += ..  # under a mask
    results = the sums' lanes together
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
    """Cuts an untransformed reduction into strands along the lane axis, as many as a register tile has elements there;
    the block that computes them."""
    lane = program.sketch.lane
    position = program.problem.reduce.index(lane)
    return apply_and_get_blocks(s, "rfactor", block, position, program.sizes[REGISTER][lane], None, True)[0]


def lower_lane_reduction(s: Schedule, nest: LoopPart, program: TileProgram, at: str) -> None:
    """The register tile at a loop: strands in registers over the whole reduction, their sums on the stack.

    Raises:
        ScheduleError: a step is not legal for these loops.
    """
    strands = nest.partial or nest.producer
    s.do("compute_at", nest.producer, at)
    s.do("set_scope", buffer_of(s, nest.producer), MemoryScope.STACK)
    sums = BlockLoops.of(s, nest.producer)
    init = s.decompose_reduction(nest.producer, sums.reduce[0])
    for loop in (*sums.spatial, *BlockLoops.of(s, init).spatial):
        s.do("unroll", loop)
    s.do("vectorize", sums.reduce[0])
    s.do("compute_at", strands, at)
    s.do("set_scope", buffer_of(s, strands), MemoryScope.REGISTER)
    _accumulate(s, strands, program)


def _accumulate(s: Schedule, block: str, program: TileProgram) -> None:
    """The reduction outside, results written out inside, lanes innermost."""
    problem, names = program.problem, BlockLoops.of(s, block)
    loops = _reduction_loops(s, block, names.reduce, problem)
    steps = loops[program.sketch.lane]
    windows = [x for k, x in loops.items() if x != steps and program.sizes[REGISTER][k] == problem.axes[k].extent > 1]
    outside = [x for x in names.reduce if x not in windows]
    s.do("reorder", (*outside, *windows, *names.spatial))
    init = s.decompose_reduction(block, outside[0])
    for x in windows:
        s.do("unroll", x)
    for own in (names.spatial, BlockLoops.of(s, init).spatial):
        for x in own[:-1]:
            s.do("unroll", x)
        s.do("vectorize", own[-1])
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
    """Gives a last step that is not full loops of its own, so that only it is masked."""
    extent = find_block(s.origin, program.problem.block)[0].iters[program.sketch.lane].extent
    size = program.sizes[REGISTER][program.sketch.lane]
    if not can_prove((extent % size).equals(0)) and not (isinstance(extent, Const) and extent.value < size):
        s.do("peel", steps, extent // size)
