"""How long programs of chains of blocks take: the instructions of all steps, what they hand on through the nearest
cache that holds it, and what lies outside once from the nearest level that holds all of it."""

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.cost.analytical import CODE, Time, caches, shared_out
from tilewright.cost.instructions import cycles
from tilewright.machine.model import Machine
from tilewright.tile.chain import ChainProgram, Rows
from tilewright.tile.columns import Columns
from tilewright.tile.features import features
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Problem
from tilewright.tile.program import Form, Sizes
from tilewright.tile.traffic import USABLE

GROUP_CYCLES = 12.0
"""Of beginning a step for another group of rows: loops of a few iterations whose ends are mispredicted now and then."""


def step_cycles(problem: Problem, form: Form, sizes: Sizes, machine: Machine) -> Numbers:
    """Cycles of a step for one group of rows, per candidate [candidate, level, axis]."""
    columns = Columns.covering(problem, sizes)
    found = features(problem, form, columns, 1)
    return cycles(problem, form, columns, found, machine) * (1.0 + CODE * found.multiply_adds) + GROUP_CYCLES


def chain_time(program: ChainProgram, machine: Machine) -> Time:
    """The time of one program, as arrays of one element."""
    work = [step_cycles(p.problem, p.form, p.array[None], machine) for p in program.steps]
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
    moved = moved_bytes(rows, problems, machine)
    parts = [(cycles * rows.groups / machine.ghz, [one * x for x in m]) for cycles, m in zip(work, moved, strict=True)]
    return shared_out(parts, one * rows.groups, one, machine)


def moved_bytes(rows: Rows, problems: Sequence[Problem], machine: Machine) -> list[list[float]]:
    """Per step the bytes that leave each level from the second one outwards.

    What lies outside moves in the first step that touches it, results back and forth; what steps hand on stays in the
    nearest cache that holds a group with all that it touches, or moves in every step that touches it.
    """
    sizes = [x.bytes / max(1, x.shared_by) * USABLE for x in caches(machine)]
    outside = float(sum(rows.outside.values()))
    group = outside / rows.groups + rows.handed
    seen: set[str] = set()
    found: list[list[float]] = []
    for p in problems:
        passing = handed = 0.0
        for o in {x.buffer: x for x in (*p.operands, *p.results)}.values():
            twice = 2.0 if o.written else 1.0
            if o.private:
                handed += twice * prod(o.shape) * o.bytes * rows.groups
            elif o.buffer not in seen:
                passing += twice * rows.outside[o.buffer]
            seen.add(o.buffer)
        # the second cache has what fits it before the program starts: earlier kernels have just used it
        found.append([
            (0.0 if outside <= size and k > 0 else passing) + (0.0 if group <= size else handed)
            for k, size in enumerate(sizes)
        ])  # fmt: skip
    return found


def chain_worth_threads(program: ChainProgram, machine: Machine) -> bool:
    """Whether a program should run on several threads; always where the number of rows is known only later."""
    return not program.rows.literal or bool(chain_time(program, machine).parallel[0] > 0)
