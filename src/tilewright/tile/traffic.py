"""How many bytes tile programs move between the levels of memory: closed formulas over arrays of candidates.

Traffic of a cache follows from the loops: a loop whose body fits it loads what it touches once in all its iterations
together, as what two iterations share stays; a loop whose body does not fit loads it in every iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import inf
from operator import mul

import numpy as np

from tilewright.tile.columns import Columns, Loop, chunks, is_packed, sum_of
from tilewright.tile.crowding import crowding
from tilewright.tile.family import Placed
from tilewright.tile.following import Near, starts, waits
from tilewright.tile.footprint import Numbers, elements, moved_bytes
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Form, Mask

USABLE = 0.75
"""The part of a cache that a program may count on; the rest is for what passes through."""

HELD_BY_ALL = 2.0
"""How often what several cores read counts in the last cache of a core's own, behind the first: a line that it has lost
comes from another core's cache, which is slower than from the cache that all share."""

CROWDED = 5.0
"""How much longer than their bytes lines take at most that come into sets which many more of them crowd into:
transposing 1024 x 1024 elements takes 0.8 ns each where tiles read 16 rows of one set of 8 ways, 2.0 ns with 32 rows,
3.5 ns with 64 and 128; 1040 x 1024 elements, whose rows are spread over all sets, take 0.3 ns with any (one core of an
EPYC of Zen 3)."""


@lru_cache(maxsize=256)
def nest(order: tuple[int, ...], reduce: tuple[int, ...]) -> tuple[Loop, ...]:
    """The loops over spatial axes in this order and over those of a reduction, outermost first; see `tile.program`."""
    loops = [Loop(a, L2) for a in order] + [Loop(a, L1) for a in order] + [Loop(k, L1) for k in reduce]
    return (*loops, *(Loop(a, REGISTER) for a in order), *(Loop(k, REGISTER) for k in reduce))


@dataclass(frozen=True, slots=True)
class Feet:
    """What is touched at every depth of the loops that a program stands for; loops that no candidate has are left out.

    Attributes:
        loops: outermost first.
        counts: iterations of each.
        there: which candidates have them, the others make one iteration [loop, candidate].
        boxes: sizes per axis [depth, candidate] at every depth: of all loops, of all but the outermost, ..., of one
            register tile.
        operands: bytes of every access in whole lines [access, depth, candidate].
    """

    loops: tuple[Loop, ...]
    counts: tuple[Numbers, ...]
    there: Mask
    boxes: tuple[Numbers, ...]
    operands: Numbers

    @staticmethod
    def of(problem: Problem, form: Form, columns: Columns, line: int) -> "Feet":
        """Those of candidates."""
        loops = nest(form.order, problem.reduce)
        sizes, whole = columns.sizes, len(columns.tiles)
        axes, levels = [loop.axis for loop in loops], np.array([loop.level for loop in loops])
        # not whole where the last tile is a remainder
        iterations = sizes[levels + 1, axes] / sizes[levels, axes]
        there = iterations > 1
        some = np.flatnonzero(there.any(axis=1))
        # all depths at once: formulas cost as much for few numbers as for many
        level = np.full((len(problem.axes), len(some) + 1), whole)
        for depth, k in enumerate(some, 1):
            level[axes[k], depth:] = levels[k]
        boxes = tuple(sizes[level, np.arange(len(level))[:, None]])
        feet = [moved_bytes(o, boxes, line, is_packed(form, k)) for k, o in enumerate(columns.family.accesses)]
        return Feet(tuple([loops[k] for k in some]), tuple(iterations[some]), there[some], boxes, np.array(feet))


def innermost(there: Mask) -> Mask:
    """Which depths [depth, candidate] have no loops inside, of loops that are there [loop, candidate]."""
    inside = np.logical_or.accumulate(there[::-1], axis=0)[::-1]
    return np.concatenate((~inside, np.ones((1, there.shape[1]), np.bool_)))


