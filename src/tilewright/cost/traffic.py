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

from tilewright.cost.candidate_batch import CandidateBatch, TileLoop, is_packed, k_block_count, sum_arrays
from tilewright.cost.conflict_misses import conflict_factors
from tilewright.cost.footprint import Numbers, moved_bytes, touched_elements
from tilewright.cost.hw_prefetch import L1Cache, is_long_reduction, ramp_factors
from tilewright.cost.shape_family import OperandView
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Mask, Sketch

USABLE_CACHE_FRACTION = 0.75
"""The part of a cache that a program may count on; the rest is for what passes through."""

SHARED_LINE_FACTOR = 2.0
"""How often what several cores read counts in the last cache of a core's own, behind the first: a line that it has lost
comes from another core's cache, which is slower than from the cache that all share."""

MAX_CONFLICT_PENALTY = 5.0
"""How much longer than their bytes lines take at most that come into sets which many more of them crowd into:
transposing 1024 x 1024 elements takes 0.8 ns each where tiles read 16 rows of one set of 8 ways, 2.0 ns with 32 rows,
3.5 ns with 64 and 128; 1040 x 1024 elements, whose rows are spread over all sets, take 0.3 ns with any (one core of an
EPYC of Zen 3)."""


@lru_cache(maxsize=256)
def tile_loops(order: tuple[int, ...], reduce: tuple[int, ...]) -> tuple[TileLoop, ...]:
    """The loops over spatial axes in this order and over those of a reduction, outermost first; see `tile.program`."""
    loops = [TileLoop(a, L2) for a in order] + [TileLoop(a, L1) for a in order] + [TileLoop(k, L1) for k in reduce]
    return (*loops, *(TileLoop(a, REGISTER) for a in order), *(TileLoop(k, REGISTER) for k in reduce))


@dataclass(frozen=True, slots=True)
class LoopFootprints:
    """What is touched at every depth of the loops that a program stands for; loops that no candidate has are left out.

    Attributes:
        loops: outermost first.
        counts: iterations of each.
        there: which candidates have them, the others make one iteration [loop, candidate].
        boxes: sizes per axis [depth, candidate] at every depth: of all loops, of all but the outermost, ..., of one
            register tile.
        operands: bytes of every access in whole lines [access, depth, candidate].
    """

    loops: tuple[TileLoop, ...]
    counts: tuple[Numbers, ...]
    present: Mask
    boxes: tuple[Numbers, ...]
    operand_bytes: Numbers

    @staticmethod
    def of(problem: Problem, sketch: Sketch, batch: CandidateBatch, line: int) -> "LoopFootprints":
        """Those of candidates."""
        loops = tile_loops(sketch.order, problem.reduce)
        sizes, whole = batch.sizes, len(batch.tiles)
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
        feet = [moved_bytes(o, boxes, line, is_packed(sketch, k)) for k, o in enumerate(batch.family.accesses)]
        return LoopFootprints(
            tuple([loops[k] for k in some]), tuple(iterations[some]), there[some], boxes, np.array(feet)
        )


def innermost_depths(present: Mask) -> Mask:
    """Which depths [depth, candidate] have no loops inside, of loops that are there [loop, candidate]."""
    inside = np.logical_or.accumulate(present[::-1], axis=0)[::-1]
    return np.concatenate((~inside, np.ones((1, present.shape[1]), np.bool_)))


