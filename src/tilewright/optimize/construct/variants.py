"""Multi-versioning of kernels of dynamic shapes: a few programs per kernel, chosen by their regret over a grid of
shapes.

One program for all sizes is a compromise: tiles of 8 rows are wasted on a matrix of 3, lanes along a row of pixels on
a picture of 4x4. The programs that construction has met are compared on a grid of shapes by the cost model. Variants
are chosen greedily for the smallest regret over the grid, the ratio of their time to that of the best program for each
shape. Which one runs is decided in native code at every call, by the cheapest estimate for its sizes
(`run_time_cost.py`), as Vortex chooses among the candidates of its library.

Variants read a packed constant in one layout, so a model holds every weight once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from tilewright.cost.footprint import Numbers
from tilewright.expr.nodes import Expr, Var
from tilewright.loops.ir import blocks
from tilewright.optimize.construct.aliased_rows import rows_alias
from tilewright.optimize.construct.gensor import WalkBatch
from tilewright.optimize.construct.lock_step import SteppedSearch
from tilewright.optimize.construct.run_time_cost import RunTimeCost, run_time_cost, select_cheapest
from tilewright.optimize.construct.time_model import TimeModel
from tilewright.optimize.task import Task
from tilewright.tile.packing import panel_width
from tilewright.tile.problem import Problem, problems_at
from tilewright.tile.program import REGISTER, Sizes, Sketch, TileProgram
from tilewright.tile.shape_samples import value_of

DEFAULT_MAX_VARIANTS = 8
"""Programs of a kernel at most, where nothing else is said."""

MAX_VARIANTS = 64
"""The most programs that may be asked for."""

MAX_WALK_STATES = 512
"""The recorded states of a walk, the best ones of sums at representative sizes, among which variants are chosen."""

COARSE_STEP = 3
"""Every so many shapes of the grid all programs are compared, at the others only the best of these."""

CANDIDATES_PER_SHAPE = 12
"""The programs of a layout that are best at such a shape."""

REORDERED_PER_SHAPE = 24
"""The sums of a layout that are best at such a shape in one loop order, which are compared in the others, too."""

MIN_GAIN = 0.01
"""The least part of the regret by which one more variant must reduce it. For products of 768 to 3072 columns, 0.02
leaves two or three programs and a mean regret of 1.07 to 1.08, 0.01 five or six and 1.03, and 0.005 gains nothing."""

COMPETITION_POWER = 2
"""Of the best program's time over that of a program, which weighs the errors of its estimate at a shape: it must be
right where the program is a choice."""

MAX_COMPARED_LAYOUTS = 3
"""Layouts whose programs are compared by what the choice at run time makes of them."""

MIN_LAYOUT_GAIN = 0.05
"""The least part by which another layout of constants than that of the single program must reduce the regret."""

PICOSECONDS = 1e3
"""In a nanosecond."""

States = tuple[Sketch, Sizes]
"""A sketch with the sizes [candidate, level, axis] of its programs."""

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ProgramVariants:
    """The programs of a kernel and which one serves which sizes.

    Attributes:
        programs: the programs, in the order in which they were chosen.
        selector: the index of the program that runs, over the kernel's symbols.
        shapes: the shapes at which programs were compared.
        choices: the program at each of them.
        regrets: its time there, as a multiple of that of the best program for this shape.
        single: the same of the one program that is best for all shapes together.
        estimates: the time of each program over the kernel's symbols, in picoseconds.
    """

    programs: tuple[TileProgram, ...]
    selector: Expr
    shapes: tuple[Mapping[Var, int], ...]
    choices: tuple[int, ...]
    regrets: tuple[float, ...]
    single: tuple[float, ...]
    estimates: tuple[Expr, ...] = ()

    @property
    def gain(self) -> float:
        """By which factor the variants are faster than the single program, in the geometric mean over the shapes."""
        return _geomean(np.array(self.single)) / _geomean(np.array(self.regrets))


def walk_states(walks: WalkBatch, sketches: Sequence[Sketch]) -> SteppedSearch[list[States]]:
    """The recorded states of walks among which variants are chosen, in every loop order.

    Of sums these are the best ones at representative sizes in the first loop order, at which their times are known.
    """
    space, states = walks.space, walks.recorded_states()
    if space.problem.reduce and len(states) > MAX_WALK_STATES:
        nanoseconds = yield from space.nanoseconds(sketches[0], states)
        states = states[np.sort(np.argsort(nanoseconds, kind="stable")[:MAX_WALK_STATES])]
    return [(sketch, space.sizes(states)) for sketch in sketches]


def choose_variants(
    single: TileProgram,
    states: Sequence[States],
    task: Task,
    model: TimeModel,
    count: int,
    score: Callable[[Numbers], Numbers] | None = None,
) -> ProgramVariants | None:
    """The variants of a kernel; None where one program serves all shapes as well, or its sizes are static.

    Args:
        single: the program that is best for the samples of shapes together.
        states: the programs that construction has met.
        task: the kernel.
        model: predicts times.
        count: the largest number of programs.
        score: of regrets over the last axis, the shapes; the least is chosen. By default the root of the mean square.
    """
    score = score or root_mean_square
    if task.samples is None or not single.problem.samples or count < 2:
        return None
    on_grid = zip(task.samples.grid, problems_at(task.func, task.constants, task.samples.grid), strict=True)
    # shapes of equal extents are one
    distinct = {p.extents.tobytes(): (shape, p) for shape, p in on_grid if p is not None}
    if len(distinct) < 2:
        return None
    shapes, problems = (tuple(x) for x in zip(*distinct.values(), strict=True))
    own_layout = _constant_layout(single)
    groups = {k: _candidates(problems, x, model) for k, x in _by_layout(states, single.problem).items()}
    groups[own_layout] = groups[own_layout].joined(_candidates(problems, [(single.sketch, single.array[None])], model))
    best = reduce(np.minimum, [g.times.min(axis=0) for g in groups.values()])
    # relative to the layout's own best: a shape that is bad in this layout whatever runs there decides between layouts
    # alone, since its regret would outweigh what the choice of programs can change
    chosen = {k: _choose_greedily(g.times / g.times.min(axis=0), count, score) for k, g in groups.items()}
    handicaps = {k: 1.0 if k == own_layout else 1 + MIN_LAYOUT_GAIN for k in groups}
    promises = {k: _geomean(groups[k].times[x].min(axis=0) / best) * handicaps[k] for k, x in chosen.items()}
    compared = dict.fromkeys([own_layout, *sorted(groups, key=lambda k: promises[k])[:MAX_COMPARED_LAYOUTS]])
    alias = rows_alias(task.func)
    aliased = np.array([0.0 if alias is None else float(value_of(alias, x)) for x in shapes])
    sets = {k: _ServingSet.of(groups[k], chosen[k], single.problem, problems, aliased, model) for k in compared}
    layout = min(sets, key=lambda k: _geomean(sets[k].times / best) * handicaps[k])
    programs, costs, choices = sets[layout].programs, sets[layout].costs, sets[layout].choices
    regrets = sets[layout].times / best
    single_regrets = groups[own_layout].times[-1] / best
    used = sorted(set(choices.tolist()))
    if len(used) < 2 or _geomean(regrets) > _geomean(single_regrets) * (1 - MIN_GAIN):
        return None
    extents = axis_extents(task)
    return ProgramVariants(
        tuple(programs[k] for k in used),
        select_cheapest([costs[k] for k in used], extents, alias),
        shapes,
        tuple(used.index(k) for k in choices.tolist()),
        tuple(map(float, regrets)),
        tuple(map(float, single_regrets)),
        tuple(costs[k].expression(extents, PICOSECONDS, alias) for k in used),
    )


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Programs that read constants in one layout.

    Attributes:
        programs: sketch and sizes [level, axis] of each.
        times: nanoseconds [candidate, shape].
    """

    programs: tuple[tuple[Sketch, Sizes], ...]
    times: Numbers

    def joined(self, others: "_Candidates") -> "_Candidates":
        """These and others, at the same shapes."""
        return _Candidates((*self.programs, *others.programs), np.concatenate((self.times, others.times)))


