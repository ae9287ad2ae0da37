"""The optimizers `roller` and `gensor`: forms, states, ranking by the cost model, lowering of the best."""

from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.analytical import times, worth_threads
from tilewright.errors import ScheduleError
from tilewright.machine.model import Machine
from tilewright.machine.stored import machine_for
from tilewright.optimize.construct.forms import forms
from tilewright.optimize.construct.gensor import Annealing, History, walks
from tilewright.optimize.construct.roller import Path, grow
from tilewright.optimize.construct.space import Space
from tilewright.optimize.construct.walk import Walk
from tilewright.optimize.interface import Task
from tilewright.schedule.trace import Schedule
from tilewright.tile.lower import lower
from tilewright.tile.problem import Problem, problem_of
from tilewright.tile.program import Form, Sizes, TileProgram

LOWERED = 3
"""Programs that are tried where the best ones can't be lowered."""

KEPT_FORMS = 2
"""Forms through which walks go: those whose greedy programs are the best."""


@dataclass(frozen=True, slots=True, eq=False)
class Constructed:
    """What construction found for a problem.

    Attributes:
        programs: the best ones, best first.
        nanoseconds: what the cost model says of each.
        paths: greedy growth per form.
        histories: walks per form.
    """

    programs: tuple[TileProgram, ...]
    nanoseconds: tuple[float, ...]
    paths: tuple[Path, ...]
    histories: tuple[History, ...] = ()

    def walk(self) -> Walk | None:
        """The walk that found the best program first; None where no walk did."""
        if not self.programs:
            return None
        best = self.programs[0]
        for h in self.histories:
            form = h.space.form
            if (form.lane, form.packed) != (best.form.lane, best.form.packed):
                continue
            count = h.states.shape[1]
            sizes = h.space.sizes(h.states.reshape(-1, h.states.shape[2]))
            same = (sizes == best.array).all(axis=(1, 2)).reshape(-1, count)
            if same.any():
                return h.walk(int(np.argwhere(same)[0][1]))
        return None


def spaces(problem: Problem, task: Task, machine: Machine) -> dict[Space, list[Form]]:
    """One space for forms that differ only in the order of loops, which states do not depend on."""
    found: dict[tuple[object, ...], tuple[Space, list[Form]]] = {}
    for form in forms(problem, task.target, machine):
        key = (form.lane, form.packed)
        if key not in found:
            found[key] = (Space.of(problem, form, machine), [])
        found[key][1].append(form)
    return dict(found.values())


def ranked(candidates: list[tuple[Form, Sizes]], problem: Problem, machine: Machine, most: int) -> Constructed:
    """The best programs among states of several forms."""
    programs: list[tuple[float, int, TileProgram]] = []
    for form, sizes in candidates:
        total = times(problem, form, sizes, machine).total
        for k in np.argsort(total, kind="stable")[:most]:
            chain = tuple(tuple(int(x) for x in level) for level in sizes[k])
            program = TileProgram(problem, form, chain)
            programs.append((float(total[k]), len(programs), program))
    programs.sort(key=lambda p: p[:2])
    return Constructed(tuple(p for _, _, p in programs[:most]), tuple(t for t, _, _ in programs[:most]), ())


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
        """The programs of all forms, best first; None where the kernel has no problem."""
        problem = _problem(task)
        if problem is None:
            return None
        machine = self.machine or machine_for(task.target)
        found = spaces(problem, task, machine)
        paths = [grow(space) for space in found]
        candidates = [(form, p.found()) for p in paths for form in found[p.space]]
        best = ranked(candidates, problem, machine, LOWERED)
        return Constructed(best.programs, best.nanoseconds, tuple(paths))

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
        """The best states of all walks, best first; None where the kernel has no problem."""
        problem = _problem(task)
        if problem is None:
            return None
        machine = self.machine or machine_for(task.target)
        found = spaces(problem, task, machine)
        paths = [grow(space) for space in found]
        kept = sorted(paths, key=lambda p: _greedy(p, found[p.space], problem, machine))[:KEPT_FORMS]
        histories = [walks(p.space, self.annealing, self.seed) for p in kept]
        candidates = [(form, h.found()) for h in histories for form in found[h.space]]
        best = ranked(candidates, problem, machine, LOWERED)
        return Constructed(best.programs, best.nanoseconds, tuple(paths), tuple(histories))

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule of the best program; None where there is none."""
        return lowered(self.construct(task), task, self.machine)


def _problem(task: Task) -> Problem | None:
    problem = problem_of(task.func, task.constants)
    return problem if problem is not None and problem.reduce and problem.spatial else None


def _greedy(path: Path, forms: list[Form], problem: Problem, machine: Machine) -> float:
    """The time of the best program of a greedy path."""
    return min(float(times(problem, form, path.found(), machine).total[0]) for form in forms)


def lowered(found: Constructed | None, task: Task, machine: Machine | None = None) -> Schedule | None:
    """The schedule of the best program that can be lowered; its loops are parallel where that pays on the machine."""
    if found is None:
        return None
    machine = machine or machine_for(task.target)
    for program in found.programs:
        try:
            return lower(program, task.func, worth_threads(program, machine))
        except ScheduleError:
            continue
    return None
