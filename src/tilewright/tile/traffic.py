"""How many bytes tile programs move between the levels of memory: closed formulas over arrays of candidates.

Traffic of a cache follows from the loops: a loop whose body fits it loads what it touches once in all its iterations
together, as what two iterations share stays; a loop whose body does not fit loads it in every iteration.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.tile.columns import PAGE, Columns, Loop, accesses_of, chunks, is_packed, rows, sum_of
from tilewright.tile.crowding import crowding, crowds
from tilewright.tile.footprint import Numbers, elements, moved_bytes
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import L1, L2, REGISTER, Form

USABLE = 0.75
"""The part of a cache that a program may count on; the rest is for what passes through."""


@lru_cache(maxsize=256)
def nest(problem: Problem, form: Form) -> tuple[Loop, ...]:
    """The loops, outermost first; see `tile.program`."""
    loops = [Loop(a, L2) for a in form.order] + [Loop(a, L1) for a in form.order]
    loops += [Loop(k, L1) for k in problem.reduce]
    loops += [Loop(a, REGISTER) for a in form.order] + [Loop(k, REGISTER) for k in problem.reduce]
    return tuple(loops)


def footprint(problem: Problem, form: Form, columns: Columns, level: int, line: int) -> Numbers:
    """F: bytes that a tile of a level touches."""
    return sum_of(
        moved_bytes(o, columns.tiles[level], line, is_packed(form, k)) for k, o in enumerate(accesses_of(problem))
    )


def traffic(problem: Problem, form: Form, columns: Columns, level: int, line: int) -> Numbers:
    """Q: bytes that move into a level in the whole program when every tile of it is loaded anew (Roller's figure)."""
    box = list(columns.tiles[level])
    tiles: Numbers = np.ones_like(box[0])
    for a in problem.spatial:
        tiles = tiles * np.ceil(columns.whole[a] / box[a])
    for k in problem.reduce:
        box[k] = columns.whole[k]
    read = sum_of(moved_bytes(o, box, line, is_packed(form, k)) for k, o in enumerate(problem.operands))
    return tiles * (read + sum_of(moved_bytes(o, box, line) for o in problem.results))


def cache_traffic(
    problem: Problem,
    form: Form,
    columns: Columns,
    capacities: Sequence[float],
    line: int,
    sets: Sequence[int] = (),
) -> list[Numbers]:
    """Bytes that move into each cache, for caches of these capacities, by the loops of the program. `sets` of the
    nearest caches, those where the lowest bits of an address choose the set, tell where rows crowd.

    What fits the last one as a whole is there before the program starts: earlier kernels have just used it.
    """
    loops = nest(problem, form)
    counts = [columns.count(loop) for loop in loops]
    moving = [k for k, c in enumerate(counts) if (c > 1).any()]
    loops, counts = tuple(loops[k] for k in moving), [counts[k] for k in moving]
    operands = accesses_of(problem)
    starts = [_starts(o, form, columns, line, is_packed(form, k)) if waits(problem) else 1.0
              for k, o in enumerate(operands)]  # fmt: skip
    feet = [_feet(o, loops, columns, line, is_packed(form, k)) for k, o in enumerate(operands)]
    totals = _totals(problem, form, columns)
    one_by_one = {o: not waits(problem) and abs(o.strides[form.lane]) * o.bytes >= line for o in operands}
    found: list[Numbers] = []
    for level, capacity in enumerate(capacities):
        total: Numbers = np.zeros_like(totals)
        held = [
            _crowded(o, f, loops, columns, sets[level], line)
            if level < len(sets) and not is_packed(form, k) and crowds(o, sets[level], line)
            else f
            for k, (o, f) in enumerate(zip(operands, feet, strict=True))
        ]
        sums = [sum_of(f[d] for f in held) + totals for d in range(len(loops) + 1)]
        fits = [s <= capacity * USABLE for s in sums[:-1]] + [np.ones(len(totals), np.bool_)]
        if any(one_by_one.values()):
            fits[-1] = sums[-1] <= capacity
        for o, f, start in zip(operands, feet, starts, strict=True):
            # from the inside: what one run of the loops from depth d inwards moves; between iterations of a loop
            # whose body fits everything stays that the next iteration touches again
            loaded = f[-1]
            if one_by_one[o]:
                # not even a register tile stays: every element brings its line
                loaded = np.where(fits[-1], loaded, elements(o, columns.tiles[REGISTER]) * line)
            for d in range(len(loops) - 1, -1, -1):
                loaded = np.where(fits[d + 1], f[d], loaded * counts[d])
            total = total + loaded * (2.0 if o.written else 1.0) * (start if level >= 1 else 1.0)
        found.append(total)
    if found:
        whole = sum_of(f[0] for f in feet) + totals
        found[-1] = np.where(whole <= capacities[-1] * USABLE, 0.0, found[-1])
    return found


LONG_SUM = 32
"""Terms of a sum from which on a program waits for its operands: the next sums come too late to be begun meanwhile."""


def waits(problem: Problem) -> bool:
    """Whether sums are so long that a program waits for the operands of one before it begins the next."""
    return prod(problem.axes[k].extent for k in problem.reduce) >= LONG_SUM


PAGE_START = 256.0
"""Bytes of a page that could have come while the first one does: only then they are fetched ahead."""


def _starts(operand: Operand, form: Form, columns: Columns, line: int, packed: bool) -> Numbers:
    """By what the time of far memory grows because little of a page is used while it is followed.

    What is met in a row is a register tile, and its neighbours along the innermost loop that has any.
    """
    one: Numbers = np.ones_like(columns.whole[0])
    if packed:
        return one
    last = form.order[-1]
    box = list(columns.tiles[REGISTER])
    for a in range(len(box)):
        if a not in form.order:
            box[a] = columns.tiles[L1][a]
    apart = sum_of(columns.tiles[L1][a] - columns.tiles[REGISTER][a] for a in form.order[:-1])
    box[last] = np.where(apart > 0, columns.tiles[L1][last], columns.tiles[L2][last])
    used = moved_bytes(operand, box, line) / rows(operand, box, PAGE, packed)
    return one + PAGE_START / np.clip(used, line, PAGE)


def _feet(operand: Operand, loops: Sequence[Loop], columns: Columns, line: int, packed: bool) -> list[Numbers]:
    """The footprint of an operand at every depth: of all loops, of all but the outermost, ..., of one register tile."""
    box = list(columns.whole)
    found = [moved_bytes(operand, box, line, packed)]
    for loop in loops:
        box[loop.axis] = columns.tiles[loop.level][loop.axis]
        found.append(moved_bytes(operand, box, line, packed) if operand.uses(loop.axis) else found[-1])
    return found


def _crowded(
    operand: Operand, feet: list[Numbers], loops: Sequence[Loop], columns: Columns, sets: int, line: int
) -> list[Numbers]:
    """What the footprints of an operand at every depth take of a cache with so many sets."""
    box = list(columns.whole)
    found = [feet[0] * crowding(operand, box, sets, line)]
    for loop, foot in zip(loops, feet[1:], strict=True):
        box[loop.axis] = columns.tiles[loop.level][loop.axis]
        found.append(foot * crowding(operand, box, sets, line) if operand.uses(loop.axis) else found[-1])
    return found


def _totals(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """Bytes of the totals that chunks are added to."""
    size: Numbers = np.full_like(columns.whole[0], problem.bits / 8)
    for a in problem.spatial:
        size = size * columns.tiles[L1][a]
    return np.where(chunks(form, columns) > 1, size, 0.0)