def cache_traffic(
    problem: Problem,
    sketch: Sketch,
    batch: CandidateBatch,
    capacities: Sequence[float],
    line: int,
    set_counts: Sequence[int] = (),
    footprints: LoopFootprints | None = None,
    threads: Sequence[int] = (),
    tlb_entries: float = inf,
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
    footprints = footprints or LoopFootprints.of(problem, sketch, batch, line)
    counts, feet = footprints.counts, footprints.operand_bytes
    operands = batch.family.accesses
    near = L1Cache(set_counts[0], capacities[0]) if set_counts else None
    growth = ramp_factors(problem, sketch, batch, line, tlb_entries, near)
    totals = _partial_sum_bytes(problem, sketch, batch)
    apart = has_line_per_lane(problem, sketch, line)
    single = {k: _line_per_element_bytes(problem, sketch, batch, k, feet[k, -1], line) for k in range(len(operands))
              if not is_long_reduction(problem) and apart[k]}  # fmt: skip
    crowded = [
        {} if is_packed(sketch, k) else conflict_factors(o, footprints.boxes, set_counts, line)
        for k, o in enumerate(operands)
    ]
    inside, shared = innermost_depths(footprints.present), [k for k, n in enumerate(threads) if n > 1]
    # what rows that crowd have in one more line lies in other sets
    close = np.array([moved_bytes(o, footprints.boxes, line, is_packed(sketch, k), unaligned=False)
                      for k, o in enumerate(operands)]) if single else None  # fmt: skip
    once = np.array([*(feet for _ in capacities), *(_resident_bytes(footprints, threads[k]) for k in shared)])
    kept = [_stays_cached(inside, operands, feet, [x.get(k) for x in crowded], totals, capacity, close)
            for k, capacity in enumerate(capacities)]  # fmt: skip
    for place, level in enumerate(shared, len(capacities)):
        if level != shared[-1] or not level:
            kept.append(kept[level])
            continue
        room = feet * np.minimum(SHARED_LINE_FACTOR, once[place][:, :1] / feet[:, :1])
        more = [x.get(level) for x in crowded]
        kept.append(_stays_cached(inside, operands, room, more, totals, capacities[level], close))
    lost = {k: np.tile(moved, (len(once), 1)) for k, moved in single.items()}
    if close is not None:
        full = totals + sum_arrays(feet[:, -1]) > capacities[0]
        inner = sum(loop.level == L2 for loop in footprints.loops)
        tiles = reduce(mul, counts[inner:], np.ones_like(totals))
        nearest = [0, *(place for place, level in enumerate(shared, len(capacities)) if not level)]
        for k in [k for k in single if not operands[k].written and 0 in crowded[k]]:
            more = crowded[k][0][-1]
            over = np.where(more > 1.0, close[k, -1] * more / capacities[0], 0.0)
            lost[k][nearest] = _conflict_bytes(feet[k, inner] / tiles, single[k], over, full)
    every = _moved_by_cache(once, counts, footprints.present, np.stack(np.broadcast_arrays(*kept)), lost)
    # every line that is written comes and goes
    loaded = [2.0 * moved if o.written else moved for o, moved in zip(operands, every, strict=True)]
    found: list[Numbers] = []
    whole = sum_arrays(feet[:, 0]) + totals <= capacities[-1] * USABLE_CACHE_FRACTION
    for place, cache in enumerate([*range(len(capacities)), *shared]):
        held = cache == len(capacities) - 1
        grown = [x.l1 if not cache else x.memory if held else x.cache for x in growth]
        moved = sum_arrays(x[place] * by for x, by in zip(loaded, grown, strict=True))
        found.append(np.where(whole, 0.0, moved) if held else moved)
    alone = found[: len(capacities)]
    together = dict(zip(shared, found[len(capacities) :], strict=True))
    return alone, [together.get(k, moved) for k, moved in enumerate(alone)]


def _stays_cached(
    innermost: Mask, operands: Sequence[OperandView], operand_bytes: Numbers, conflicts: Sequence[Numbers | None],
    partial_sums: Numbers,
    capacity: float, min_bytes: Numbers | None,
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
    if min_bytes is not None:
        alone = (
            np.array([f if more is None else f * more for f, more in zip(min_bytes, conflicts, strict=True)])
            <= capacity
        )
        whole = partial_sums + sum_arrays(operand_bytes)
        return alone & ((whole <= capacity * USABLE_CACHE_FRACTION) | (innermost & (whole <= capacity)))
    # what is written and crowds loses its own lines only: what is read is used again and again, and stays beside it
    total = partial_sums + sum_arrays(f if more is None or o.written else f * more
                            for o, f, more in zip(operands, operand_bytes, conflicts, strict=True))  # fmt: skip
    own = [total if more is None or not o.written else total + f * (more - 1.0)
           for o, f, more in zip(operands, operand_bytes, conflicts, strict=True)]  # fmt: skip
    needed = total[None] if all(x is total for x in own) else np.array(own)
    return (needed <= capacity * USABLE_CACHE_FRACTION) | innermost


def _resident_bytes(footprints: LoopFootprints, threads: int) -> Numbers:
    """Bytes [operand, depth, candidate] that the loops from a depth inwards load where what was loaded stays: what they
    touch, and what several threads touch that share the loops over tasks, once for each of them: as if all kept to
    their own shares of the tasks, which they do but for what they help others with."""
    found = footprints.operand_bytes.copy()
    left: Numbers = np.full(found.shape[2], float(threads))
    shares: list[Numbers] = []
    for loop, count in zip(footprints.loops, footprints.counts, strict=True):
        shares.append(np.minimum(left, np.maximum(np.ceil(count), 1.0)) if loop.level == L2 else np.ones_like(left))
        left = left / shares[-1]
    for d in range(len(shares) - 1, -1, -1):
        found[:, d] = np.where(
            footprints.present[d], np.maximum(found[:, d], found[:, d + 1] * shares[d]), found[:, d + 1]
        )
    return found


def _moved_by_cache(
    resident: Numbers, counts: Sequence[Numbers], present: Mask, cached: Mask, uncached: Mapping[int, Numbers]
) -> Numbers:
    """Bytes that every operand moves into every cache [operand, cache, candidate].

    Args:
        once: bytes that the loops from a depth inwards load where all stays [cache, operand, depth, candidate].
        counts: iterations of the loops, outermost first.
        there: which loops there are [loop, candidate]; others have one iteration and change nothing.
        kept: whether it stays between iterations [cache, operand, or 1 for all; depth, candidate].
        lost: what a register tile moves of operands of which not even it stays [cache, candidate]: every element brings
            its line.
    """
    loaded, cached = resident[:, :, -1].copy(), np.broadcast_to(cached, resident.shape)
    for k, moved in uncached.items():
        loaded[:, k] = np.where(cached[:, k, -1], loaded[:, k], moved)
    # from the inside: what one run of the loops from depth d inwards moves; between iterations of a loop whose body
    # fits everything stays that the next iteration touches again. All caches and operands at once: formulas cost as
    # much for few numbers as for many
    stays = cached[:, :, 1:] & present
    for d in range(len(counts) - 1, -1, -1):
        loaded = np.where(stays[:, :, d], resident[:, :, d], loaded * counts[d])
    return loaded.swapaxes(0, 1)


def _conflict_bytes(stays: Numbers, uncached: Numbers, pressure: Numbers, overflows: Mask) -> Numbers:
    """Bytes that a register tile moves of an access whose rows crowd in sets of the first cache.

    Args:
        stays: what it moves where all stays that an L2 tile touches.
        single: the same where every element brings its line.
        over: lines in these sets over those that fit, as far as rows crowd there.
        full: whether a register tile does not fit, however it lies.
    """
    lost = 1.0 - 1.0 / np.maximum(pressure, 1.0)
    longer = np.maximum(stays, uncached * MAX_CONFLICT_PENALTY * lost**3)
    return np.where(pressure > 1.0, np.where(overflows, np.maximum(longer, uncached), longer), uncached)


def _line_per_element_bytes(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, operand_index: int, segment_bytes: Numbers, line: int
) -> Numbers:
    """Bytes that a register tile moves of an access whose elements along the lanes lie in different lines, where none
    of these stays: one line per element, but for results that are stored in runs along another axis."""
    operand, tile = batch.family.accesses[operand_index], batch.tiles[REGISTER]
    alone = touched_elements(operand, tile) * line
    if operand_index < len(problem.operands) or not operand.written:
        return alone
    along = [a for a in problem.spatial if a != sketch.lane and problem.results[-1].strides[a] == 1]
    return np.where(np.logical_or.reduce([tile[a] > 1 for a in along]), segment_bytes, alone) if along else alone


def has_line_per_lane(problem: Problem, sketch: Sketch, line: int) -> tuple[bool, ...]:
    """Per access whether elements along the lanes lie in different lines."""
    return tuple([abs(o.strides[sketch.lane]) * o.element_bytes >= line for o in (*problem.operands, *problem.results)])


def _partial_sum_bytes(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Bytes of the totals that chunks are added to."""
    size: Numbers = np.full_like(batch.covered[0], problem.bits / 8)
    for a in problem.spatial:
        size = size * batch.tiles[L1][a]
    return np.where(k_block_count(sketch, batch) > 1, size, 0.0)
