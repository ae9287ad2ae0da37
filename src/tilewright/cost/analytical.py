"""How long tile programs take on a machine, by formulas: instructions of the register tile, bytes through every level
of memory, and what threads cost.

Work of different kinds overlaps, but never fully, so the time is that of the slowest kind and a part of the rest.

Clocks, units, latencies and rates are those of the machine's description. What it has no figure for are constants, here
and in `instructions.py`, `chain.py`, `time.py` and `tile/following.py`: cycles of loops that start, of conditions,
masks, shuffles and spills, how much work overlaps, how many streams and pages are followed and what more of them cost.
They were set by measurements of programs on two machines of two cores each, Intel Xeons with AVX-512, 2 MiB of L2 and
105 or 480 MiB of L3 cache, some on a third one, an AMD EPYC with AVX2, and are the same for all kernels and all
machines. What each was fixed by is in `docs/cost-model.md`; how well programs are ordered says
`benchmarks/cost_model.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.cost.instructions import cycles
from tilewright.cost.time import Time, caches, missing, shared_out
from tilewright.machine.model import Level, Machine
from tilewright.tile.arrival import arriving
from tilewright.tile.columns import Columns, sum_of
from tilewright.tile.family import Family
from tilewright.tile.features import features, strides_along
from tilewright.tile.following import used_once, waits
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Form, Mask, Sizes, TileProgram, remainder_tiles
from tilewright.tile.traffic import USABLE, Feet, cache_traffic, lines_along

CODE = 4e-4
"""What one more vector operation written out counts, as a part of the time: of programs alike the shorter is better."""

FOLLOWED = 12.0
"""Streams that hardware fetches ahead for."""

STREAM_PENALTY = 0.3
"""What as many streams again cost, as a part of the time of far memory."""

COPY_CYCLES = 0.4
"""Of packing one element of an operand along the axis in which it is contiguous."""

MASKED_COPY_CYCLES = 1.0
"""The same where the axis has an unknown size: every run of elements is asked whether it is whole."""

TURN_CYCLES = 6.0
"""Of packing one element of an operand along an axis in which it is not contiguous."""


CALL = 1000.0
"""Nanoseconds that a kernel's call costs whatever it computes, no part of times: at sizes so small programs hardly
differ."""


def packing(problem: Problem, form: Form, machine: Machine) -> float:
    """Nanoseconds of packing operands whose data is not known at compile time, on one thread."""
    total = 0.0
    for k, axis in form.packed:
        o = problem.operands[k]
        if not o.constant:
            size = float(prod(o.shape))
            # a copy of what a cache holds with its source comes and goes there
            level = next(
                (x for x in machine.levels[1:] if 2.0 * size * o.bytes <= x.share * USABLE), machine.levels[-1]
            )
            copy = COPY_CYCLES if problem.axes[axis].literal else MASKED_COPY_CYCLES
            each = (copy if o.strides[axis] == 1 else TURN_CYCLES) / machine.ghz
            # beyond all caches, lines that are written are read before
            times_moved = 2.0 if level.ways else 3.0
            total += size * (each + times_moved * o.bytes / level.gbs(1))
    return total


BATCH = 4000
"""Candidates that are scored at once: of more, what formulas compute in between does not stay in the caches."""


def times(problem: Problem, form: Form, sizes: Sizes, machine: Machine) -> Time:
    """The times of candidates [candidate, level, axis]."""
    return _times(Family.of(problem), form, sizes, machine)


def _times(family: Family, form: Form, sizes: Sizes, machine: Machine) -> Time:
    """The times of candidates [candidate, level, axis] whose problems are `_alike`."""
    if len(sizes) <= BATCH:
        return _batch(family, form, sizes, machine)
    parts = np.split(np.arange(len(sizes)), range(BATCH, len(sizes), BATCH))
    return Time.joined([_batch(family.picked(k), form, sizes[k], machine) for k in parts])


def _batch(family: Family, form: Form, sizes: Sizes, machine: Machine) -> Time:
    """The times of one batch."""
    columns = Columns.of(family, form, sizes)
    heights, counts = remainder_tiles(family, form, sizes)
    some = np.flatnonzero((counts > 0).any(axis=1))
    has_whole = _some_whole(family, form, sizes)
    if not len(some):
        found = _where(has_whole, _part(form, columns, machine))
    else:
        rows, of = heights * counts, family.picked(some)
        left = Columns.of_rest(of, form, sizes[some], heights[some], rows[some])
        # formulas cost as much for few candidates as for many
        both, count = _part(form, columns.joined(left), machine), len(sizes)
        whole, rest = both.each(lambda x: x[:count]), both.each(lambda x: x[count:])
        # the rows that are left run behind the others, in the same tasks where these have all whole tiles of rows
        apart = ((sizes[some, L2] < _whole_rows(of, sizes[some])) & (rows[some] > 0)).any(axis=1)
        joined = rest.parallel * np.where(apart, 1.0, 0.0)
        rest = Time(rest.compute, rest.memory, joined, rest.total - rest.parallel + joined)
        found = _where(has_whole, whole) + _among(some, rest, count)
    share = np.where(found.parallel > 0, machine.cores, 1)
    (packed,) = family.each(lambda p: (packing(p, form, machine),))
    return Time(found.compute, found.memory, found.parallel, found.total + packed / share)


def expected(problem: Problem, form: Form, sizes: Sizes, machine: Machine) -> Numbers:
    """Nanoseconds of candidates: their times where all sizes are known, else the geometric means over the problem's
    samples, so that a part of the time of a call counts alike at small sizes and at large ones."""
    if not problem.samples:
        return times(problem, form, sizes, machine).total
    total = np.empty((len(problem.samples), len(sizes)))
    for same in _alike(problem, form, machine):
        # all sizes at once: formulas cost as much for few candidates as for many
        which = np.repeat(np.arange(len(same)), len(sizes))
        family = Family(tuple(problem.samples[k] for k in same), which)
        found = _times(family, form, fitted(family, np.tile(sizes, (len(same), 1, 1))), machine)
        total[same] = found.total.reshape(len(same), -1)
    return over_samples(total)


def over_samples(total: Numbers) -> Numbers:
    """The geometric means of nanoseconds [sample, candidate], each with what a call costs."""
    logs = np.log(total + CALL)
    return np.exp(sum_of(logs) / len(logs)) - CALL


def _alike(problem: Problem, form: Form, machine: Machine) -> list[list[int]]:
    """The samples of a problem, by their positions, with those together that formulas treat alike: sums are long or
    short, and operands lie along the lanes in the same way."""
    found: dict[tuple[object, ...], list[int]] = {}
    line = caches(machine)[0].line
    for k, p in enumerate(problem.samples):
        found.setdefault((waits(p), strides_along(p, form), lines_along(p, form, line)), []).append(k)
    return list(found.values())


def fitted(family: Family, sizes: Sizes) -> Sizes:
    """The sizes of candidates at other extents: tiles of a reduction whose extent is a symbol cover all of it."""
    found = sizes.copy()
    for k in family.problem.reduce:
        if not family.problem.axes[k].literal:
            step = sizes[:, REGISTER, k]
            found[:, L1:, k] = (-(-family.sizes[:, k] // step) * step)[:, None]
    return found


def _some_whole(family: Family, form: Form, sizes: Sizes) -> Mask:
    """Which candidates have a whole register tile at all."""
    rows = [k for k in family.problem.spatial if k != form.lane]
    return np.all(sizes[:, REGISTER, rows] <= family.sizes[:, rows], axis=1)


def _where(some: Mask, time: Time) -> Time:
    """The times of some candidates; the others take none."""
    return time if some.all() else time.each(lambda x: np.where(some, x, 0.0))


def _whole_rows(family: Family, sizes: Sizes) -> Sizes:
    """Rows in whole register tiles [candidate, axis]."""
    return family.sizes // sizes[:, REGISTER] * sizes[:, REGISTER]


def _among(some: npt.NDArray[np.int64], time: Time, count: int) -> Time:
    """The times of some candidates among all of them, of which the others take none."""

    def spread(x: Numbers) -> Numbers:
        result = np.zeros(count)
        result[some] = x
        return result

    return time.each(spread)


def _part(form: Form, columns: Columns, machine: Machine) -> Time:
    """The times of one part: all whole register tiles, or the rows that are left."""
    family, problem = columns.family, columns.family.problem
    columns = columns if waits(problem) else _written_out(problem, form, columns)
    found = features(problem, form, columns)
    work = cycles(problem, form, columns, found, machine) / machine.ghz
    near = caches(machine)
    # a cache of many cores mixes more of an address into its set
    sets = [_sets(x) for x in near if x.shared_by == 1]
    sizes = [x.share for x in near]
    feet = Feet.of(problem, form, columns, near[0].line)
    threads = [machine.cores if x.shared_by == 1 else 1 for x in near]
    moved, by_all = cache_traffic(problem, form, columns, sizes, near[0].line, sets, feet, threads, machine.tlb_entries)
    grown = [all_ / np.maximum(one, 1.0) for all_, one in zip(by_all, moved, strict=True)]
    if used_once(problem):
        # a cache that is a little too small has lost most of what is read from first to last, as it was written
        away = family.each(lambda p: [1.0, *(min(1.0, 2.0 * missing(_whole(p), x.share)) for x in near[1:])])
        return shared_out([(work, [m * part for m, part in zip(moved, away, strict=True)])], found.tasks,
                          1.0 + CODE * found.multiply_adds, machine, grown=grown)  # fmt: skip
    if waits(problem):
        # what lies beyond the second cache comes in time only as far as streams are followed
        lost = 1.0 + np.maximum(found.streams - FOLLOWED, 0.0) / FOLLOWED * STREAM_PENALTY
        moved = [m * lost if k >= 1 else m for k, m in enumerate(moved)]
        parts = _phases(problem, form, columns, near, (work, moved, feet))
        return shared_out(parts, found.tasks, 1.0 + CODE * found.multiply_adds, machine, grown=grown)
    # stores of single elements leave in order, and each waits for its line
    waiting = moved[0] / (3.0 * near[0].line) * machine.levels[min(1, len(machine.levels) - 1)].latency_ns
    work = work + np.where(found.spread > 0, waiting, 0.0)
    away = family.each(lambda p: [1.0, *(missing(_whole(p), x.share) for x in near[1:])])
    moved = [m * part for m, part in zip(moved, away, strict=True)]
    return shared_out([(work, moved)], found.tasks, 1.0 + CODE * found.multiply_adds, machine, True, grown)


def _phases(
    problem: Problem, form: Form, columns: Columns, near: Sequence[Level],
    known: tuple[Numbers, Sequence[Numbers], Feet],
) -> list[tuple[Numbers, list[Numbers]]]:  # fmt: skip
    """Work, and bytes that leave each memory level, while data come from beyond the second cache; and the rest, for
    which they are there."""
    work, moved, feet = known
    if len(near) < 2:
        return [(work, list(moved))]
    first = arriving(problem, form, columns, near[1].share, near[0].line, feet)
    later = 1.0 - first
    return [
        (work * first, [moved[0] * first, *moved[1:]]),
        (work * later, [moved[0] * later, *(np.zeros_like(m) for m in moved[1:])]),
    ]


def _written_out(problem: Problem, form: Form, columns: Columns) -> Columns:
    """The columns as LLVM sees them: it writes out short windows, whichever of their loops a program leaves."""
    sizes, windows = columns.sizes.copy(), [k for k in problem.reduce if k != form.lane]
    sizes[REGISTER, windows] = sizes[L1, windows]
    return replace(columns, sizes=sizes)


def _whole(problem: Problem) -> float:
    """Bytes of all operands."""
    return float(sum(prod(o.shape) * o.bytes for o in (*problem.operands, *problem.results)))


def _sets(cache: Level) -> int:
    """Sets of a cache: a power of two, whatever a description says of its size and its ways."""
    return 1 << max(1, cache.bytes // (cache.line * cache.ways)).bit_length() - 1


def nanoseconds(program: TileProgram, machine: Machine) -> float:
    """The time of one program."""
    return float(expected(program.problem, program.form, program.array[None], machine)[0])


def worth_threads(program: TileProgram, machine: Machine) -> bool:
    """Whether a program should run on several threads; always where a size is known only later."""
    if not all(a.literal for a in program.problem.axes):
        return True
    return bool(times(program.problem, program.form, program.array[None], machine).parallel[0] > 0)
