"""The optimizers `roller` and `gensor`: forms, states, ranking by the cost model, lowering of the best.

Reductions with lanes along results or along the reduction, and element-wise work, are tile programs; chains of blocks
that work row by row are programs of several steps (`chains.py`). Where a kernel is both, all are ranked together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.analytical import expected
from tilewright.cost.time import caches
from tilewright.loops.ir import blocks
from tilewright.machine.model import Machine
from tilewright.machine.stored import machine_for
from tilewright.optimize.cases import case_axes
from tilewright.optimize.construct.chains import best_chains, chain_problem
from tilewright.optimize.construct.descent import Descent, descents, moves_from_growth
from tilewright.optimize.construct.forms import forms
from tilewright.optimize.construct.gensor import Annealing, History, walks
from tilewright.optimize.construct.ladder import Indices
from tilewright.optimize.construct.lowering import Program, lowering
from tilewright.optimize.construct.moving import moving_forms
from tilewright.optimize.construct.roller import Path, grow
from tilewright.optimize.construct.space import Space
from tilewright.optimize.construct.walk import Walk
from tilewright.optimize.interface import Task
from tilewright.schedule.trace import Schedule
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Problem, problem_of
from tilewright.tile.program import Form, Sizes, TileProgram

LOWERED = 3
"""Programs that are tried where the best ones can't be lowered."""

KEPT_FORMS = 2
"""Forms through which walks go: those with the best programs near their greedy paths."""

SAMPLED_STATES = 256
"""States of a form that other orders of its loops compare by the times of samples: its best ones."""

SHORTER = 2
"""How often the cut of a reduction is halved or so for the other states that forms are compared by, where there are
more than are kept: programs with short cuts and large tiles are seldom reached by single steps from long ones."""

PROMISING = 1.25
"""How much longer than the best state of all a form's best one may take, so that descents begin there."""