def cache_traffic(
    problem: Problem,
    form: Form,
    columns: Columns,
    capacities: Sequence[float],
    line: int,
    sets: Sequence[int] = (),
    known: Feet | None = None,
    threads: Sequence[int] = (),
    translations: float = inf,
) -> tuple[list[Numbers], list[Numbers]]:
    """Bytes that move into each cache, for caches of these capacities, by the loops of the program: on one thread, and
    on several that share them.

    What fits the last one as a whole is there before the program starts: earlier kernels have just used it.

    Args:
        problem, form, columns: the candidates.
        capacities: of the caches, nearest first.
        line: bytes of a cache line.
        sets: of the nearest caches, those where the lowest bits of an address choose the set; tell where rows crowd.
        known: saves counting what is touched.
        threads: that share the outer loops, per cache those that have one of their own: what several of them touch
            comes to each, and in the last such cache stays less well. One thread where nothing is given.
        translations: pages whose addresses a core keeps at hand; all where nothing is given.
    """
    known = known or Feet.of(problem, form, columns, line)
    counts, feet = known.counts, known.operands
    operands = columns.family.accesses
    near = Near(sets[0], capacities[0]) if sets else None
    growth = starts(problem, form, columns, line, translations, near)
    totals = _totals(problem, form, columns)
    apart = lines_along(problem, form, line)
    single = {k: _one_by_one(problem, form, columns, k, feet[k, -1], line) for k in range(len(operands))
              if not waits(problem) and apart[k]}  # fmt: skip
    crowded = [{} if is_packed(form, k) else crowding(o, known.boxes, sets, line) for k, o in enumerate(operands)]
    inside, shared = innermost(known.there), [k for k, n in enumerate(threads) if n > 1]
    # what rows that crowd have in one more line lies in other sets
    close = np.array([moved_bytes(o, known.boxes, line, is_packed(form, k), anywhere=False)
                      for k, o in enumerate(operands)]) if single else None  # fmt: skip
    once = np.array([*(feet for _ in capacities), *(_once(known, threads[k]) for k in shared)])
    kept = [_kept(inside, operands, feet, [x.get(k) for x in crowded], totals, capacity, close)
            for k, capacity in enumerate(capacities)]  # fmt: skip
    for place, level in enumerate(shared, len(capacities)):
        if level != shared[-1] or not level:
            kept.append(kept[level])
            continue
        room = feet * np.minimum(HELD_BY_ALL, once[place][:, :1] / feet[:, :1])
        more = [x.get(level) for x in crowded]
        kept.append(_kept(inside, operands, room, more, totals, capacities[level], close))
    lost = {k: np.tile(moved, (len(once), 1)) for k, moved in single.items()}
    if close is not None:
        full = totals + sum_of(feet[:, -1]) > capacities[0]
        inner = sum(loop.level == L2 for loop in known.loops)
        tiles = reduce(mul, counts[inner:], np.ones_like(totals))
        nearest = [0, *(place for place, level in enumerate(shared, len(capacities)) if not level)]
        for k in [k for k in single if not operands[k].written and 0 in crowded[k]]:
            more = crowded[k][0][-1]
            over = np.where(more > 1.0, close[k, -1] * more / capacities[0], 0.0)
            lost[k][nearest] = _crowded_out(feet[k, inner] / tiles, single[k], over, full)
    every = _loaded(once, counts, known.there, np.stack(np.broadcast_arrays(*kept)), lost)
    # every line that is written comes and goes
    loaded = [2.0 * moved if o.written else moved for o, moved in zip(operands, every, strict=True)]
    found: list[Numbers] = []
    whole = sum_of(feet[:, 0]) + totals <= capacities[-1] * USABLE
    for place, cache in enumerate([*range(len(capacities)), *shared]):
        held = cache == len(capacities) - 1
        grown = [x.nearest if not cache else x.memory if held else x.cache for x in growth]
        moved = sum_of(x[place] * by for x, by in zip(loaded, grown, strict=True))
        found.append(np.where(whole, 0.0, moved) if held else moved)
    alone = found[: len(capacities)]
    together = dict(zip(shared, found[len(capacities) :], strict=True))
    return alone, [together.get(k, moved) for k, moved in enumerate(alone)]


def _kept(
    inside: Mask, operands: Sequence[Placed], room: Numbers, crowded: Sequence[Numbers | None], totals: Numbers,
    capacity: float, close: Numbers | None,
) -> Mask:  # fmt: skip
    """Whether what is touched at a depth stays in a cache [access, or 1 for all; depth, candidate].

    Args:
        inside: which depths are innermost.
        operands: the accesses.
        room: bytes that each takes [access, depth, candidate].
        crowded: by how much more it takes where its rows crowd in few sets.
        totals: bytes of the totals that chunks are added to.
        capacity: of the cache.
        close: the bytes in as few lines as can be, where every element along the lanes of an access may bring its line:
            at any depth each access crowds in sets of its own then, and a register tile is asked, too, whether it
            stays. Else a register tile stays however large it is.
    """
    if close is not None:
        alone = np.array([f if more is None else f * more for f, more in zip(close, crowded, strict=True)]) <= capacity
        whole = totals + sum_of(room)
        return alone & ((whole <= capacity * USABLE) | (inside & (whole <= capacity)))
    # what is written and crowds loses its own lines only: what is read is used again and again, and stays beside it
    total = totals + sum_of(f if more is None or o.written else f * more
                            for o, f, more in zip(operands, room, crowded, strict=True))  # fmt: skip
    own = [total if more is None or not o.written else total + f * (more - 1.0)
           for o, f, more in zip(operands, room, crowded, strict=True)]  # fmt: skip
    needed = total[None] if all(x is total for x in own) else np.array(own)
    return (needed <= capacity * USABLE) | inside


