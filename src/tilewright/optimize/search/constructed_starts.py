"""Starts of a search: the programs that constructions choose for a task, and the best states on the way to them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.fusion import FusionPattern
from tilewright.machine.model import Machine
from tilewright.optimize.chains.expression import ChainTiling
from tilewright.optimize.chains.optimizer import ChainOptimizer
from tilewright.optimize.construct.optimizer import ConstructionResult, Gensor
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.measurer import Candidate
from tilewright.optimize.rule import Rule
from tilewright.optimize.search.chain_programs import ChainPrograms
from tilewright.optimize.search.program_space import ProgramId, ProgramSpace
from tilewright.optimize.task import Task
from tilewright.tile.program import TileProgram

MAX_RECORDED = 64
"""The best states of a construction that populations begin with."""

STATES_PER_SKETCH = 64
"""States of a sketch that are scored for it."""


@dataclass(frozen=True, slots=True)
class ConstructedStarts:
    """What a search begins with.

    Attributes:
        candidates: the programs that a compilation without tuning takes.
        programs: the best constructed programs, best first.
        population: the best states that construction met.
    """

    candidates: tuple[Candidate, ...] = ()
    programs: tuple[ProgramId, ...] = ()
    population: tuple[ProgramId, ...] = ()


def constructed_starts(task: Task, machine: Machine, space: ProgramSpace | None) -> ConstructedStarts:
    """The starts of a task: what `gensor` makes of it, or the rule where that does not apply.

    Args:
        task: the kernel, in canonical form.
        machine: the machine that programs are for.
        space: the programs of the task; None where it has none.
    """
    if task.fusion.pattern is FusionPattern.CHAIN:
        return _chain_starts(task, machine, space)
    optimizer = Gensor(task.machine_of_threads(machine))
    result = optimizer.construct(task)
    scheduled = optimizer.schedule_programs(result, task)
    if scheduled is None:
        rule = Rule().optimize(task)
        return ConstructedStarts() if rule is None else ConstructedStarts((Candidate(rule.trace),))
    candidates = tuple(Candidate(s.trace) for s in scheduled.schedules)
    if result is None or space is None:
        return ConstructedStarts(candidates)
    ids = [_ids(p, space) for p in result.programs]
    programs = tuple(_ranked(i, space)[0] for i in ids if i)
    return ConstructedStarts(candidates, programs, _best_states(result, space))


def _chain_starts(task: Task, machine: Machine, space: ProgramSpace | None) -> ConstructedStarts:
    """The starts of a fused chain: the best tilings by the models, or the rule where it can't be tiled."""
    optimizer = ChainOptimizer(machine=task.machine_of_threads(machine))
    result = optimizer.construct(task)
    scheduled = optimizer.schedule_programs(result, task)
    schedule = Rule().optimize(task) if scheduled is None else scheduled.schedules[0]
    candidates = () if schedule is None else (Candidate(schedule.trace),)
    family = None if space is None else space.families[0]
    if space is None or not isinstance(family, ChainPrograms):
        return ConstructedStarts(candidates)
    tilings = (x.tiling for x in result.programs[:MAX_RECORDED])
    genes = (family.genes_of_tiling(t) for t in tilings if isinstance(t, ChainTiling))
    programs = tuple(ProgramId(0, g, space.has_threads) for g in genes if g is not None)
    return ConstructedStarts(candidates, programs[:1], programs)


def _best_states(result: ConstructionResult, space: ProgramSpace) -> tuple[ProgramId, ...]:
    """The best states that walks recorded and local searches ended in, by the cost model."""
    rng = np.random.default_rng(0)
    programs: list[TileProgram] = []
    for batch in result.walk_batches:
        sizes = batch.space.sizes(batch.recorded_states())
        drawn = rng.permutation(len(sizes))[:STATES_PER_SKETCH]
        programs += [TileProgram.of(batch.space.problem, batch.space.sketch, sizes[k]) for k in drawn]
    programs += [TileProgram.of(s.space.problem, s.sketch, s.sizes[0]) for s in result.searches]
    return tuple(_ranked(list(dict.fromkeys(i for p in programs for i in _ids(p, space))), space)[:MAX_RECORDED])


def _ids(program: KernelProgram, space: ProgramSpace) -> list[ProgramId]:
    """A program on one thread and on several."""
    ids = (space.id_of(program, parallel) for parallel in ((False, True) if space.has_threads else (False,)))
    return [i for i in ids if i is not None]


def _ranked(programs: Sequence[ProgramId], space: ProgramSpace) -> list[ProgramId]:
    """Programs by the cost model, best first."""
    order = np.argsort(space.predicted_times(programs), kind="stable") if programs else []
    return [programs[int(k)] for k in order]
