"""Tile programs read back from traces: records and measurements hold steps, reuse needs sketches and sizes.

The loops around the block that does the work say how each axis is tiled; where they leave a choice, the program is the
one whose steps are the trace. A trace of another version of the lowering is equal to none; then the first legal program
with its loops is taken.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod

from tilewright.errors import ScheduleError, TilewrightError
from tilewright.expr.nodes import Const
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import Block, For, Func, IterKind, LoopKind, walk
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.schedule.step import Trace, replay
from tilewright.tile.lower import lower_program
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch, TileProgram, is_legal

MAX_COMPARED = 48
"""Programs whose steps are compared with a trace at most."""

MIN_LANES = 4
"""Elements of the shortest vector of a sketch."""

Chain = tuple[int, int, int]
"""Sizes of the register, L1 and L2 tile along an axis."""


@dataclass(frozen=True, slots=True)
class _AxisLoops:
    """The loops over an axis.

    Attributes:
        tiles: iterations of the loops over tiles, outermost first; 0 for a symbolic number.
        points: product of the iterations of the unrolled and vectorised loops inside them.
    """

    tiles: tuple[int, ...]
    points: int


@dataclass(frozen=True, slots=True)
class _WorkNest:
    """The loops around the block that does the work.

    Attributes:
        axes: per axis of the problem.
        lane: the vectorised axis.
        order: spatial axes in the order of their outermost loops.
    """

    axes: tuple[_AxisLoops, ...]
    lane: int
    order: tuple[int, ...]


def tile_program_of(reusable: ReusableTask, trace: Trace) -> TileProgram | None:
    """The tile program of a trace; None where it is none, or no legal one.

    Args:
        reusable: the task that the trace is of.
        trace: the steps.
    """
    try:
        func = replay(reusable.task.func, trace)
    except TilewrightError:
        # a record may hold anything
        return None
    nest = _work_nest(func, reusable.problem)
    if nest is None:
        return None
    is_parallel = any(s.primitive == "parallel" for s in trace)
    first: TileProgram | None = None
    for program in islice(_programs(reusable, nest, trace), MAX_COMPARED):
        try:
            schedule = lower_program(program, reusable.task.func, is_parallel, reusable.machine.cores)
        except ScheduleError:
            continue
        if schedule.trace == trace:
            return program
        first = first or program
    return first


def _work_nest(func: Func, problem: Problem) -> _WorkNest | None:
    """The loops around the block that does the work, in the largest register tile; None where none is vectorised."""
    best: tuple[tuple[int, int], Sequence[tuple[For, int]]] | None = None
    for statement, loops in walk(func.body):
        if not isinstance(statement, Block):
            continue
        if problem.reduce and all(i.kind is IterKind.SPATIAL for i in statement.iters):
            continue
        axis_of = _axes_of_loops(statement, problem)
        own = [(f, axis_of[f.var.name]) for f in loops if f.var.name in axis_of]
        size = prod(_iterations(f) for f, _ in own if _is_point_loop(f))
        if any(f.kind is LoopKind.VECTORIZED for f, _ in own) and (best is None or (size, len(own)) > best[0]):
            best = ((size, len(own)), own)
    if best is None:
        return None
    nest = best[1]
    axes = [
        _AxisLoops(
            tuple(_iterations(f) for f, axis in nest if axis == k and not _is_point_loop(f)),
            prod(_iterations(f) for f, axis in nest if axis == k and _is_point_loop(f)),
        )
        for k in range(len(problem.axes))
    ]
    lane = next(axis for f, axis in nest if f.kind is LoopKind.VECTORIZED)
    outer = dict.fromkeys(axis for f, axis in nest if axis in problem.spatial and not _is_point_loop(f))
    return _WorkNest(tuple(axes), lane, tuple(outer))


def _axes_of_loops(block: Block, problem: Problem) -> Mapping[str, int]:
    """The problem's axis that each loop variable moves along, by the block's bindings; names of iteration variables of
    copies and parts of a block begin with the axis's."""
    axes: dict[str, int] = {}
    for i in block.iters:
        for k, axis in enumerate(problem.axes):
            if i.var.name == axis.name or i.var.name.startswith(f"{axis.name}_"):
                axes |= {v.name: k for v in free_vars(i.binding)}
    return axes


def _is_point_loop(f: For) -> bool:
    return f.kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED)


def _iterations(f: For) -> int:
    """Iterations of a loop; 0 for a symbolic number."""
    return int(f.extent.value) if isinstance(f.extent, Const) else 0


def _programs(reusable: ReusableTask, nest: _WorkNest, trace: Trace) -> Iterator[TileProgram]:
    """The legal programs with these loops, those with the loops' order first."""
    problem = reusable.problem
    sketches = [s for _, forms in reusable.spaces for s in forms if s.lane == nest.lane]
    sketches.sort(key=lambda s: s.order != nest.order)
    for sketch in sketches:
        fitted = _with_lanes_of(sketch, nest.axes[nest.lane].points)
        chains = [_chains(problem, fitted, nest, k, trace) for k in range(len(problem.axes))]
        for choice in product(*chains):
            sizes = tuple(tuple(chain[level] for chain in choice) for level in range(3))
            program = TileProgram(problem, fitted, sizes)
            if bool(is_legal(problem, fitted, program.array[None])[0]):
                yield program


def _with_lanes_of(sketch: Sketch, points: int) -> Sketch:
    """The sketch with the longest vectors that a register tile consists of."""
    lanes = sketch.lanes
    while lanes > MIN_LANES and points % lanes:
        lanes //= 2
    return replace(sketch, lanes=lanes)


def _chains(problem: Problem, sketch: Sketch, nest: _WorkNest, k: int, trace: Trace) -> list[Chain]:
    """The tilings of an axis that have its loops."""
    axis, loops = problem.axes[k], nest.axes[k]
    register = max(1, loops.points)
    if k == sketch.lane and axis.is_reduction:
        cover = -(-axis.extent // register) * register
        return [(register, cover, cover)]
    if axis.is_reduction:
        l1 = _k_block(trace) if k == sketch.k_block_axis and sketch.lane in problem.spatial else None
        return [(register, l1 or axis.extent, axis.extent)]
    inner = [n for n in loops.tiles[1:] if n]
    chains = _spatial_chains(register, inner)
    if not problem.reduce and k != sketch.lane and inner:
        # rows of a register tile are a serial loop
        chains += _spatial_chains(inner[-1], inner[:-1])
    return chains


def _spatial_chains(register: int, inner: Sequence[int]) -> list[Chain]:
    """The tilings with these iterations of the loops inside L2 tiles: over L1 tiles, register tiles, or both."""
    if not inner:
        return [(register, register, register)]
    whole = register * prod(inner)
    if len(inner) == 1:
        return [(register, register, whole), (register, whole, whole)]
    return [(register, register * inner[-1], whole)]


def _k_block(trace: Trace) -> int | None:
    """Points of a K-block by the step that makes partial sums; None without it."""
    sizes = [s.args[2] for s in trace if s.primitive == "rfactor" and len(s.args) > 2]
    return next((n for n in sizes if isinstance(n, int)), None)
