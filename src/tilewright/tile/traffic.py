"""How many bytes tile programs move between the levels of memory: closed formulas over arrays of candidates.

Traffic of a cache follows from the loops: a loop whose body fits it loads what it touches once in all its iterations
together, as what two iterations share stays; a loop whose body does not fit loads it in every iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.tile.columns import PAGE, Columns, Loop, accesses_of, chunks, is_packed, rows, sum_of
from tilewright.tile.crowding import crowding, crowds
from tilewright.tile.footprint import Numbers, elements, moved_bytes
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import L1, L2, REGISTER, Form, Mask

USABLE = 0.75
"""The part of a cache that a program may count on; the rest is for what passes through."""


@lru_cache(maxsize=256)
def nest(problem: Problem, form: Form) -> tuple[Loop, ...]:
    """The loops, outermost first; see `tile.program`."""
    loops = [Loop(a, L2) for a in form.order] + [Loop(a, L1) for a in form.order]
    loops += [Loop(k, L1) for k in problem.reduce]
    loops += [Loop(a, REGISTER) for a in form.order] + [Loop(k, REGISTER) for k in problem.reduce]
    return tuple(loops)


@dataclass(frozen=True, slots=True)
class Feet:
    """What is touched at every depth of the loops that a program stands for; loops that no candidate has are left out.

    Attributes:
        loops: outermost first.
        counts: iterations of each.
        boxes: sizes per axis [depth, candidate] at every depth: of all loops, of all but the outermost, ..., of one
            register tile.
        operands: per access its bytes in whole lines [depth, candidate].
    """

    loops: tuple[Loop, ...]
    counts: tuple[Numbers, ...]
    boxes: tuple[Numbers, ...]
    operands: tuple[Numbers, ...]

    @staticmethod
    def of(problem: Problem, form: Form, columns: Columns, line: int) -> "Feet":
        """Those of candidates."""
        met = [(loop, columns.count(loop)) for loop in nest(problem, form)]
        met = [(loop, count) for loop, count in met if (count > 1).any()]
        box = list(columns.whole)
        depths = [tuple(box)]
        for loop, _ in met:
            box[loop.axis] = columns.tiles[loop.level][loop.axis]
            depths.append(tuple(box))
        # all depths at once: formulas cost as much for few numbers as for many
        boxes = tuple(np.array(sizes) for sizes in zip(*depths, strict=True))
        feet = [moved_bytes(o, boxes, line, is_packed(form, k)) for k, o in enumerate(accesses_of(problem))]
        return Feet(tuple(loop for loop, _ in met), tuple(count for _, count in met), boxes, tuple(feet))


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
    known: Feet | None = None,
) -> list[Numbers]:
    """Bytes that move into each cache, for caches of these capacities, by the loops of the program. `sets` of the
    nearest caches, those where the lowest bits of an address choose the set, tell where rows crowd; `known` saves
    counting what is touched.

    What fits the last one as a whole is there before the program starts: earlier kernels have just used it.
    """
    known = known or Feet.of(problem, form, columns, line)
    counts, feet = known.counts, known.operands
    operands = accesses_of(problem)
    starts = [_met(o, problem, form, columns, line) if used_once(problem)
              else _starts(o, form, columns, line, is_packed(form, k)) if waits(problem)
              else _stored(o, form, columns, line) if o.written else _fetched(o, form, columns, line)
              for k, o in enumerate(operands)]  # fmt: skip
    totals = _totals(problem, form, columns)
    one_by_one = {o: not waits(problem) and abs(o.strides[form.lane]) * o.bytes >= line for o in operands}
    kept: list[Mask] = []
    for level, capacity in enumerate(capacities):
        held = [
            f * crowding(o, known.boxes, sets[level], line)
            if level < len(sets) and not is_packed(form, k) and crowds(o, sets[level], line)
            else f
            for k, (o, f) in enumerate(zip(operands, feet, strict=True))
        ]
        sums = sum_of(held) + totals
        fits = sums <= capacity * USABLE
        fits[-1] = True
        if any(one_by_one.values()):
            fits[-1] = sums[-1] <= capacity
        kept.append(fits)
    single = {k: elements(o, columns.tiles[REGISTER]) * line for k, o in enumerate(operands) if one_by_one[o]}
    found: list[Numbers] = []
    for level, loaded in enumerate(_loaded(feet, counts, kept, single)):
        total: Numbers = np.zeros_like(totals)
        for o, moved, start in zip(operands, loaded, starts, strict=True):
            total = total + moved * (2.0 if o.written else 1.0) * (start if level >= 1 else 1.0)
        found.append(total)
    if found:
        whole = sum_of(f[0] for f in feet) + totals
        found[-1] = np.where(whole <= capacities[-1] * USABLE, 0.0, found[-1])
    return found


def _loaded(
    feet: Sequence[Numbers], counts: Sequence[Numbers], kept: Sequence[Mask], single: Mapping[int, Numbers]
) -> Numbers:
    """Bytes that every operand moves into every cache [cache, operand, candidate].

    Args:
        feet: per operand its bytes [depth, candidate].
        counts: iterations of the loops, outermost first.
        kept: per cache whether all that is touched at a depth fits [depth, candidate].
        single: what a register tile moves of operands of which not even it stays: every element brings its line.
    """
    bytes_, fits = np.stack(feet), np.stack(kept)
    loaded = np.repeat(bytes_[None, :, -1], len(fits), axis=0)
    for k, moved in single.items():
        loaded[:, k] = np.where(fits[:, -1], loaded[:, k], moved)
    # from the inside: what one run of the loops from depth d inwards moves; between iterations of a loop whose body
    # fits everything stays that the next iteration touches again. All caches and operands at once: formulas cost as
    # much for few numbers as for many
    for d in range(len(counts) - 1, -1, -1):
        loaded = np.where(fits[:, None, d + 1], bytes_[:, d], loaded * counts[d])
    return loaded


LONG_SUM = 32
"""Terms of a sum from which on a program waits for its operands: the next sums come too late to be begun meanwhile."""


def waits(problem: Problem) -> bool:
    """Whether sums are so long that a program waits for the operands of one before it begins the next."""
    return prod(problem.axes[k].extent for k in problem.reduce) >= LONG_SUM


def used_once(problem: Problem) -> bool:
    """Whether the kernel is a long sum of elements that are used for one result each, so that no load depends on what
    was computed before and as many are on their way as the hardware takes."""
    axes = range(len(problem.axes))
    return waits(problem) and all(o.uses(a) for o in problem.operands for a in axes)


RUN_START = 170.0
"""Bytes of a run that come from far memory while its first line does, where many runs begin at once."""

TRANSLATED = 112.0
"""Pages whose addresses a core keeps at hand."""

STEEP = 4
"""How sharply the larger one of two times that overlap, or a limit, decides."""


def _met(operand: Operand, problem: Problem, form: Form, columns: Columns, line: int) -> Numbers:
    """By what the time of far memory grows where a sum that uses its elements once reads them in short runs.

    A register tile has a run per term. The next one goes on with it after all terms of a chunk: hardware has followed
    it then unless these lie in more pages than it keeps addresses of.
    """
    if operand.written:
        return np.ones_like(columns.whole[0])
    single = [np.ones_like(x) if problem.axes[a].reduce and a != form.lane else x
              for a, x in enumerate(columns.tiles[REGISTER])]  # fmt: skip
    chunk = [columns.tiles[L1 if x.reduce else REGISTER][a] for a, x in enumerate(problem.axes)]
    kept = np.minimum(1.0, TRANSLATED / rows(operand, chunk, PAGE, False)) ** STEEP
    short, long = (moved_bytes(operand, box, line) / rows(operand, box, PAGE, False)
                   for box in (single, columns.tiles[L1]))  # fmt: skip
    return _started(1.0 / (kept / np.maximum(long, short) + (1.0 - kept) / short))


PAGE_START = 256.0
"""Bytes of a page that could have come while the first one does: only then they are fetched ahead."""

RUNS_FOLLOWED = 16.0
"""Runs of stores that hardware follows at once."""


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
    return page_starts(operand, box, line)


def _stored(operand: Operand, form: Form, columns: Columns, line: int) -> Numbers:
    """By what the time of far memory grows because little is written in a row: stores leave one after the other, each
    needs its line, and hardware fetches one more behind every run of them.

    What is met in a row are the iterations of loops, from the innermost one outwards, until there are too many runs.
    """
    box = _in_a_row(operand, form, columns, line, RUNS_FOLLOWED)
    return 1.0 + line * rows(operand, box, line, False) / moved_bytes(operand, box, line)


def _fetched(operand: Operand, form: Form, columns: Columns, line: int) -> Numbers:
    """By what the time of far memory grows because little of a page is read in a row, before more pages were touched
    than a core keeps addresses of."""
    box = _in_a_row(operand, form, columns, PAGE, TRANSLATED)
    return _started(moved_bytes(operand, box, line) / rows(operand, box, PAGE, False))


def _in_a_row(operand: Operand, form: Form, columns: Columns, apart: int, most: float) -> list[Numbers]:
    """What the iterations of loops touch, from the innermost one outwards, until there are too many runs."""
    box = list(columns.tiles[REGISTER])
    followed = np.ones(len(box[0]), np.bool_)
    for above in (columns.tiles[L1], columns.tiles[L2], columns.whole):
        for a in reversed(form.order):
            box[a] = np.where(followed, np.maximum(box[a], above[a]), box[a])
            followed = followed & (rows(operand, box, apart, False) <= most)
    return box


def _started(used: Numbers) -> Numbers:
    """By what runs of so many bytes take longer than their bytes would."""
    return (1.0 + (RUN_START / used) ** STEEP) ** (1.0 / STEEP)


def page_starts(operand: Operand, box: Sequence[Numbers], line: int) -> Numbers:
    """By what the time of far memory grows where boxes [axis][candidate] of an operand are read in a row: the fewer
    bytes of a page they have, the more, as every page is followed from its start only."""
    used = moved_bytes(operand, box, line) / rows(operand, box, PAGE, False)
    return 1.0 + PAGE_START / np.clip(used, line, PAGE)


def _totals(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """Bytes of the totals that chunks are added to."""
    size: Numbers = np.full_like(columns.whole[0], problem.bits / 8)
    for a in problem.spatial:
        size = size * columns.tiles[L1][a]
    return np.where(chunks(form, columns) > 1, size, 0.0)
