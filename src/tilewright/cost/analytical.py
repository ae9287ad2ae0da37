"""How long tile programs take on a machine, by formulas: instructions of the register tile, bytes through every level
of memory, and what threads cost.

Work of different kinds overlaps, but never fully, so the time is that of the slowest kind and a part of the rest. Rates
are those of the machine's description; nothing is fitted to single programs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.cost.instructions import cycles
from tilewright.errors import MachineError
from tilewright.machine.model import Level, Machine
from tilewright.tile.columns import Columns, accesses_of
from tilewright.tile.features import features
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Problem
from tilewright.tile.program import L2, REGISTER, Form, Sizes, TileProgram, remainders
from tilewright.tile.traffic import USABLE, cache_traffic, waits

OVERLAP = 0.25
"""The part of the time of all but the slowest kind of work that is not hidden behind it."""

CODE = 4e-4
"""What one more vector operation written out counts, as a part of the time: of programs alike the shorter is better."""

FOLLOWED = 12.0
"""Streams that hardware fetches ahead for."""

STREAM_PENALTY = 0.3
"""What as many streams again cost, as a part of the time of far memory."""

COPY_CYCLES = 0.4
"""Of packing one element of an operand along the axis in which it is contiguous."""

TURN_CYCLES = 6.0
"""Of packing one element of an operand along an axis in which it is not contiguous."""

@dataclass(frozen=True, slots=True)
class Time:
    """Nanoseconds of a batch by what they are spent on; `total` is what counts.

    Attributes:
        compute: instructions of register tiles, on the busiest thread.
        memory: one per memory level from L2 outwards: bytes that leave it over its bandwidth.
        parallel: starting and joining threads, if any.
        total: the whole.
    """

    compute: Numbers
    memory: tuple[Numbers, ...]
    parallel: Numbers
    total: Numbers


def packing(problem: Problem, form: Form, machine: Machine) -> float:
    """Nanoseconds of packing operands whose data is not known at compile time, on one thread."""
    near = [x for x in machine.levels[1:] if x.ways and x.shared_by == 1]
    total = 0.0
    for k, axis in form.packed:
        o = problem.operands[k]
        if not o.constant:
            size = float(np.prod(o.shape))
            # a copy of what the second cache holds with its source comes and goes there
            held = [x for x in near if 2.0 * size * o.bytes <= x.bytes * USABLE]
            level = held[0] if held else machine.levels[min(2, len(machine.levels) - 1)]
            each = (COPY_CYCLES if o.strides[axis] == 1 else TURN_CYCLES) / machine.ghz
            total += size * (each + 2.0 * o.bytes / level.gbs(1))
    return total


def times(problem: Problem, form: Form, sizes: Sizes, machine: Machine) -> Time:
    """The times of candidates [candidate, level, axis]."""
    found = _part(problem, form, Columns.of(problem, form, sizes), machine)
    left = remainders(problem, form, sizes)
    some = np.flatnonzero((left > 0).any(axis=1))
    if len(some):
        # the rows that are left run behind the others, in the same tasks where these have all whole tiles of rows
        rest = _part(problem, form, Columns.of_rest(problem, form, sizes[some]), machine)
        apart = ((sizes[some, L2] < _whole_rows(problem, sizes[some])) & (left[some] > 0)).any(axis=1)
        joined = rest.parallel * np.where(apart, 1.0, 0.0)
        rest = Time(rest.compute, rest.memory, joined, rest.total - rest.parallel + joined)
        found = _sum(found, rest, some)
    share = np.where(found.parallel > 0, machine.cores, 1)
    return Time(found.compute, found.memory, found.parallel, found.total + packing(problem, form, machine) / share)


def _whole_rows(problem: Problem, sizes: Sizes) -> Sizes:
    """Rows in whole register tiles [candidate, axis]."""
    extents = np.array([a.extent for a in problem.axes], np.int64)
    return extents // sizes[:, REGISTER] * sizes[:, REGISTER]


def _sum(whole: Time, rest: Time, some: npt.NDArray[np.int64]) -> Time:
    """Times of two parts that follow each other; only some candidates have the second one."""

    def added(a: Numbers, b: Numbers) -> Numbers:
        result = a.copy()
        result[some] += b
        return result

    memory = tuple(added(a, b) for a, b in zip(whole.memory, rest.memory, strict=True))
    return Time(added(whole.compute, rest.compute), memory, added(whole.parallel, rest.parallel),
                added(whole.total, rest.total))  # fmt: skip


def _part(problem: Problem, form: Form, columns: Columns, machine: Machine) -> Time:
    """The times of one part: all whole register tiles, or the rows that are left."""
    found = features(problem, form, columns, machine.cores)
    work = cycles(problem, form, columns, found, machine) / machine.ghz
    near = caches(machine)
    moved = cache_traffic(problem, form, columns, [_capacity(x.bytes, x.shared_by) for x in near], near[0].line)
    if waits(problem):
        # what lies beyond the second cache comes in time only as far as streams are followed
        lost = 1.0 + np.maximum(found.streams - FOLLOWED, 0.0) / FOLLOWED * STREAM_PENALTY
        moved = [m * lost if k >= 1 else m for k, m in enumerate(moved)]
    elif _whole(problem) <= _capacity(near[min(1, len(near) - 1)].bytes, near[min(1, len(near) - 1)].shared_by) * USABLE:
        # earlier kernels have just made what they hand on: it is still there where the second cache holds it
        moved = [m if k == 0 else np.zeros_like(m) for k, m in enumerate(moved)]
    return shared_out([(work, moved)], found.tasks, 1.0 + CODE * found.multiply_adds, machine)


def shared_out(
    parts: Sequence[tuple[Numbers, Sequence[Numbers]]], tasks: Numbers, longer: Numbers, machine: Machine
) -> Time:
    """The times on one thread or on all cores, whichever are shorter.

    Args:
        parts: what a task does one after the other, so that work of one part hides nothing of another: nanoseconds of
            all instructions on one core, and bytes that leave each memory level from the second one outwards.
        tasks: that threads share.
        longer: by what times grow for other reasons.
        machine: with its cores.
    """
    far = machine.levels[1:]
    alone = _together([_time(work, [m / x.gbs(1) for m, x in zip(moved, far, strict=False)]) for work, moved in parts])
    threads = np.minimum(machine.cores, tasks)
    balance = np.ceil(tasks / machine.cores) * machine.cores / tasks
    # fewer tasks than threads: the busiest thread has one of them, and only so many threads read
    uneven = np.where(tasks < machine.cores, 1.0, balance)
    rates = [np.minimum(x.core_gbs * threads, x.total_gbs) for x in far]
    shared = _together([
        _time(work * balance / machine.cores, [m * uneven / r for m, r in zip(moved, rates, strict=False)])
        for work, moved in parts
    ])  # fmt: skip
    wake = np.where(tasks > 1, machine.sync_us * 1e3, 0.0)
    together = shared.total + wake
    better = (together < alone.total) & (tasks > 1)
    memory = tuple(np.where(better, s, a) for s, a in zip(shared.memory, alone.memory, strict=True))
    total = np.where(better, together, alone.total) * longer
    compute = np.where(better, shared.compute, alone.compute)
    return Time(compute, memory, np.where(better, wake, 0.0), total)


def _together(parts: Sequence[Time]) -> Time:
    """The times of parts that follow each other."""
    found = parts[0]
    for x in parts[1:]:
        memory = tuple(a + b for a, b in zip(found.memory, x.memory, strict=True))
        found = Time(found.compute + x.compute, memory, found.parallel, found.total + x.total)
    return found


def caches(machine: Machine) -> tuple[Level, ...]:
    """The caches of a machine, nearest first.

    Raises:
        MachineError: it has none, as graphics processors have memories that programs fill themselves.
    """
    found = tuple(x for x in machine.levels[:-1] if x.ways)
    if not found:
        what = f"it has no caches, and there is no construction of programs for {machine.arch} yet"
        hint = "choose the description of a processor"
        raise MachineError(what, where=f"machine {machine.name!r}", hint=hint)
    return found


def _whole(problem: Problem) -> float:
    """Bytes of all operands."""
    return float(sum(prod(o.shape) * o.bytes for o in accesses_of(problem)))


def _capacity(size: int, shared_by: int) -> float:
    """What one thread may count on of a cache."""
    return size / max(1, shared_by)


def _time(compute: Numbers, memory: list[Numbers]) -> Time:
    kinds = [compute, *memory]
    longest, total = kinds[0], kinds[0]
    for x in kinds[1:]:
        longest, total = np.maximum(longest, x), total + x
    return Time(compute, tuple(memory), np.zeros_like(compute), longest + OVERLAP * (total - longest))


def nanoseconds(program: TileProgram, machine: Machine) -> float:
    """The time of one program."""
    return float(times(program.problem, program.form, program.array[None], machine).total[0])


def worth_threads(program: TileProgram, machine: Machine) -> bool:
    """Whether a program should run on several threads; always where a size is known only later."""
    if not all(a.literal for a in program.problem.axes):
        return True
    return bool(times(program.problem, program.form, program.array[None], machine).parallel[0] > 0)
