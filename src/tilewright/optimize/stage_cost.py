"""Which of several ways to compute the same is worth it: the cost model's time of each, stage by stage.

A sum of products takes what the best tile program takes that grows greedily (`roller`), whichever optimizer will make
its loops; where that is long and far from what the arithmetic needs, walks look for a better one. Everything else moves
memory: what it reads and writes comes from and goes to the cache that threads share, or memory where it is more than
that holds.
"""

from collections.abc import Callable, Sequence

from tilewright.cost.instructions import SCATTER_CYCLES
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.graph.winograd.rewrite import ChooseForm
from tilewright.graph.winograd.stages import WinogradForm
from tilewright.loops.ir import Func
from tilewright.loops.lowering import lower_to_loops
from tilewright.loops.printer import show
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.optimize.interface import Task
from tilewright.tile.shape_samples import Ranges, ShapeSamples, representative_size, value_of

MAX_TIME_RATIO = 0.9
"""A way other than the direct one must be this much faster: estimates err, and the direct one rounds less."""

SHARED_CACHE_LEVEL = 2
"""Where what one stage leaves for the next is found: several megabytes outlive no core's own caches. Weights lie in
memory: between two uses the rest of a network passes through every cache."""

MAX_PEAK_TIME_RATIO = 2.0
"""Times the arithmetic at the machine's peak beyond which a greedily grown program may be a bad one: with many axes, as
in volumes, growth ends far from the best."""

MIN_SEARCH_NS = 1e6
"""Nanoseconds of such a program from which on looking for a better one is worth half a second of compilation."""

StageCost = Callable[[Computation, frozenset[str]], float | None]
"""Nanoseconds of a stage, given the names of the constants; None where nobody knows."""


def pick_fastest(constants: frozenset[str], stage_cost: StageCost) -> ChooseForm:
    """The decision for the fastest way whose estimate is below `MAX_TIME_RATIO` of the direct one's.

    Args:
        constants: names of the program's buffers whose data is known.
        time_of: estimates a stage.
    """

    def total(stages: Sequence[Computation | View], known: frozenset[str]) -> float | None:
        times = [stage_cost(s, known) for s in stages if isinstance(s, Computation)]
        listed = [t for t in times if t is not None]
        return sum(listed) if len(listed) == len(times) else None

    def decide(direct: Sequence[Computation], ways: Sequence[WinogradForm]) -> WinogradForm | None:
        limit = total(direct, constants)
        found = [(total(w.stages, constants | {w.transformed_weights.name}), w) for w in ways]
        best = min(((t, k) for k, (t, _) in enumerate(found) if t is not None), default=None)
        if limit is None or best is None or best[0] >= MAX_TIME_RATIO * limit:
            return None
        return ways[best[1]]

    return decide


def is_faster(constants: frozenset[str], stage_cost: StageCost) -> Callable[[Computation, Sequence[Computation]], bool]:
    """Whether stages that round like one are estimated to take less time than it.

    Args:
        constants: names of the program's buffers whose data is known.
        time_of: estimates a stage.
    """

    def decide(one: Computation, others: Sequence[Computation]) -> bool:
        limit = stage_cost(one, constants)
        times = [stage_cost(s, constants) for s in others]
        listed = [t for t in times if t is not None]
        return limit is not None and len(listed) == len(times) and sum(listed) < limit

    return decide


def stage_cost_oracle(target: Target, machine: Machine, ranges: Ranges | None = None) -> StageCost:
    """Estimates of single stages on a machine; what was estimated once is remembered.

    Symbolic sizes count as the middle of their ranges (`tile.samples.representative`).

    Args:
        target: what code is generated for.
        machine: what runs it.
        ranges: of symbols whose own range does not tell.
    """
    known: dict[tuple[str, frozenset[str]], float | None] = {}

    def estimate(stage: Computation, constants: frozenset[str]) -> float | None:
        if not stage.is_reduction:
            return data_movement_time(stage, machine, ranges)
        kernel = make_kernel([stage])
        used = {v for b in kernel.params for n in b.shape for v in free_vars(n)}
        symbols = tuple(sorted(used, key=lambda v: v.name))
        func: Func = lower_to_loops("stage", kernel.stages, kernel.params, symbols)
        pairs = zip(kernel.params, kernel.arguments, strict=True)
        fixed = frozenset(p.name for p, b in pairs if b.name in constants)
        key = (show(func), fixed)
        if key not in known:
            task = Task(func, fixed, target, ShapeSamples.of(symbols, ranges))
            best = _best_time(Roller(machine), task)
            if best is not None and best > max(MIN_SEARCH_NS, MAX_PEAK_TIME_RATIO * _peak_time(stage, machine, ranges)):
                best = min(best, _best_time(Gensor(machine), task) or best)
            read = sum(_bytes(b) for b in stage.inputs if b.name in constants) / machine.levels[-1].gbs(machine.cores)
            known[key] = None if best is None else best + read
        return known[key]

    return estimate


def _best_time(optimizer: Roller | Gensor, task: Task) -> float | None:
    """Nanoseconds of the best program that an optimizer constructs; None where it constructs none."""
    made = optimizer.construct(task)
    return made.nanoseconds[0] if made is not None and made.programs else None


def data_movement_time(stage: Computation, machine: Machine, ranges: Ranges | None = None) -> float:
    """Nanoseconds of a stage that moves memory, on all cores.

    A line that is written is read first; a store that jumps from lane to lane takes its elements one by one. What the
    stage before left is still in the shared cache where all of it and the results fill no more than half: it read, too.
    """
    read, written = sum(_bytes(b, ranges) for b in stage.inputs), _bytes(stage.output, ranges)
    fitting = (x for x in machine.levels[SHARED_CACHE_LEVEL:-1] if x.bytes >= 2 * (read + written))
    far = next(fitting, machine.levels[-1])
    moved = read + 2 * written
    total = moved / far.gbs(machine.cores) + machine.sync_us * 1e3
    if _is_transpose(stage):
        total += _elements(stage.output, ranges) * SCATTER_CYCLES / (machine.ghz * machine.cores)
    return total


def _peak_time(stage: Computation, machine: Machine, ranges: Ranges | None) -> float:
    """Nanoseconds of a sum of products on all cores at their peak."""
    terms = _volume([a.extent for a in (*stage.axes, *stage.reduce_axes)], ranges)
    return 2 * terms / machine.gflops(machine.cores)


def _is_transpose(stage: Computation) -> bool:
    """Whether the last axis of the results is not the last index of what is read."""
    last = stage.axes[-1].var if stage.axes else None
    return last is not None and any(x.indices and last not in free_vars(x.indices[-1]) for x in loads(stage.body))


def _bytes(b: Buffer, ranges: Ranges | None = None) -> float:
    return _elements(b, ranges) * b.dtype.bytes


def _elements(b: Buffer, ranges: Ranges | None) -> float:
    return _volume(b.shape, ranges)


def _volume(extents: Sequence[Expr], ranges: Ranges | None) -> float:
    symbols: dict[Var, int] = {v: representative_size(v, ranges) for n in extents for v in free_vars(n)}
    total = 1.0
    for n in extents:
        total *= value_of(n, symbols)
    return total
