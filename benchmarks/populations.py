"""Programs of one kernel by which a cost model is judged: drawn at random from the whole space, or recorded by walks.

None is chosen by what it was measured to take.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tilewright.cost.analytical import nanoseconds, times
from tilewright.cost.chain import chain_time, time_of
from tilewright.driver.offline import split_offline
from tilewright.errors import ScheduleError
from tilewright.loops.ir import Func
from tilewright.machine.model import Machine
from tilewright.machine.stored import machine_for
from tilewright.optimize.construct.chains import chain_problem, lower_chain, scored_steps, together_of
from tilewright.optimize.construct.gensor import Annealing, walks
from tilewright.optimize.construct.ladder import EDGES, NONE, Ladder
from tilewright.optimize.construct.lowering import Program
from tilewright.optimize.construct.optimizer import Ranked, problem_for, spaces
from tilewright.optimize.construct.space import Space
from tilewright.optimize.interface import Task
from tilewright.tile.chain import ChainProgram
from tilewright.tile.lower import lower
from tilewright.tile.program import Form, TileProgram, legal

WORST = 4.0
"""Recorded programs that the model takes to be this many times slower than the best are not drawn."""

MOST_DRAWN = 2000
"""Programs of a chain that are scored for the recorded ones, as the combinations of its steps are many."""

TRIES = 64
"""States that are drawn at once; those that are no programs are drawn again."""

MOST_ALIKE = 200
"""Programs that are drawn again one after the other until a space counts as exhausted."""


def func_of(program: Program, task: Task) -> Func:
    """A program's loops on one thread, without what is packed at compile time.

    Raises:
        ScheduleError: it can't be lowered.
    """
    s = lower_chain(program, task, False) if isinstance(program, ChainProgram) else lower(program, task.func, False)
    return split_offline(s.func, task.constants).func


def at_random(task: Task, count: int) -> list[Ranked]:
    """Programs drawn uniformly, each at most once: tile programs or programs of a chain where a kernel has both, then a
    form or a number of rows, then a state of it, every legal one as likely as any other.

    Args:
        task: the kernel.
        count: of programs; there are fewer where the space has fewer.

    Returns:
        Them with their predicted nanoseconds on one thread, in the order in which they were drawn.
    """
    rng = np.random.default_rng(0)
    machine = machine_for(task.target).with_cores(1)
    sources = [s for s in (_tile_source(task, machine, rng), _chain_source(task, machine, rng)) if s is not None]
    found: dict[str, Ranked] = {}
    alike = 0
    while sources and len(found) < count and alike < MOST_ALIKE:
        program = sources[int(rng.integers(len(sources)))]()
        alike += 1
        if str(program) not in found and _is_lowered(program, task):
            found[str(program)] = (_predicted(program, machine), program)
            alike = 0
    return list(found.values())


def _predicted(program: Program, machine: Machine) -> float:
    if isinstance(program, ChainProgram):
        return float(chain_time(program, machine).total[0])
    return nanoseconds(program, machine)


def _is_lowered(program: Program, task: Task) -> bool:
    try:
        func_of(program, task)
    except ScheduleError:
        return False
    return True


def _tile_source(task: Task, machine: Machine, rng: np.random.Generator) -> Callable[[], Program] | None:
    problem = problem_for(task)
    found = {} if problem is None else spaces(problem, task, machine)
    streams = [_states(space, form, rng) for space, group in found.items() for form in group]
    return (lambda: next(streams[int(rng.integers(len(streams)))])) if streams else None


def _states(space: Space, form: Form, rng: np.random.Generator) -> Iterator[TileProgram]:
    """Programs of a form without end, each legal state as likely as any other.

    Axes have their chains of sizes independently of each other; combinations that are no programs are drawn again.
    """
    chains = [reachable(ladder, int(start)) for ladder, start in zip(space.ladders, space.start(), strict=True)]
    while True:
        states = np.stack([rng.choice(c, TRIES) for c in chains], axis=1)
        sizes = space.sizes(states)
        for k in np.flatnonzero(space.possible(sizes) & legal(space.problem, form, sizes)):
            yield TileProgram.of(space.problem, form, sizes[k])


def reachable(ladder: Ladder, start: int) -> list[int]:
    """Numbers of all chains that edges lead to from one."""
    found, fresh = {start}, [start]
    while fresh:
        here = np.array([fresh.pop()] * EDGES)
        there = {int(k) for k in ladder.step_from(here, np.arange(EDGES)) if k != NONE} - found
        found |= there
        fresh += there
    return sorted(found)


def _chain_source(task: Task, machine: Machine, rng: np.random.Generator) -> Callable[[], Program] | None:
    chain = chain_problem(task)
    if chain is None:
        return None
    choices = together_of(chain)

    def drawn() -> Program:
        together = choices[int(rng.integers(len(choices)))]
        rows, steps = scored_steps(chain, task.target, machine, together)
        return ChainProgram(rows, tuple(step[int(rng.integers(len(step)))][1] for step in steps))

    return drawn


def recorded(task: Task, count: int) -> list[Ranked]:
    """Programs that walks recorded near the best one, the best one first, the others evenly over the range of predicted
    times."""
    machine = machine_for(task.target).with_cores(1)
    found = sorted([*_recorded_tiles(task, machine), *_some_chains(task, machine)], key=lambda x: x[0])
    near = [x for x in found if x[0] < WORST * found[0][0]]
    wanted = np.geomspace(near[0][0], near[-1][0], count)
    predicted = np.array([t for t, _ in near])
    picked = {0, *(int(np.abs(predicted - t).argmin()) for t in wanted)}
    others = [k for k in range(len(near)) if k not in picked]
    more = np.random.default_rng(0).choice(len(others), min(len(others), max(0, count - len(picked))), replace=False)
    return [near[k] for k in sorted({*picked, *(others[int(k)] for k in more)})]


def _recorded_tiles(task: Task, machine: Machine) -> list[Ranked]:
    problem = problem_for(task)
    if problem is None:
        return []
    found: list[Ranked] = []
    for space, forms in spaces(problem, task, machine).items():
        states = walks(space, Annealing(), 0).found()
        for form in forms:
            predicted = times(problem, form, states, machine).total
            found += [(float(t), TileProgram.of(problem, form, s)) for t, s in zip(predicted, states, strict=True)]
    return found


def _some_chains(task: Task, machine: Machine) -> list[Ranked]:
    """Random combinations of the tiles of a chain's steps."""
    chain = chain_problem(task)
    if chain is None:
        return []
    rng = np.random.default_rng(0)
    found: dict[str, Ranked] = {}
    choices = together_of(chain)
    for together in choices:
        rows, steps = scored_steps(chain, task.target, machine, together)
        for _ in range(MOST_DRAWN // len(choices)):
            drawn = [step[int(rng.integers(len(step)))] for step in steps]
            program = ChainProgram(rows, tuple(p for _, p in drawn))
            work = [np.array([t]) for t, _ in drawn]
            found[str(program)] = (float(time_of(rows, [p.problem for p in program.steps], work, machine).total[0]),
                                   program)  # fmt: skip
    return list(found.values())


POPULATIONS: Mapping[str, Callable[[Task, int], list[Ranked]]] = {"at random": at_random, "recorded": recorded}
"""Populations by name."""
