"""How long tile programs take on a machine, by formulas: instructions of the register tile, bytes through every level
of memory, and what threads cost.

Work of different kinds overlaps, but never fully, so the time is that of the slowest kind and a part of the rest. Rates
are those of the machine's description; nothing is fitted to single programs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.machine.model import Machine
from tilewright.tile.columns import Columns, chunks, sum_of
from tilewright.tile.features import Features, features
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Problem
from tilewright.tile.program import L2, REGISTER, Form, Sizes, TileProgram, remainders
from tilewright.tile.traffic import cache_traffic

OVERLAP = 0.25
"""The part of the time of all but the slowest kind of work that is not hidden behind it."""

ISSUE = 5.0
"""Instructions that start per cycle."""

LOAD_CYCLES = 1.25
"""Of a load, where ports would allow 1: they are not free every time."""

STEP_CYCLES = 0.5
"""What the loop around a step costs beyond its instructions."""

LOOP_CYCLES = 4.0
"""Of starting and leaving a loop around steps."""

TILE_CYCLES = 12.0
"""Of starting and ending a register tile, beyond its loads and stores: a full pipeline, a mispredicted branch."""

START = 0.5
"""Of the latency of the second cache, what each place costs at which a register tile begins to read."""

SPREAD_CYCLES = 1.5
"""Of storing one element of a vector of results across the direction of the vector."""

GATHER_CYCLES = 2.0
"""Of putting one vector together from every second to fourth element of vectors that were loaded."""

TRANSLATIONS = 96.0
"""Pages whose addresses a core translates without delay."""

TRANSLATION_CYCLES = 3.0
"""Of looking up one more, as far as it is not hidden."""

CODE = 4e-4
"""What one more vector operation written out counts, as a part of the time: of programs alike the shorter is better."""

FOLLOWED = 12.0
"""Streams that hardware fetches ahead for."""

STREAM_PENALTY = 0.3
"""What as many streams again cost, as a part of the time of far memory."""

TURN_CYCLES = 6.0
"""Of packing one element of an operand along an axis in which it is not contiguous."""

MASK_PENALTY = 0.25
"""Of the loads of lanes that are masked in every step, as a part of the step."""

SPILLED = 4.0
"""Cycles per step and vector that has no register."""


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


def cycles(problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Cycles of all instructions, on one core."""
    step = step_cycles(problem, form, columns, found, machine)
    results = found.accumulators
    cut = chunks(form, columns) > 1
    # the totals of a register tile are loaded, added to and stored once per chunk, results stored at the end
    ends = np.where(cut, results * (1.0 / machine.load_ports + 1.0 / machine.store_ports), 0.0)
    last = results * sum(1.0 / (machine.store_ports if o.written else machine.load_ports) for o in problem.results)
    if form.transposed:
        last = last + results * form.lanes * SPREAD_CYCLES
    last = last / chunks(form, columns)
    # more pages than translations are kept at hand: each is looked up again
    pages = np.where(found.pages > TRANSLATIONS, found.pages * TRANSLATION_CYCLES, 0.0)
    # what a register tile reads first comes from the second cache before anything is fetched ahead
    first = START * found.starts * machine.levels[min(1, len(machine.levels) - 1)].latency_ns * machine.ghz
    loops = found.entries * LOOP_CYCLES + first
    return found.micro_tiles * (found.steps * step + loops + ends + last + pages + TILE_CYCLES)


def step_cycles(problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Cycles of one step: a register tile over one (unrolled) piece of the reduction."""
    pipes = found.multiply_adds / machine.fma_pipes
    loads = found.vector_loads + found.element_loads + found.gathers * GATHER_CYCLES
    ports = loads / machine.load_ports * LOAD_CYCLES
    unrolled = sum_of([np.ones(1)])
    for k in problem.reduce:
        unrolled = unrolled * columns.tiles[REGISTER][k]
    # every accumulator is a chain: the next addition to it waits for the one before
    latency = machine.fma_cycles * unrolled if problem.reduce else 0.0
    issue = (found.multiply_adds + found.vector_loads + found.element_loads + 2) / ISSUE
    longest = np.maximum(np.maximum(pipes, ports), np.maximum(latency, issue))
    spilled = np.maximum(found.registers - machine.vector_registers, 0.0) * SPILLED
    masked = _masked(problem, form, columns) * (MASK_PENALTY * found.vector_loads + 2.0 * GATHER_CYCLES * found.gathers)
    return longest + spilled + masked + STEP_CYCLES


def _masked(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """The part of all register tiles that reads lanes under a mask: those at the end of the lane axis, where an operand
    is not packed."""
    packed = {k for k, _ in form.packed}
    plain = any(o.uses(form.lane) and k not in packed for k, o in enumerate(problem.operands))
    size = columns.tiles[REGISTER][form.lane]
    extent = problem.axes[form.lane].extent
    return np.where((extent % size != 0) & plain, 1.0 / np.ceil(extent / size), 0.0)


def packing(problem: Problem, form: Form, machine: Machine) -> float:
    """Nanoseconds of packing operands whose data is not known at compile time."""
    far = machine.levels[min(2, len(machine.levels) - 1)]
    total = 0.0
    for k, _ in form.packed:
        o = problem.operands[k]
        if not o.constant:
            size = float(np.prod(o.shape))
            each = 0.0 if o.strides[form.lane] == 1 else TURN_CYCLES / machine.ghz
            total += size * (each + 2.0 * o.bytes / far.gbs(1))
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
    return Time(found.compute, found.memory, found.parallel, found.total + packing(problem, form, machine))


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
    caches = [x for x in machine.levels[:-1] if x.ways]
    moved = cache_traffic(problem, form, columns, [_capacity(x.bytes, x.shared_by) for x in caches], caches[0].line)
    # what lies beyond the second cache comes in time only as far as streams are followed
    lost = 1.0 + np.maximum(found.streams - FOLLOWED, 0.0) / FOLLOWED * STREAM_PENALTY
    moved = [m * lost if k >= 1 else m for k, m in enumerate(moved)]
    alone = _time(work, [m / far.gbs(1) for m, far in zip(moved, machine.levels[1:], strict=False)])
    threads = np.minimum(machine.cores, found.tasks)
    # fewer tasks than threads: the busiest thread has one of them, and only so many threads read
    uneven = np.where(found.tasks < machine.cores, 1.0, found.balance)
    shared = _time(
        work * found.balance / machine.cores,
        [m * uneven / np.minimum(far.core_gbs * threads, far.total_gbs)
         for m, far in zip(moved, machine.levels[1:], strict=False)],
    )  # fmt: skip
    wake = np.where(found.tasks > 1, machine.sync_us * 1e3, 0.0)
    together = shared.total + wake
    better = (together < alone.total) & (found.tasks > 1)
    memory = tuple(np.where(better, s, a) for s, a in zip(shared.memory, alone.memory, strict=True))
    total = np.where(better, together, alone.total) * (1.0 + CODE * found.multiply_adds)
    compute = np.where(better, shared.compute, alone.compute)
    return Time(compute, memory, np.where(better, wake, 0.0), total)


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