Ranked = tuple[float, Program]
"""A program behind its nanoseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Constructed:
    """What construction found for a kernel.

    Attributes:
        programs: the best ones, best first.
        nanoseconds: what the cost model says of each.
        paths: greedy growth per form.
        histories: walks per form.
        descents: from the best recorded states on, and from where greedy growth was full.
    """

    programs: tuple[Program, ...]
    nanoseconds: tuple[float, ...]
    paths: tuple[Path, ...]
    histories: tuple[History, ...] = ()
    descents: tuple[Descent, ...] = ()

    def walk(self) -> Walk | None:
        """The walk that found the best program first, with the descent to it where it is behind one, or the descent
        behind greedy growth; None where it is no tile program, or one of greedy growth alone."""
        best = self.programs[0] if self.programs else None
        if not isinstance(best, TileProgram):
            return None
        for h in self.histories:
            if (h.space.form.lane, h.space.form.packed) == (best.form.lane, best.form.packed):
                found = _visit(h, best.array)
                if found is not None:
                    return h.walk(found[1])
        for d in self.descents:
            if d.form == best.form and (d.sizes[0] == best.array).all():
                history = next((h for h in self.histories if h.space is d.space), None)
                found = None if history is None else _visit(history, d.space.sizes(d.states[:1])[0])
                if history is not None and found is not None:
                    moves = (*history.walk(found[1], found[0]).moves, *d.moves())
                else:
                    moves = next((moves_from_growth(d, p) for p in self.paths if p.space is d.space), ())
                if moves:
                    return Walk(best.problem, best.form, moves, best.sizes)
        return None


def _visit(history: History, sizes: Sizes) -> tuple[int, int] | None:
    """The first step and walk at which sizes [level, axis] were; None where they never were."""
    states = history.states
    found = history.space.sizes(states.reshape(-1, states.shape[2])) == sizes
    places = np.argwhere(found.all(axis=(1, 2)).reshape(states.shape[:2]))
    return (int(places[0][0]), int(places[0][1])) if len(places) else None


def spaces(problem: Problem, task: Task, machine: Machine) -> dict[Space, list[Form]]:
    """One space for forms that differ only in the order of loops, which states do not depend on."""
    found: dict[tuple[object, ...], tuple[Space, list[Form]]] = {}
    choices = forms(problem, task.target, machine) if problem.reduce else moving_forms(problem, task.target)
    for form in choices:
        key = (form.lane, form.packed)
        if key not in found:
            found[key] = (Space.of(problem, form, machine), [])
        found[key][1].append(form)
    return dict(found.values())


Scored = tuple[Form, Sizes, Numbers]
"""States of a form with their nanoseconds."""


def ranked(candidates: list[Scored], problem: Problem, most: int) -> list[Ranked]:
    """The best programs among states of several forms, with their nanoseconds, best first."""
    programs: list[tuple[float, TileProgram]] = []
    for form, sizes, total in candidates:
        for k in np.argsort(total, kind="stable")[:most]:
            programs.append((float(total[k]), TileProgram.of(problem, form, sizes[k])))
    # descents from several states often end at one
    different: dict[tuple[Form, tuple[tuple[int, ...], ...]], Ranked] = {}
    for time, program in sorted(programs, key=lambda p: p[0]):
        different.setdefault((program.form, program.sizes), (time, program))
    return list(different.values())[:most]


def _constructed(
    found: list[Ranked],
    task: Task,
    machine: Machine,
    paths: tuple[Path, ...],
    histories: tuple[History, ...] = (),
    ends: tuple[Descent, ...] = (),
) -> Constructed | None:
    """The best of the tile programs that were found and of the programs of the chain that a kernel is; None without
    any."""
    chain = chain_problem(task)
    if chain is not None:
        found = sorted([*found, *best_chains(chain, task.target, machine, LOWERED)], key=lambda p: p[0])[:LOWERED]
    if not found:
        return None
    return Constructed(tuple(p for _, p in found), tuple(t for t, _ in found), paths, histories, ends)


DEFAULT = Annealing()


@dataclass(frozen=True, slots=True)
class Roller:
    """The optimizer `roller`.

    Attributes:
        machine: what is constructed for; by default the description that fits the task's target.
    """

    machine: Machine | None = None
    name: str = "roller"

    def on(self, machine: Machine) -> "Roller":
        """The same optimizer for a machine."""
        return replace(self, machine=machine)

    def construct(self, task: Task) -> Constructed | None:
        """The programs of all forms, best first; None where the kernel has none.

        Raises:
            MachineError: programs can't be constructed for the machine.
        """
        machine = self.machine or machine_for(task.target)
        caches(machine)
        problem = problem_for(task)
        if problem is None:
            return _constructed([], task, machine, ())
        found = spaces(problem, task, machine)
        paths = [grow(space) for space in found]
        ends = [(form, p.found()) for p in paths for form in found[p.space]]
        candidates = [(form, sizes, expected(problem, form, sizes, machine)) for form, sizes in ends]
        return _constructed(ranked(candidates, problem, LOWERED), task, machine, tuple(paths))

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule of the best program; None where there is none."""
        return lowered(self.construct(task), task, self.machine)