@dataclass(frozen=True, slots=True)
class _ServingSet:
    """Programs of one layout with what serves which shape.

    Attributes:
        programs: the programs.
        costs: their estimates at run time.
        choices: the program whose estimate is the least, per shape.
        times: nanoseconds of the chosen program by the model, per shape.
    """

    programs: tuple[TileProgram, ...]
    costs: tuple[RunTimeCost, ...]
    choices: Positions
    times: Numbers

    @staticmethod
    def of(
        candidates: _Candidates,
        chosen: Sequence[int],
        problem: Problem,
        problems: Sequence[Problem],
        aliased: Numbers,
        model: TimeModel,
    ) -> "_ServingSet":
        """The chosen ones of some candidates, which were compared at `problems`; `aliased` is 1 where rows alias."""
        programs = tuple(TileProgram.of(problem, *candidates.programs[k]) for k in chosen)
        on_shapes = candidates.times[list(chosen)]
        weights = (on_shapes.min(axis=0) / on_shapes) ** COMPETITION_POWER
        costs = tuple(run_time_cost(p, problems, model, x, aliased) for p, x in zip(programs, weights, strict=True))
        choices = np.argmin([c.values(np.array([p.extents for p in problems]).T, aliased) for c in costs], axis=0)
        times = on_shapes[choices, np.arange(len(problems))]
        return _ServingSet(programs, costs, choices, times)


