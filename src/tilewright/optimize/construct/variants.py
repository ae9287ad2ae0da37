"""Variants of a kernel whose sizes are symbols: a few programs that serve its ranges together, and which one serves
which sizes.

One program for all sizes is a compromise: tiles of 8 rows are wasted on a matrix of 3, lanes along a row of pixels on
a picture of 4x4. The programs that construction has met are compared on a grid of shapes by the cost model. Variants
are chosen greedily for the smallest regret over the grid, the ratio of their time to that of the best program for each
shape (Vortex compares the candidates of its library by its analyser in the same way, section 4 of its paper). Which
shape gets which is a decision tree over the kernel's sizes, which native code evaluates at every call.

Variants read a packed constant in one layout, so a model holds every weight once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import isqrt
from operator import mul

import numpy as np
import numpy.typing as npt

from tilewright.cost.analytical import sample_times
from tilewright.cost.footprint import Numbers
from tilewright.expr.nodes import Const, Expr, Var, const
from tilewright.expr.operations import select
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import blocks
from tilewright.machine.model import Machine
from tilewright.optimize.task import Task
from tilewright.tile.packing import panel_width
from tilewright.tile.problem import Problem, problems_at
from tilewright.tile.program import REGISTER, Sizes, Sketch, TileProgram
from tilewright.tile.shape_samples import value_of

DEFAULT_MAX_VARIANTS = 8
"""Programs of a kernel at most, where nothing else is said."""

MAX_VARIANTS = 64
"""The most programs that may be asked for."""

COARSE_STEP = 3
"""Every so many shapes of the grid all programs are compared, at the others only the best of these."""

CANDIDATES_PER_SHAPE = 12
"""The programs of a layout that are best at such a shape."""

REGRET_POWER = 2
"""Exponent of the power mean of regrets over shapes: between their mean and the worst."""

MIN_GAIN = 0.02
"""The least part of its regret by which one more variant, or one more comparison, must reduce it."""

MAX_DEPTH = 3
"""Comparisons in a row that decide which variant runs."""

States = tuple[Sketch, Sizes]
"""A sketch with the sizes [candidate, level, axis] of its programs."""

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ProgramVariants:
    """The programs of a kernel and which one serves which sizes.

    Attributes:
        programs: the programs; the first is the best for all shapes together.
        selector: the index of the program that runs, over the kernel's symbols.
        shapes: the shapes at which programs were compared.
        choices: the program at each of them.
        regrets: its time there, as a multiple of that of the best program for this shape.
        single: the same of the one program that is best for all shapes together.
    """

    programs: tuple[TileProgram, ...]
    selector: Expr
    shapes: tuple[Mapping[Var, int], ...]
    choices: tuple[int, ...]
    regrets: tuple[float, ...]
    single: tuple[float, ...]

    @property
    def gain(self) -> float:
        """By which factor the variants are faster than the single program, in the geometric mean over the shapes."""
        return float(np.exp(np.mean(np.log(self.single) - np.log(self.regrets))))


def choose_variants(
    problem: Problem, states: Sequence[States], task: Task, machine: Machine, count: int
) -> ProgramVariants | None:
    """The variants of a kernel; None where one program serves all shapes as well, or its sizes are static.

    Args:
        problem: the kernel's problem at its representative shape, with those at sampled shapes.
        states: the programs that construction has met.
        task: the kernel.
        machine: the machine.
        count: the largest number of programs.
    """
    if task.samples is None or not problem.samples or count < 2:
        return None
    on_grid = zip(task.samples.grid, problems_at(task.func, task.constants, task.samples.grid), strict=True)
    # shapes of equal extents are one
    distinct = {p.extents.tobytes(): (shape, p) for shape, p in on_grid if p is not None}
    shapes, problems = (tuple(x) for x in zip(*distinct.values(), strict=True)) if distinct else ((), ())
    if len(shapes) < 2:
        return None
    groups = [_candidates(problems, x, machine) for x in _by_layout(states, problem).values()]
    best = reduce(np.minimum, [g.times.min(axis=0) for g in groups])
    chosen_by_group = [_choose(g.times / best, count) for g in groups]
    group, (chosen, _) = min(zip(groups, chosen_by_group, strict=True), key=lambda x: _power_mean(x[1][1]))
    regrets = (group.times / best)[chosen]
    features = _features(task)
    values = np.array([[value_of(f, shape) for f in features] for shape in shapes])
    decision = _split(_Comparisons(features, values, regrets), np.arange(len(shapes)), MAX_DEPTH)
    used = [k for k in range(len(chosen)) if k in _leaves(decision)]
    if len(used) < 2:
        return None
    programs = (TileProgram.of(problem, *group.programs[chosen[k]]) for k in used)
    selector = _selector(decision, used)
    choices = tuple(value_of(selector, shape) for shape in shapes)
    ratios = (float(regrets[used[v], k]) for k, v in enumerate(choices))
    single = min((g.times / best for g in groups), key=lambda x: float((x**REGRET_POWER).mean(axis=1).min()))
    single = single[int((single**REGRET_POWER).mean(axis=1).argmin())]
    return ProgramVariants(tuple(programs), selector, shapes, choices, tuple(ratios), tuple(map(float, single)))


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Programs that read constants in one layout.

    Attributes:
        programs: sketch and sizes [level, axis] of each.
        times: nanoseconds [candidate, shape].
    """

    programs: tuple[tuple[Sketch, Sizes], ...]
    times: Numbers