@dataclass(frozen=True, slots=True)
class Gensor:
    """The optimizer `gensor`.

    Attributes:
        machine: what is constructed for; by default the description that fits the task's target.
        annealing: how walks are made.
        seed: of what is drawn.
    """

    machine: Machine | None = None
    annealing: Annealing = DEFAULT
    seed: int = 0
    name: str = "gensor"

    def on(self, machine: Machine) -> "Gensor":
        """The same optimizer for a machine."""
        return replace(self, machine=machine)

    def construct(self, task: Task) -> Constructed | None:
        """The best states of all walks and descents, best first; None where the kernel has none.

        Raises:
            MachineError: programs can't be constructed for the machine.
        """
        machine = self.machine or machine_for(task.target)
        caches(machine)
        problem = problem_for(task)
        if problem is None:
            return _constructed([], task, machine, ())
        # walks and first descents at representative sizes: the times of samples decide between what they find
        found = spaces(replace(problem, samples=()), task, machine)
        paths = [grow(space) for space in found]
        kept, ends = paths, list[Descent]()
        if len(paths) > KEPT_FORMS and problem.samples:
            kept = _kept(sorted(paths, key=lambda p: _promise(p, found[p.space], problem)), problem)
        elif len(paths) > KEPT_FORMS:
            near_paths = [_near_path(p, found[p.space]) for p in paths]
            promise = [min(d.nanoseconds for d in listed) for listed in near_paths]
            kept = [paths[k] for k in np.argsort(promise, kind="stable")[:KEPT_FORMS]]
            ends = [d for listed in near_paths for d in listed]
        histories = [walks(p.space, self.annealing, self.seed) for p in kept]
        if problem.samples:
            ends = _at_samples(histories, found, problem)
            candidates = [_end(d) for d in ends]
        else:
            near = [_near(h, form) for h in histories for form in found[h.space]]
            ends = [*(d for _, listed in near for d in listed), *ends]
            candidates = [recorded for recorded, _ in near] + [_end(d) for d in ends]
        best = ranked(candidates, problem, LOWERED)
        return _constructed(best, task, machine, tuple(paths), tuple(histories), tuple(ends))

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule of the best program; None where there is none."""
        return lowered(self.construct(task), task, self.machine)


def problem_for(task: Task) -> Problem | None:
    """The problem that tile programs are for; cases of element-wise work that are decided while code is generated are
    left to the rule."""
    problem = problem_of(task.func, task.constants, task.samples)
    if problem is None or not problem.spatial:
        return None
    return problem if problem.reduce or not case_axes(blocks(task.func.body)[-1]) else None


def _kept(paths: list[Path], problem: Problem) -> list[Path]:
    """The first of the paths, which are in order, and the first one whose lanes are full at all sizes, if there is one:
    where sizes are symbols, tiles of the middle of their ranges tell little of what lanes beyond a small axis cost."""
    full = [p for p in paths if problem.axes[p.space.form.lane].literal]
    first = paths[:KEPT_FORMS]
    return [*first, *(p for p in full[:1] if problem.samples and all(p is not x for x in first))]


def _near_path(path: Path, forms: list[Form]) -> list[Descent]:
    """Descents from where a greedy path was full at a level, and from there with a shorter cut of the reduction."""
    ends = np.unique(path.states, axis=0)
    shorter = path.space.cut_shorter(ends, SHORTER)
    starts = [ends, shorter] if len(shorter) else [ends]
    return [d for form in forms for states in starts for d in descents(path.space, form, states)]


def _promise(path: Path, forms: list[Form], problem: Problem) -> float:
    """The time at samples of the best program near where a greedy path was full at a level, of one order of loops."""
    near = np.stack([d.states[-1] for d in descents(path.space, forms[0], path.states)])
    return float(expected(problem, forms[0], path.space.sizes(near), path.space.machine).min())


def _near(history: History, form: Form) -> tuple[Scored, tuple[Descent, ...]]:
    """The recorded states of walks, and descents from the best ones, for one order of loops."""
    space, states = history.space, history.kept()
    sizes = space.sizes(states)
    value = expected(space.problem, form, sizes, space.machine)
    return (form, sizes, value), descents(space, form, states, value)


def _at_samples(histories: list[History], forms: Mapping[Space, list[Form]], problem: Problem) -> list[Descent]:
    """Descents by the times of samples, for forms that are promising by them: from recorded states, and from where
    descents at representative sizes end."""
    found: list[tuple[Space, Form, tuple[Descent, ...], Indices, Numbers]] = []
    for history in histories:
        space, states = history.space, history.kept()
        before: tuple[Descent, ...] = ()
        for form in forms[space]:
            # other orders begin where the first one ended, too
            first = tuple(d.behind(before) for d in descents(space, form, states))
            before += first
            states = np.unique(np.concatenate([states, *(d.states[-1:] for d in first)]), axis=0)
            value = expected(problem, form, space.sizes(states), space.machine)
            # the other orders of loops compare the best states of the first one
            best = np.argsort(value, kind="stable")[:SAMPLED_STATES]
            states = states[best]
            found.append((space, form, before, states, value[best]))
    limit = PROMISING * min((float(value[0]) for *_, value in found), default=0.0)
    ends: list[Descent] = []
    for space, form, before, states, value in found:
        if value[0] <= limit:
            more = descents(replace(space, problem=problem), form, states, value)
            ends += [replace(d, space=space).behind(before) for d in more]
    return ends


def _end(d: Descent) -> Scored:
    return d.form, d.sizes, np.array([d.nanoseconds])


def lowered(found: Constructed | None, task: Task, machine: Machine | None = None) -> Schedule | None:
    """The schedule of the best program that can be lowered; None without one."""
    return None if found is None else lowering(found.programs, task, machine or machine_for(task.target)).schedule
