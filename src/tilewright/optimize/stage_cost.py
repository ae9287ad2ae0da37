"""Estimated time of single stages, from which the program-level passes pick the fastest of several equivalent forms.

The time of a contraction is that of the best tile program that `roller` constructs, whichever optimizer schedules it
later; where this program is long and far from the arithmetic peak, `gensor` looks for a better one. All other stages
are data movement: their operands and results travel to and from the shared cache, or memory where they do not fit it.
"""

from collections.abc import Callable, Sequence

from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.graph.winograd.rewrite import ChooseForm
from tilewright.graph.winograd.stages import WinogradForm
from tilewright.loops.ir import Func
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.optimize.interface import Task
from tilewright.tile.shape_samples import Ranges, ShapeSamples, representative_size, value_of

MAX_TIME_RATIO = 0.9
"""An alternative to the direct form must take less than this share of its time: estimates err, and the direct form
rounds less."""

SHARED_CACHE_LEVEL = 2
"""The cache level that keeps one stage's results for the next: several megabytes do not survive in a core's private
caches. Weights are read from memory: the rest of the network passes through every cache between two uses."""

MAX_PEAK_TIME_RATIO = 2.0
"""Multiple of the time at arithmetic peak above which a greedily grown program may be poor: with many axes, as in 3-D
convolutions, growth ends far from the optimum."""

MIN_SEARCH_NS = 1e6
"""Nanoseconds of such a program above which a search for a better one is worth half a second of compilation."""

StageCost = Callable[[Computation, frozenset[str]], float | None]
"""Nanoseconds of a stage, given the names of the constants; None where there is no estimate."""


def pick_fastest(constants: frozenset[str], stage_cost: StageCost) -> ChooseForm:
    """Picks the fastest alternative whose estimate is below `MAX_TIME_RATIO` of the direct form's.

    Args:
        constants: names of the program's buffers whose data is known.
        stage_cost: estimates a stage.
    """

    def total(stages: Sequence[Computation | View], constant_names: frozenset[str]) -> float | None:
        times = [stage_cost(s, constant_names) for s in stages if isinstance(s, Computation)]
        known_times = [t for t in times if t is not None]
        return sum(known_times) if len(known_times) == len(times) else None

    def decide(direct: Sequence[Computation], alternatives: Sequence[WinogradForm]) -> WinogradForm | None:
        limit = total(direct, constants)
        estimates = [(total(w.stages, constants | {w.transformed_weights.name}), w) for w in alternatives]
        best = min(((t, index) for index, (t, _) in enumerate(estimates) if t is not None), default=None)
        if limit is None or best is None or best[0] >= MAX_TIME_RATIO * limit:
            return None
        return alternatives[best[1]]

    return decide


def is_faster(constants: frozenset[str], stage_cost: StageCost) -> Callable[[Computation, Sequence[Computation]], bool]:
    """A predicate: whether stages that round like a single stage are estimated to be faster than it.

    Args:
        constants: names of the program's buffers whose data is known.
        stage_cost: estimates a stage.
    """

    def decide(single: Computation, others: Sequence[Computation]) -> bool:
        limit = stage_cost(single, constants)
        times = [stage_cost(s, constants) for s in others]
        known_times = [t for t in times if t is not None]
        return limit is not None and len(known_times) == len(times) and sum(known_times) < limit

    return decide


def stage_cost_oracle(target: Target, machine: Machine, ranges: Ranges | None = None) -> StageCost:
    """A memoised estimator of single stages on a machine.

    Symbolic sizes count as the middle of their ranges (`tile.shape_samples.representative_size`).

    Args:
        target: the target of code generation.
        machine: the machine that the stages run on.
        ranges: ranges of symbols that declare none themselves.
    """
    estimates: dict[str, float | None] = {}

    def estimate(stage: Computation, constants: frozenset[str]) -> float | None:
        if not stage.is_reduction:
            return data_movement_time(stage, machine, ranges)
        kernel = make_kernel([stage])
        size_symbols = {v for b in kernel.params for n in b.shape for v in free_vars(n)}
        symbols = tuple(sorted(size_symbols, key=lambda v: v.name))
        func: Func = lower_to_loops("stage", kernel.stages, kernel.params, symbols)
        pairs = zip(kernel.params, kernel.arguments, strict=True)
        constant_params = frozenset(p.name for p, b in pairs if b.name in constants)
        task = Task(func, constant_params, target, kernel.fusion, ShapeSamples.of(symbols, ranges))
        key = task.hash
        if key not in estimates:
            best = _best_time(Roller(machine), task)
            if best is not None and best > max(MIN_SEARCH_NS, MAX_PEAK_TIME_RATIO * _peak_time(stage, machine, ranges)):
                best = min(best, _best_time(Gensor(machine), task) or best)
            read = sum(_bytes(b) for b in stage.inputs if b.name in constants) / machine.levels[-1].gbs(machine.cores)
            estimates[key] = None if best is None else best + read
        return estimates[key]

    return estimate


def _best_time(optimizer: Roller | Gensor, task: Task) -> float | None:
    """Nanoseconds of the best program that an optimizer constructs; None where it constructs none."""
    result = optimizer.construct(task)
    return result.nanoseconds[0] if result is not None and result.programs else None


def data_movement_time(stage: Computation, machine: Machine, ranges: Ranges | None = None) -> float:
    """Nanoseconds of a stage that only moves data, on all cores.

    A written line is read first; a store whose lanes are not contiguous writes its elements one by one. The operands,
    results of the previous stage, are still in the shared cache if they and this stage's results fill at most half of
    it: the previous stage read operands, too.
    """
    read, written = sum(_bytes(b, ranges) for b in stage.inputs), _bytes(stage.output, ranges)
    caches = (x for x in machine.levels[SHARED_CACHE_LEVEL:-1] if x.bytes >= 2 * (read + written))
    source = next(caches, machine.levels[-1])
    bytes_moved = read + 2 * written
    total = bytes_moved / source.gbs(machine.cores) + machine.sync_us * 1e3
    if _is_transpose(stage):
        total += _elements(stage.output, ranges) * machine.cost.scatter_cycles / (machine.ghz * machine.cores)
    return total


def _peak_time(stage: Computation, machine: Machine, ranges: Ranges | None) -> float:
    """Nanoseconds of a contraction on all cores at peak."""
    terms = _volume([a.extent for a in (*stage.axes, *stage.reduce_axes)], ranges)
    return 2 * terms / machine.gflops(machine.cores)


def _is_transpose(stage: Computation) -> bool:
    """Whether the last axis of the results is not the last index of an operand."""
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
