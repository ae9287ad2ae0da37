"""How long programs of chains of blocks take: the instructions of all steps, what they hand on through the nearest
cache that holds it, and what lies outside once from the nearest level that holds all of it."""

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.cost.analytical import CODE
from tilewright.cost.instructions import cycles
from tilewright.cost.time import Time, caches, missing, shared_out
from tilewright.machine.model import Machine
from tilewright.tile.chain import ChainProgram, Rows
from tilewright.tile.columns import Columns
from tilewright.tile.family import Family
from tilewright.tile.features import features
from tilewright.tile.following import begins_anywhere, page_starts, waits
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import REGISTER, Form, Sizes

KEPT_NEAR = 0.5
"""The part of the first cache in which a step finds what it touches of a group, as what lies outside passes through it:
groups of planes that take two thirds of it, nine tenths, and a quarter more than all of it take 1.1, 1.25 and 1.4 times
as long per plane as those of a sixth."""

GROUP_CYCLES = 6.0
"""Of beginning a step for another group of rows: loops of a few iterations whose ends are mispredicted now and then."""

PARTED = 0.25
"""Of the latency of the level behind the second cache, what a store of a part of a row waits: windows of 144 planes of
56 x 56 on one core take 290 us in tiles of one row of 16 lanes, 390, 420 and 470 us in tiles of 2, 3 and 5."""

STORE_BUFFER = 64
"""Stores that wait for the first cache."""

BLOCKED_CYCLES = 19.0
"""Of waiting for one of them."""


def group_cycles(problem: Problem, form: Form, sizes: Sizes, rows: Rows, machine: Machine) -> Numbers:
    """Cycles of a step for one group of rows, per candidate [candidate, level, axis]."""
    columns = Columns.covering(Family.of(problem), sizes)
    found = features(problem, form, columns)
    spent = cycles(problem, form, columns, found, machine) * (1.0 + CODE * found.multiply_adds) + GROUP_CYCLES
    return spent + _blocked(problem, form) + _parted(problem, form, sizes, rows, machine)


def _parted(problem: Problem, form: Form, sizes: Sizes, rows: Rows, machine: Machine) -> Numbers:
    """Cycles that a window's stores wait for lines that no near cache holds, where register tiles store parts of
    several rows in turns and rows begin anywhere in lines: a store needs two of them then, and the next one waits for
    both. Whole rows, and parts of one row, follow each other; of how many rows, beyond one, is left out."""
    near = caches(machine)
    away = missing(float(sum(rows.outside.values())), near[min(1, len(near) - 1)].share)
    wait = PARTED * machine.levels[min(2, len(machine.levels) - 1)].latency_ns * machine.ghz * away
    spent: Numbers = np.zeros(len(sizes))
    for o in problem.results:
        if o.private or not o.written or not o.uses(form.lane):
            continue
        if not begins_anywhere(o, near[0].line, form.lanes * o.bytes).any():
            continue
        others = [a for a in problem.spatial if a != form.lane and o.uses(a)]
        width, extent = sizes[:, REGISTER, form.lane], problem.axes[form.lane].extent
        several = (sizes[:, REGISTER, others].prod(axis=1) > 1) & (width < extent)
        parts = prod(problem.axes[a].extent for a in others) * np.ceil(extent / width)
        spent = spent + np.where(several, parts * wait, 0.0)
    return spent


def _blocked(problem: Problem, form: Form) -> float:
    """Cycles that windows wait for rows that the step before has just stored, where rows are shorter than vectors: a
    load spans several stores, and must wait until they have left the store buffer. That of a short group holds all."""
    handed = [o for o in problem.operands if o.private and o.uses(form.lane) and any(map(o.uses, problem.reduce))]
    stores = sum(prod(o.shape[:-1]) for o in handed if o.shape[-1] < form.lanes)
    return 0.0 if form.lane in problem.reduce or stores > STORE_BUFFER else stores * BLOCKED_CYCLES


def chain_time(program: ChainProgram, machine: Machine) -> Time:
    """The time of one program, as arrays of one element."""
    work = [group_cycles(p.problem, p.form, p.array[None], program.rows, machine) for p in program.steps]
    return time_of(program.rows, [p.problem for p in program.steps], work, machine)


def time_of(rows: Rows, problems: Sequence[Problem], work: Sequence[Numbers], machine: Machine) -> Time:
    """The times of programs that cut rows alike.

    Args:
        rows: how they do.
        problems: of the steps, for one group of rows.
        work: per step the cycles for one group, per program.
        machine: where they run.
    """
    one = np.ones_like(work[0])
    moved = step_bytes(rows, problems, machine)
    parts = [(cycles * rows.groups / machine.ghz, [one * x for x in m]) for cycles, m in zip(work, moved, strict=True)]
    return shared_out(parts, one * rows.groups, one, machine, streaming=True)


def step_bytes(rows: Rows, problems: Sequence[Problem], machine: Machine) -> list[list[float]]:
    """Per step the bytes that leave each level from the second one outwards.

    What lies outside moves in the first step that touches it, results back and forth; what steps hand on stays in a
    cache as far as that holds all that a step touches in a group, or moves in every step.
    """
    near = caches(machine)
    outside = float(sum(rows.outside.values()))
    seen: set[str] = set()
    found: list[list[float]] = []
    for p in problems:
        touched = {x.buffer: x for x in (*p.operands, *p.results)}.values()
        first = [o for o in touched if not o.private and o.buffer not in seen]
        seen.update(o.buffer for o in first)
        live = sum(prod(o.shape) * o.bytes / (1 if o.private else rows.groups) for o in touched)
        handed = sum((2.0 if o.written else 1.0) * prod(o.shape) * o.bytes * rows.groups for o in touched if o.private)
        moved: list[float] = []
        for k, x in enumerate(near):
            away = missing(outside, x.share)
            passing = sum(rows.outside[o.buffer] * (_away(p, o, away, x.line) if k else 2.0 if o.written else 1.0)
                          for o in first)  # fmt: skip
            moved.append(passing + handed * (_lost(live, x.share) if k else _lost_near(live, x.share)))
        found.append(moved)
    return found


def _lost(live: float, capacity: float) -> float:
    """The part of what is handed on that a cache behind the first one has lost: as it is written and read from first to
    last, one that is a little too small loses most of it."""
    return min(1.0, 2.0 * missing(live, capacity))


def _lost_near(live: float, capacity: float) -> float:
    """The part that the first cache has lost: the more of it a group takes, the more, long before it is full."""
    return max(0.0, 1.0 - KEPT_NEAR * capacity / max(1.0, live))


def _away(problem: Problem, operand: Operand, away: float, line: int) -> float:
    """By what an operand's bytes count in levels behind a cache that misses this part of what lies outside.

    A long sum waits for them as that of a tile program does, at the start of every page, and it reads them from first
    to last, as they were written: a cache that is a little too small has lost most of them.
    """
    if operand.written:
        return 2.0 * away
    if not waits(problem):
        return away
    group = [np.array([float(a.extent)]) for a in problem.axes]
    return min(1.0, 2.0 * away) * float(page_starts(operand, group, line)[0])


def chain_worth_threads(program: ChainProgram, machine: Machine) -> bool:
    """Whether a program should run on several threads; always where the number of rows is known only later."""
    return not program.rows.literal or bool(chain_time(program, machine).parallel[0] > 0)
