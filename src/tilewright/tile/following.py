"""How far hardware runs ahead of what programs read and write: by what the time of far memory grows because it must
first follow a run, a page or a row.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilewright.tile.columns import PAGE, Columns, is_packed, line_points, row_bytes, rows, sum_of
from tilewright.tile.crowding import crowding
from tilewright.tile.family import Placed
from tilewright.tile.footprint import Numbers, joined, moved_bytes
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Form

LONG_SUM = 32
"""Terms of a sum from which on a program waits for its operands: the next sums come too late to be begun meanwhile."""


def waits(problem: Problem) -> bool:
    """Whether sums are so long that a program waits for the operands of one before it begins the next."""
    return problem.terms >= LONG_SUM


def used_once(problem: Problem) -> bool:
    """Whether the kernel is a long sum of elements that are used for one result each, so that no load depends on what
    was computed before and as many are on their way as the hardware takes."""
    return waits(problem) and not problem.reuses


RUN_START = 170.0
"""Bytes of a run that come from far memory while its first line does, where many runs begin at once."""

STEEP = 4
"""How sharply the larger one of two times that overlap, or a limit, decides."""


def _met(operand: Placed, problem: Problem, form: Form, columns: Columns, line: int, translations: float) -> Numbers:
    """By what the time of far memory grows where a sum that uses its elements once reads them in short runs.

    A register tile has a run per term. The next one goes on with it after all terms of a chunk: hardware has followed
    it then unless these lie in more pages than it keeps addresses of.
    """
    if operand.written:
        return np.ones_like(columns.whole[0])
    single = [np.ones_like(x) if problem.axes[a].reduce and a != form.lane else x
              for a, x in enumerate(columns.tiles[REGISTER])]  # fmt: skip
    kept = np.minimum(1.0, translations / rows(operand, _met_at_once(columns), PAGE, False)) ** STEEP
    short, long = (row_bytes(operand, box, line, PAGE) for box in (single, columns.tiles[L1]))
    return _started(1.0 / (kept / np.maximum(long, short) + (1.0 - kept) / short))


PAGE_START = 256.0
"""Bytes of a page that could have come while the first one does: only then they are fetched ahead."""

RUNS_FOLLOWED = 16.0
"""Runs of stores that hardware follows at once."""

IN_TURNS = 0.05
"""What stores to many rows in turns that begin anywhere in lines cost where nothing is computed, as a part of the time
of their bytes; of two rows half as much. Copies of 36 x 48 x 192 elements with a border of zeros take 1.15 times as
long in tiles of two rows as row by row, 1.25 times in tiles of four."""

ACROSS_START = 250.0
"""Bytes that could have come while the first store to a page waits for two lines: a transpose of 4001x7770 elements,
which no cache holds, takes twice as long in tiles of seven rows as row by row, one of 4000x7770 1.2 times."""

PAGES_FOLLOWED = 32.0
"""Pages in which hardware follows one run of reads each (streamer of the second cache: Intel's optimization manual,
section on data prefetching; a matrix of rows a page and more apart that is read in columns of one line is four times as
slow in chunks of 64 rows as in chunks of 32)."""

UNFOLLOWED = 1.0
"""What loads that nothing waits for cost in more pages than `PAGES_FOLLOWED`, as a part of the time of their bytes,
most of which hides behind instructions and stores: transposes in chunks of 64 rows a page apart take 1.2 times as long
as in chunks of 32."""


ALONE = 1.3
"""What memory behind all caches takes for a panel that single rows read, as many times as for several panels side by
side, of which more lines are under way: 1 x 4096 x 4096 takes 2.4 ms with panels of 56 or 64 columns on two cores with
AVX2, 1.7 ms with four or more panels abreast, and 6.6 and 5.4 ms on one core with AVX-512."""


FETCHED_AGAIN = 2.0
"""How often a line is fetched from the second cache again that came before it was asked for and was lost meanwhile, as
rows crowd in fewer sets of the nearest cache than hold them: 1024 x 1024 elements are summed along columns in 62, 82,
136 and 151 us in chunks of 8, 16, 32 and 64 rows, 1024 x 1040 in 58 to 73 us in any (one core of an EPYC of Zen 3)."""


STARTED = 2.0
"""Lines at the start of a run that come before it is read."""


class Growth(NamedTuple):
    """By what the time of one access grows where the data come into the nearest cache, into another one, and from
    memory behind all of them."""

    nearest: Numbers
    cache: Numbers
    memory: Numbers


class Near(NamedTuple):
    """The nearest cache: its sets, and how many bytes it holds."""

    sets: int
    bytes: float


def starts(
    problem: Problem, form: Form, columns: Columns, line: int, translations: float, near: Near | None = None
) -> list[Growth]:
    """By what the time of memory grows for every access: of far memory as hardware must first follow it, of the nearest
    cache as what was followed is lost.

    Args:
        problem, form, columns: the candidates.
        line: bytes of a cache line.
        translations: pages whose addresses a core keeps at hand.
        near: the nearest cache, where rows may crowd; in all sets alike where nothing is given.
    """
    operands = columns.family.accesses
    if waits(problem) and not used_once(problem):
        return _page_starts(form, columns, line)
    one = np.ones_like(columns.whole[0])
    if used_once(problem):
        found = [_met(o, problem, form, columns, line, translations) for o in operands]
        lost = [one if near is None or o.written or is_packed(form, k) else _fetched_again(o, columns, line, near)
                for k, o in enumerate(operands)]  # fmt: skip
        return [Growth(again, x, x) for x, again in zip(found, lost, strict=True)]
    found = [_stored(o, form, columns, line) if o.written else _fetched(o, form, columns, line, translations)
             for o in operands]  # fmt: skip
    # tiles that turn rows into columns need rows
    moves = not problem.reduce and all(o.strides[form.lane] in (0, 1) for o in problem.operands)
    return [Growth(one, x * _in_turns(o, form, columns, line) if moves and o.written else x, x)
            for x, o in zip(found, operands, strict=True)]  # fmt: skip


def _fetched_again(operand: Placed, columns: Columns, line: int, near: Near) -> Numbers:
    """By what the lines that come into the nearest cache grow because some are lost before they are asked for: those at
    the start of each run, as the next ones come while it is read."""
    met = _met_at_once(columns)
    crowded = crowding(operand, met, (near.sets,), line).get(0)
    if crowded is None:
        return np.ones_like(columns.whole[0])
    read = moved_bytes(operand, met, line)
    stays = np.where(crowded > 1.0, np.minimum(1.0, near.bytes / (read * crowded)), 1.0)
    run = read / rows(operand, met, line, False)
    return 1.0 + FETCHED_AGAIN * (1.0 - stays) * np.minimum(1.0, STARTED * line / run)


def _in_turns(operand: Placed, form: Form, columns: Columns, line: int) -> Numbers:
    """By what the time of caches grows because a register tile stores to many rows in turns that begin anywhere."""
    across = begins_anywhere(operand, line, form.lanes * operand.bytes)
    grown = 1.0 + IN_TURNS * (1.0 - 1.0 / rows(operand, columns.tiles[REGISTER], line, False))
    return np.where(across, grown, 1.0)


def _page_starts(form: Form, columns: Columns, line: int) -> list[Growth]:
    """By what the time of far memory grows where register tiles meet boxes of operands, and others in a row with them
    go on in the same pages. Of memory behind all caches these are followed unless there are too many of them, or too
    many runs of results; what caches hold comes soon enough."""
    one, met, row = np.ones(len(columns.whole[0])), _met_at_once(columns), _followed(form, columns)
    found: list[Growth] = []
    for k, o in enumerate(columns.family.accesses):
        if is_packed(form, k):
            found.append(Growth(one, one, _alone(o, k, form, columns)))
            continue
        apart, most = (line, RUNS_FOLLOWED) if o.written else (PAGE, PAGES_FOLLOWED)
        lost = 1.0 - np.minimum(1.0, most / rows(o, met, apart, False)) ** STEEP
        short, long = (page_starts(o, box, line) for box in (met, row))
        found.append(Growth(one, long, long + lost * np.maximum(short - long, 0.0)))
    return found


def _alone(operand: Placed, k: int, form: Form, columns: Columns) -> Numbers:
    """By what the time of far memory grows because a single row reads one panel at a time."""
    tile = columns.tiles[REGISTER]
    if dict(form.packed)[k] != form.lane or k not in form.ahead:
        return np.ones_like(tile[0])
    single = reduce(and_, [tile[a] == 1 for a in form.order if not operand.uses(a)], np.ones_like(tile[0], bool))
    line = line_points(form, operand.bytes)
    abreast = (tile[form.lane] % line == 0) & (tile[form.lane] > line)
    return np.where(single & ~abreast, ALONE, 1.0)


def _met_at_once(columns: Columns) -> list[Numbers]:
    """What one register tile reads over a chunk of the reduction."""
    return [columns.tiles[L1 if x.reduce else REGISTER][a] for a, x in enumerate(columns.family.problem.axes)]


def _followed(form: Form, columns: Columns) -> list[Numbers]:
    """What is met in a row while a page is followed: a register tile, and its neighbours along the innermost loop that
    has any."""
    last = form.order[-1]
    box = list(columns.tiles[REGISTER])
    for a in range(len(box)):
        if a not in form.order:
            box[a] = columns.tiles[L1][a]
    apart = sum_of(columns.tiles[L1][a] - columns.tiles[REGISTER][a] for a in form.order[:-1])
    box[last] = np.where(apart > 0, columns.tiles[L1][last], columns.tiles[L2][last])
    return box


def _stored(operand: Placed, form: Form, columns: Columns, line: int) -> Numbers:
    """By what the time of far memory grows because little is written in a row: stores leave one after the other, each
    needs its line, and hardware fetches one more behind every run of them.

    What is met in a row are the iterations of loops, from the innermost one outwards, until there are too many runs.
    Where rows begin anywhere in lines, a store needs two: the next ones wait until both are there, unless they go on in
    the same page.
    """
    boxes = _iterated(operand, form, columns)
    box, count = _in_a_row(operand, boxes, line, RUNS_FOLLOWED, operand.uses(form.order[-1]))
    grown = 1.0 + line * count / moved_bytes(operand, box, line)
    across = begins_anywhere(operand, line, form.lanes * operand.bytes)
    if not across.any():
        return grown
    box, pages = _in_a_row(operand, boxes, PAGE, 1.0, False)
    # those of one page go on in it; of several, every one is another than that before
    begun = np.minimum(pages, 2.0 * (pages - 1.0))
    waiting = 1.0 + ACROSS_START * begun / moved_bytes(operand, box, line)
    return np.where(across, np.maximum(grown, waiting), grown)


def begins_anywhere(operand: Placed, line: int, vector: int) -> npt.NDArray[np.bool_]:
    """Per candidate whether rows of an operand begin anywhere, so that vectors of so many bytes lie in two lines: rows
    are no whole lines, nor whole vectors that fit lines; one answer where it is that of all."""
    within = {axis: row for steps, row in zip(operand.steps, joined(operand, line), strict=True) for _, axis in steps}
    apart = min(line, vector)
    return sum_of(np.where(within[axis], 0, step % apart) + np.zeros(1) for axis, step in operand.hops) > 0


def _fetched(operand: Placed, form: Form, columns: Columns, line: int, translations: float) -> Numbers:
    """By what the time of far memory grows because little of a page is read in a row, before more pages were touched
    than a core keeps addresses of, or than hardware follows."""
    boxes = _iterated(operand, form, columns)
    box, count = _in_a_row(operand, boxes, PAGE, translations, operand.uses(form.order[-1]))
    started = _started(moved_bytes(operand, box, line) / count)
    return started * (1.0 + UNFOLLOWED * _left_early(operand, boxes, line))


def _left_early(operand: Placed, boxes: Sequence[Numbers], line: int) -> Numbers:
    """The part of what is read that comes from pages that were left early, for more others than hardware follows: none
    where every page is read as a whole before the next ones."""
    count = rows(operand, boxes, PAGE, False)
    many, each = count > PAGES_FOLLOWED, np.arange(count.shape[1])
    first = np.where(many.any(axis=0), many.argmax(axis=0), len(count) - 1)
    before = np.maximum(first - 1, 0), each
    read = moved_bytes(operand, [sizes[before] for sizes in boxes], line) / count[before]
    lost = 1.0 - np.minimum(1.0, PAGES_FOLLOWED / count[first, each]) ** STEEP
    return lost * np.maximum(0.0, 1.0 - read / PAGE)


def _in_a_row(
    operand: Placed, boxes: Sequence[Numbers], apart: int, most: float, always: bool
) -> tuple[list[Numbers], Numbers]:
    """What loops touch, of the boxes of more and more of them the first with too many runs; and how many runs these
    are. The innermost loop is `always` followed, where that is said."""
    count = rows(operand, boxes, apart, False)
    followed = count[:-1] <= most
    if always:
        followed[:1] = True
    last = np.logical_and.accumulate(followed).sum(axis=0), np.arange(count.shape[1])
    return [sizes[last] for sizes in boxes], count[last]


def _iterated(operand: Placed, form: Form, columns: Columns) -> list[Numbers]:
    """What a register tile touches, then all iterations of the innermost loop, of the one around it, and so on [depth,
    candidate] per axis. Axes along which the operand stays where it is are left as they are in a register tile."""
    box = list(columns.tiles[REGISTER])
    grown = [tuple(box)]
    for above in (columns.tiles[L1], columns.tiles[L2], columns.whole):
        for a in reversed(form.order):
            if operand.uses(a):
                box[a] = np.maximum(box[a], above[a])
                grown.append(tuple(box))
    # all boxes at once: formulas cost as much for few numbers as for many
    return [np.array(sizes) for sizes in zip(*grown, strict=True)]


def _started(used: Numbers) -> Numbers:
    """By what runs of so many bytes take longer than their bytes would."""
    return (1.0 + (RUN_START / used) ** STEEP) ** (1.0 / STEEP)


def page_starts(operand: Placed, box: Sequence[Numbers], line: int) -> Numbers:
    """By what the time of far memory grows where boxes [axis][candidate] of an operand are read in a row: the fewer
    bytes of a page they have, the more, as every page is followed from its start only."""
    return 1.0 + PAGE_START / np.clip(row_bytes(operand, box, line, PAGE), line, PAGE)