def _by_layout(states: Sequence[States], problem: Problem) -> dict[object, list[States]]:
    """Distinct states by the layouts in which their programs read constants."""
    distinct: dict[Sketch, list[Sizes]] = {}
    for sketch, sizes in states:
        distinct.setdefault(sketch, []).append(sizes)
    groups: dict[object, list[States]] = {}
    for sketch, parts in distinct.items():
        sizes = np.unique(np.concatenate(parts), axis=0)
        packed = [(o, a) for o, a in sketch.packed if problem.operands[o].constant]
        widths, group = np.unique(sizes[:, REGISTER, [a for _, a in packed]], axis=0, return_inverse=True)
        for k in range(len(widths)):
            own = sizes[group.reshape(-1) == k]
            program = TileProgram.of(problem, sketch, own[0])
            layout = tuple((o, a, panel_width(program, o, a)) for o, a in packed)
            groups.setdefault(layout, []).append((sketch, own))
    return groups


def _candidates(problems: Sequence[Problem], states: Sequence[States], machine: Machine) -> _Candidates:
    """The best programs at some of the problems, with their times at all of them."""
    coarse, fine = (replace(p[0], samples=tuple(p)) for p in (problems[::COARSE_STEP], problems))
    times = [sample_times(coarse, sketch, sizes, machine) for sketch, sizes in states]
    limits = np.sort(np.concatenate(times, axis=1), axis=1)[:, :CANDIDATES_PER_SHAPE][:, -1:]
    programs: list[tuple[Sketch, Sizes]] = []
    on_shapes: list[Numbers] = []
    for (sketch, sizes), t in zip(states, times, strict=True):
        best = np.flatnonzero((t <= limits).any(axis=0))
        if len(best):
            programs += [(sketch, sizes[k]) for k in best]
            on_shapes.append(sample_times(fine, sketch, sizes[best], machine).T)
    return _Candidates(tuple(programs), np.concatenate(on_shapes) + machine.cost.call_ns)


def _power_mean(regrets: Numbers) -> float:
    return float((regrets**REGRET_POWER).mean() ** (1 / REGRET_POWER))


def _choose(regrets: Numbers, count: int) -> tuple[list[int], Numbers]:
    """Some of the candidates, the best single one first, and their regrets together [shape]."""
    chosen: list[int] = []
    together = np.full(regrets.shape[1], np.inf)
    while len(chosen) < count:
        joined = np.minimum(together, regrets)
        scores = (joined**REGRET_POWER).mean(axis=1) ** (1 / REGRET_POWER)
        best = int(scores.argmin())
        if chosen and scores[best] > _power_mean(together) * (1 - MIN_GAIN):
            break
        chosen.append(best)
        together = joined[best]
    return chosen, together


def _features(task: Task) -> tuple[Expr, ...]:
    """The sizes that the decision may depend on: extents of the main block that are not static, and their product."""
    main = next((b for b in blocks(task.func.body) if b.init is not None), blocks(task.func.body)[-1])
    extents = tuple(dict.fromkeys(i.extent for i in main.iters if not isinstance(i.extent, Const)))
    symbols = tuple(v for v in task.func.symbols if any(v in free_vars(e) for e in extents))
    product = () if len(extents) < 2 else (reduce(mul, extents),)
    return tuple(dict.fromkeys((*extents, *symbols, *product)))


@dataclass(frozen=True, slots=True)
class _Comparisons:
    """What decides between variants.

    Attributes:
        features: sizes that may be compared.
        values: of the features [shape, feature].
        regrets: of the variants [variant, shape].
    """

    features: tuple[Expr, ...]
    values: Positions
    regrets: Numbers


@dataclass(frozen=True, slots=True)
class _Split:
    """A comparison: sizes up to a limit are decided by one branch, larger ones by the other."""

    feature: Expr
    limit: int
    then: "_Decision"
    otherwise: "_Decision"


_Decision = _Split | int
"""A decision tree; its leaves are positions of variants."""


def _split(over: _Comparisons, shapes: Positions, depth: int) -> _Decision:
    """The decision for some of the shapes, by at most `depth` comparisons in a row."""
    powers = over.regrets[:, shapes] ** REGRET_POWER
    leaf = int(powers.sum(axis=1).argmin())
    best = float(powers[leaf].sum()) * (1 - MIN_GAIN) ** REGRET_POWER
    place: tuple[int, int] | None = None
    for f in range(len(over.features)) if depth else ():
        order = np.argsort(over.values[shapes, f], kind="stable")
        ordered, below = over.values[shapes[order], f], np.cumsum(powers[:, order], axis=1)
        for k in np.flatnonzero(ordered[1:] > ordered[:-1]):
            score = float(below[:, k].min() + (below[:, -1] - below[:, k]).min())
            if score < best:
                best, place = score, (f, _limit(int(ordered[k]), int(ordered[k + 1])))
    if place is None:
        return leaf
    f, limit = place
    is_below = over.values[shapes, f] <= limit
    then, otherwise = (_split(over, shapes[x], depth - 1) for x in (is_below, ~is_below))
    return then if then == otherwise else _Split(over.features[f], limit, then, otherwise)


def _limit(below: int, above: int) -> int:
    """The largest size on the lower side of a boundary between two shapes: tiles that fit the lower one are wasted
    beyond it, so the boundary is close to it, unless the two are far apart."""
    return below if above <= below + below // 4 + 2 else isqrt(below * above)


def _leaves(decision: _Decision) -> set[int]:
    return {decision} if isinstance(decision, int) else _leaves(decision.then) | _leaves(decision.otherwise)


def _selector(decision: _Decision, used: Sequence[int]) -> Expr:
    """A decision as an expression whose value is a position among the used variants."""
    if isinstance(decision, int):
        return const(used.index(decision))
    then, otherwise = (_selector(x, used) for x in (decision.then, decision.otherwise))
    return select(decision.feature <= decision.limit, then, otherwise)
