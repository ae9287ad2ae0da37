"""Populations of programs that a cost model is judged by: uniform samples of the space, and states recorded by walks.

No program is selected by its measured time.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tilewright.cost.analytical import program_time, program_times
from tilewright.cost.rowwise import rowwise_time, rowwise_times
from tilewright.errors import ScheduleError
from tilewright.loops.ir import Func
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.optimize.construct.gensor import Annealing, run_walks
from tilewright.optimize.construct.optimizer import RankedProgram, problem_for, search_spaces
from tilewright.optimize.construct.program_tree import KernelProgram, lower_kernel_program
from tilewright.optimize.construct.rowwise_programs import (
    rows_per_block_options,
    rowwise_problem,
    scored_stages,
)
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import NO_EDGE, NUM_EDGES, AxisLattice
from tilewright.optimize.task import Task
from tilewright.tile.program import Sketch, TileProgram, is_legal
from tilewright.tile.rowwise import RowwiseProgram

MAX_PREDICTED_RATIO = 4.0
"""Largest predicted time of a recorded program, relative to the best."""

MAX_SCORED_COMBINATIONS = 2000
"""Limit of the row-wise programs that are scored, as the steps have many combinations."""

DRAWS_PER_BATCH = 64
"""States per batch of draws; illegal ones are drawn again."""

MAX_REPEATED_DRAWS = 200
"""Consecutive draws of known programs after which the space counts as exhausted."""


def lowered_func(program: KernelProgram, task: Task) -> Func:
    """A program's single-threaded loops without the packing of constants.

    Raises:
        ScheduleError: it can't be lowered.
    """
    return prepack_constants(lower_kernel_program(program, task, False).func, task.constants).func


def sample_uniformly(task: Task, count: int) -> list[RankedProgram]:
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
    sources = [s for s in (_tile_source(task, machine, rng), _rowwise_source(task, machine, rng)) if s is not None]
    programs: dict[str, RankedProgram] = {}
    repeated_draws = 0
    while sources and len(programs) < count and repeated_draws < MAX_REPEATED_DRAWS:
        program = sources[int(rng.integers(len(sources)))]()
        repeated_draws += 1
        if str(program) not in programs and _can_lower(program, task):
            programs[str(program)] = (_predicted_time(program, machine), program)
            repeated_draws = 0
    return list(programs.values())


def _predicted_time(program: KernelProgram, machine: Machine) -> float:
    if isinstance(program, RowwiseProgram):
        return float(rowwise_time(program, machine).total[0])
    return program_time(program, machine)


def _can_lower(program: KernelProgram, task: Task) -> bool:
    try:
        lowered_func(program, task)
    except ScheduleError:
        return False
    return True


def _tile_source(task: Task, machine: Machine, rng: np.random.Generator) -> Callable[[], KernelProgram] | None:
    problem = problem_for(task)
    sketches = {} if problem is None else search_spaces(problem, task, machine)
    streams = [_random_programs(space, form, rng) for space, group in sketches.items() for form in group]
    return (lambda: next(streams[int(rng.integers(len(streams)))])) if streams else None


def _random_programs(space: SearchSpace, form: Sketch, rng: np.random.Generator) -> Iterator[TileProgram]:
    """An endless stream of programs of a sketch, uniform over the legal states.

    Axes have their chains of sizes independently of each other; combinations that are no programs are drawn again.
    """
    chains = [
        reachable_tile_sizes(ladder, int(start))
        for ladder, start in zip(space.lattices, space.initial_state(), strict=True)
    ]
    while True:
        states = np.stack([rng.choice(c, DRAWS_PER_BATCH) for c in chains], axis=1)
        sizes = space.sizes(states)
        for k in np.flatnonzero(space.are_lowerable(sizes) & is_legal(space.problem, form, sizes)):
            yield TileProgram.of(space.problem, form, sizes[k])


def reachable_tile_sizes(ladder: AxisLattice, start: int) -> list[int]:
    """Indices of all tile sizes that edges reach from a start."""
    reached, fresh = {start}, [start]
    while fresh:
        here = np.array([fresh.pop()] * NUM_EDGES)
        there = {int(k) for k in ladder.successor(here, np.arange(NUM_EDGES)) if k != NO_EDGE} - reached
        reached |= there
        fresh += there
    return sorted(reached)


def _rowwise_source(task: Task, machine: Machine, rng: np.random.Generator) -> Callable[[], KernelProgram] | None:
    chain = rowwise_problem(task)
    if chain is None:
        return None
    choices = rows_per_block_options(chain)

    def drawn() -> KernelProgram:
        together = choices[int(rng.integers(len(choices)))]
        rows, steps = scored_stages(chain, task.target, machine, together)
        return RowwiseProgram(rows, tuple(step[int(rng.integers(len(step)))][1] for step in steps))

    return drawn


def sample_recorded(task: Task, count: int) -> list[RankedProgram]:
    """Programs that walks recorded near the best one, the best one first, the others evenly over the range of predicted
    times."""
    machine = machine_for(task.target).with_cores(1)
    ranked = sorted([*_recorded_tiles(task, machine), *_sample_rowwise(task, machine)], key=lambda x: x[0])
    candidates = [x for x in ranked if x[0] < MAX_PREDICTED_RATIO * ranked[0][0]]
    targets = np.geomspace(candidates[0][0], candidates[-1][0], count)
    predicted = np.array([t for t, _ in candidates])
    picked = {0, *(int(np.abs(predicted - t).argmin()) for t in targets)}
    others = [k for k in range(len(candidates)) if k not in picked]
    more = np.random.default_rng(0).choice(len(others), min(len(others), max(0, count - len(picked))), replace=False)
    return [candidates[k] for k in sorted({*picked, *(others[int(k)] for k in more)})]


def _recorded_tiles(task: Task, machine: Machine) -> list[RankedProgram]:
    problem = problem_for(task)
    if problem is None:
        return []
    ranked: list[RankedProgram] = []
    for space, forms in search_spaces(problem, task, machine).items():
        states = run_walks(space, Annealing(), 0).recorded_sizes()
        for form in forms:
            predicted = program_times(problem, form, states, machine).total
            ranked += [(float(t), TileProgram.of(problem, form, s)) for t, s in zip(predicted, states, strict=True)]
    return ranked


def _sample_rowwise(task: Task, machine: Machine) -> list[RankedProgram]:
    """Random combinations of the tile programs of a row-wise kernel's steps."""
    chain = rowwise_problem(task)
    if chain is None:
        return []
    rng = np.random.default_rng(0)
    ranked: dict[str, RankedProgram] = {}
    choices = rows_per_block_options(chain)
    for together in choices:
        rows, steps = scored_stages(chain, task.target, machine, together)
        for _ in range(MAX_SCORED_COMBINATIONS // len(choices)):
            drawn = [step[int(rng.integers(len(step)))] for step in steps]
            program = RowwiseProgram(rows, tuple(p for _, p in drawn))
            work = [np.array([t]) for t, _ in drawn]
            ranked[str(program)] = (float(rowwise_times(rows, [p.problem for p in program.stages], work,
            machine).total[0]),
                                   program)  # fmt: skip
    return list(ranked.values())


POPULATIONS: Mapping[str, Callable[[Task, int], list[RankedProgram]]] = {
    "at random": sample_uniformly,
    "recorded": sample_recorded,
}
"""Populations by name."""