def _by_layout(states: Sequence[States], problem: Problem) -> dict[object, list[States]]:
    """Distinct states by the layouts in which their programs read constants."""
    distinct: dict[Sketch, list[Sizes]] = {}
    for sketch, sizes in states:
        distinct.setdefault(sketch, []).append(sizes)
    groups: dict[object, list[States]] = {}
    for sketch, parts in distinct.items():
        sizes = np.unique(np.concatenate(parts), axis=0)
        axes = [a for o, a in sketch.packed if problem.operands[o].constant]
        widths, group = np.unique(sizes[:, REGISTER, axes], axis=0, return_inverse=True)
        for k in range(len(widths)):
            own = sizes[group.reshape(-1) == k]
            groups.setdefault(_constant_layout(TileProgram.of(problem, sketch, own[0])), []).append((sketch, own))
    return groups


def _constant_layout(program: TileProgram) -> object:
    """The layouts in which a program reads constants: operand, axis and panel width of the packed ones."""
    constants = [(o, a) for o, a in program.sketch.packed if program.problem.operands[o].constant]
    return tuple((o, a, panel_width(program, o, a)) for o, a in constants)


def _candidates(problems: Sequence[Problem], states: Sequence[States], model: TimeModel) -> _Candidates:
    """The best programs at some of the problems, with their times at all of them."""
    coarse, fine = (replace(p[0], samples=tuple(p)) for p in (problems[::COARSE_STEP], problems))
    scored = _coarse_times(coarse, states, model)
    limits = _nth_best([t for *_, t in scored], CANDIDATES_PER_SHAPE)
    programs: list[tuple[Sketch, Sizes]] = []
    on_shapes: list[Numbers] = []
    for sketch, sizes, t in scored:
        best = np.flatnonzero((t <= limits).any(axis=0))
        if len(best):
            programs += [(sketch, sizes[k]) for k in best]
            on_shapes.append(model.sample_times(fine, sketch, sizes[best]).T)
    return _Candidates(tuple(programs), np.concatenate(on_shapes) + model.machine.cost.call_ns)


def _coarse_times(coarse: Problem, states: Sequence[States], model: TimeModel) -> list[tuple[Sketch, Sizes, Numbers]]:
    """Programs with their nanoseconds [shape, candidate]; sums that are far from the best in the first loop order are
    left out in the others. Which order copies and transposes are best in, their sizes say less about."""
    by_order: dict[object, list[States]] = {}
    for sketch, sizes in states:
        by_order.setdefault((sketch.lane, sketch.packed) if coarse.reduce else sketch, []).append((sketch, sizes))
    groups = list(by_order.values())
    firsts = [(sketch, sizes, model.sample_times(coarse, sketch, sizes)) for (sketch, sizes), *_ in groups]
    limits = _nth_best([t for *_, t in firsts], REORDERED_PER_SHAPE)
    scored: list[tuple[Sketch, Sizes, Numbers]] = []
    for first, (_, *others) in zip(firsts, groups, strict=True):
        scored.append(first)
        slow = {x.tobytes() for x in first[1][(first[2] > limits).all(axis=0)]}
        for sketch, sizes in others:
            kept = sizes[[x.tobytes() not in slow for x in sizes]]
            if len(kept):
                scored.append((sketch, kept, model.sample_times(coarse, sketch, kept)))
    return scored


def _nth_best(times: Sequence[Numbers], n: int) -> Numbers:
    """The n-th best of times [shape, candidate] at every shape [shape, 1], or the worst of fewer."""
    return np.sort(np.concatenate(times, axis=1), axis=1)[:, :n][:, -1:]


def root_mean_square(regrets: Numbers) -> Numbers:
    """Over the last axis, the shapes: between the mean regret and the worst."""
    return np.sqrt((regrets**2).mean(axis=-1))


def _geomean(regrets: Numbers) -> float:
    return float(np.exp(np.log(regrets).mean()))


def _choose_greedily(regrets: Numbers, count: int, score: Callable[[Numbers], Numbers]) -> list[int]:
    """Some of the candidates, the best single one first."""
    chosen: list[int] = []
    together = np.full(regrets.shape[1], np.inf)
    while len(chosen) < count:
        joined = np.minimum(together, regrets)
        scores = score(joined)
        best = int(scores.argmin())
        if chosen and scores[best] > score(together) * (1 - MIN_GAIN):
            break
        chosen.append(best)
        together = joined[best]
    return chosen


def axis_extents(task: Task) -> tuple[Expr, ...]:
    """The extents of the axes of the task's problem, over its symbols."""
    main = next((b for b in blocks(task.func.body) if b.init is not None), blocks(task.func.body)[-1])
    return tuple(i.extent for i in main.iters)