def _once(known: Feet, threads: int) -> Numbers:
    """Bytes [operand, depth, candidate] that the loops from a depth inwards load where what was loaded stays: what they
    touch, and what several threads touch that share the loops over tasks, once for each of them: as if all kept to
    their own shares of the tasks, which they do but for what they help others with."""
    found = known.operands.copy()
    left: Numbers = np.full(found.shape[2], float(threads))
    shares: list[Numbers] = []
    for loop, count in zip(known.loops, known.counts, strict=True):
        shares.append(np.minimum(left, np.maximum(np.ceil(count), 1.0)) if loop.level == L2 else np.ones_like(left))
        left = left / shares[-1]
    for d in range(len(shares) - 1, -1, -1):
        found[:, d] = np.where(known.there[d], np.maximum(found[:, d], found[:, d + 1] * shares[d]), found[:, d + 1])
    return found


def _loaded(once: Numbers, counts: Sequence[Numbers], there: Mask, kept: Mask, lost: Mapping[int, Numbers]) -> Numbers:
    """Bytes that every operand moves into every cache [operand, cache, candidate].

    Args:
        once: bytes that the loops from a depth inwards load where all stays [cache, operand, depth, candidate].
        counts: iterations of the loops, outermost first.
        there: which loops there are [loop, candidate]; others have one iteration and change nothing.
        kept: whether it stays between iterations [cache, operand, or 1 for all; depth, candidate].
        lost: what a register tile moves of operands of which not even it stays [cache, candidate]: every element brings
            its line.
    """
    loaded, kept = once[:, :, -1].copy(), np.broadcast_to(kept, once.shape)
    for k, moved in lost.items():
        loaded[:, k] = np.where(kept[:, k, -1], loaded[:, k], moved)
    # from the inside: what one run of the loops from depth d inwards moves; between iterations of a loop whose body
    # fits everything stays that the next iteration touches again. All caches and operands at once: formulas cost as
    # much for few numbers as for many
    stays = kept[:, :, 1:] & there
    for d in range(len(counts) - 1, -1, -1):
        loaded = np.where(stays[:, :, d], once[:, :, d], loaded * counts[d])
    return loaded.swapaxes(0, 1)


def _crowded_out(stays: Numbers, single: Numbers, over: Numbers, full: Mask) -> Numbers:
    """Bytes that a register tile moves of an access whose rows crowd in sets of the first cache.

    Args:
        stays: what it moves where all stays that an L2 tile touches.
        single: the same where every element brings its line.
        over: lines in these sets over those that fit, as far as rows crowd there.
        full: whether a register tile does not fit, however it lies.
    """
    lost = 1.0 - 1.0 / np.maximum(over, 1.0)
    longer = np.maximum(stays, single * CROWDED * lost**3)
    return np.where(over > 1.0, np.where(full, np.maximum(longer, single), longer), single)


def _one_by_one(problem: Problem, form: Form, columns: Columns, access: int, together: Numbers, line: int) -> Numbers:
    """Bytes that a register tile moves of an access whose elements along the lanes lie in different lines, where none
    of these stays: one line per element, but for results that are stored in runs along another axis."""
    operand, tile = columns.family.accesses[access], columns.tiles[REGISTER]
    alone = elements(operand, tile) * line
    if access < len(problem.operands) or not operand.written:
        return alone
    along = [a for a in problem.spatial if a != form.lane and problem.results[-1].strides[a] == 1]
    return np.where(np.logical_or.reduce([tile[a] > 1 for a in along]), together, alone) if along else alone


def lines_along(problem: Problem, form: Form, line: int) -> tuple[bool, ...]:
    """Per access whether elements along the lanes lie in different lines."""
    return tuple([abs(o.strides[form.lane]) * o.bytes >= line for o in (*problem.operands, *problem.results)])


def _totals(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """Bytes of the totals that chunks are added to."""
    size: Numbers = np.full_like(columns.whole[0], problem.bits / 8)
    for a in problem.spatial:
        size = size * columns.tiles[L1][a]
    return np.where(chunks(form, columns) > 1, size, 0.0)
