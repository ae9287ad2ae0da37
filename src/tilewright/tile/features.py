"""What is known of tile programs without running them: closed formulas over arrays of candidates.

Traffic of a memory level follows from the loops: a loop whose body fits the level loads what it touches once in all its
iterations together, as what two iterations share stays; a loop whose body does not fit loads it in every iteration.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.tile.footprint import Numbers, distinct, elements, moved_bytes
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import L1, L2, REGISTER, Form, Sizes

USABLE = 0.75
"""The part of a cache that a program may count on; the rest is for what passes through."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the nest that a program stands for: over tiles of a level, along an axis."""

    axis: int
    level: int


@lru_cache(maxsize=256)
def nest(problem: Problem, form: Form) -> tuple[Loop, ...]:
    """The loops, outermost first; see `tile.program`."""
    loops = [Loop(a, L2) for a in form.order] + [Loop(a, L1) for a in form.order]
    loops += [Loop(k, L1) for k in problem.reduce]
    loops += [Loop(a, REGISTER) for a in form.order] + [Loop(k, REGISTER) for k in problem.reduce]
    return tuple(loops)


@dataclass(frozen=True, slots=True)
class Columns:
    """Sizes of a batch with one contiguous array per level and axis, as numbers.

    Attributes:
        tiles: [level][axis]
        whole: per axis the extent, rounded up to whole lanes.
    """

    tiles: tuple[tuple[Numbers, ...], ...]
    whole: tuple[Numbers, ...]

    @staticmethod
    def of(problem: Problem, form: Form, sizes: Sizes) -> "Columns":
        """The columns of candidates [candidate, level, axis]."""
        turned = np.ascontiguousarray(sizes.transpose(1, 2, 0)).astype(np.float64)
        whole: list[Numbers] = []
        for k, a in enumerate(problem.axes):
            size = turned[REGISTER, k]
            whole.append(np.ceil(a.extent / size) * size if k == form.lane else np.full_like(size, a.extent))
        return Columns(tuple(tuple(level) for level in turned), tuple(whole))

    def count(self, loop: Loop) -> Numbers:
        """Iterations of a loop; not whole where the last tile is a remainder."""
        above = self.whole if loop.level == L2 else self.tiles[loop.level + 1]
        return above[loop.axis] / self.tiles[loop.level][loop.axis]


def footprint(problem: Problem, form: Form, columns: Columns, level: int, line: int) -> Numbers:
    """F: bytes that a tile of a level touches."""
    return sum_of(
        moved_bytes(o, columns.tiles[level], line, _is_packed(form, k)) for k, o in enumerate(_all(problem))
    )


def traffic(problem: Problem, form: Form, columns: Columns, level: int, line: int) -> Numbers:
    """Q: bytes that move into a level in the whole program when every tile of it is loaded anew (Roller's figure)."""
    box = list(columns.tiles[level])
    tiles: Numbers = np.ones_like(box[0])
    for a in problem.spatial:
        tiles = tiles * np.ceil(columns.whole[a] / box[a])
    for k in problem.reduce:
        box[k] = columns.whole[k]
    read = sum_of(moved_bytes(o, box, line, _is_packed(form, k)) for k, o in enumerate(problem.operands))
    return tiles * (read + sum_of(moved_bytes(o, box, line) for o in problem.results))


def cache_traffic(
    problem: Problem, form: Form, columns: Columns, capacities: Sequence[float], line: int
) -> list[Numbers]:
    """Bytes that move into each cache, for caches of these capacities, by the loops of the program.

    What fits the last one as a whole is there before the program starts: earlier kernels have just used it.
    """
    loops = nest(problem, form)
    counts = [columns.count(loop) for loop in loops]
    moving = [k for k, c in enumerate(counts) if (c > 1).any()]
    loops, counts = tuple(loops[k] for k in moving), [counts[k] for k in moving]
    operands = _all(problem)
    starts = [_starts(o, form, columns, line, _is_packed(form, k)) for k, o in enumerate(operands)]
    feet = [_feet(o, loops, columns, line, _is_packed(form, k)) for k, o in enumerate(operands)]
    totals = _totals(problem, form, columns)
    sums = [sum_of(f[d] for f in feet) + totals for d in range(len(loops) + 1)]
    found: list[Numbers] = []
    for level, capacity in enumerate(capacities):
        total: Numbers = np.zeros_like(totals)
        fits = [s <= capacity * USABLE for s in sums[:-1]] + [np.ones(len(totals), np.bool_)]
        for o, f, start in zip(operands, feet, starts, strict=True):
            # from the inside: what one run of the loops from depth d inwards moves; between iterations of a loop
            # whose body fits everything stays that the next iteration touches again
            loaded = f[-1]
            for d in range(len(loops) - 1, -1, -1):
                loaded = np.where(fits[d + 1], f[d], loaded * counts[d])
            total = total + loaded * (2.0 if o.written else 1.0) * (start if level >= 1 else 1.0)
        found.append(total)
    if found:
        found[-1] = np.where(sums[0] <= capacities[-1] * USABLE, 0.0, found[-1])
    return found


RUN_START = 0.4
"""Lines that could have come while a run of contiguous elements starts: only then they are fetched ahead."""


def _starts(operand: Operand, form: Form, columns: Columns, line: int, packed: bool) -> Numbers:
    """By what the time of far memory grows as the elements of an operand are not met in the order of memory."""
    one: Numbers = np.ones_like(columns.whole[0])
    if packed or not operand.index:
        return one
    last = form.order[-1]
    apart = sum_of(columns.tiles[L1][a] - columns.tiles[REGISTER][a] for a in form.order[:-1])
    box = list(columns.tiles[REGISTER])
    for a in range(len(box)):
        if a not in form.order:
            box[a] = columns.tiles[L1][a]
    box[last] = np.where(apart > 0, columns.tiles[L1][last], columns.tiles[L2][last])
    run = np.minimum(distinct(operand.index[-1], box)[1], max(1, operand.shape[-1])) * operand.bytes
    # a run over whole rows goes on in the next one
    run = np.where(run >= operand.shape[-1] * operand.bytes, np.maximum(run, 8.0 * line), run)
    return one + RUN_START * line / np.maximum(run, line)


def _feet(operand: Operand, loops: Sequence[Loop], columns: Columns, line: int, packed: bool) -> list[Numbers]:
    """The footprint of an operand at every depth: of all loops, of all but the outermost, ..., of one register tile."""
    box = list(columns.whole)
    found = [moved_bytes(operand, box, line, packed)]
    for loop in loops:
        box[loop.axis] = columns.tiles[loop.level][loop.axis]
        found.append(moved_bytes(operand, box, line, packed) if operand.uses(loop.axis) else found[-1])
    return found


def _totals(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """Bytes of the totals that chunks are added to."""
    size: Numbers = np.full_like(columns.whole[0], problem.bits / 8)
    for a in problem.spatial:
        size = size * columns.tiles[L1][a]
    return np.where(chunks(form, columns) > 1, size, 0.0)


def chunks(form: Form, columns: Columns) -> Numbers:
    """Into how many parts the reduction is cut."""
    k = form.chunked
    return np.ones_like(columns.whole[0]) if k is None else np.ceil(columns.whole[k] / columns.tiles[L1][k])


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a batch.

    Attributes:
        tasks: parallel tasks, B.
        balance: the time of the busiest of p threads over the average, ceil(B/p) p / B.
        micro_tiles: register tiles, each over one chunk of the reduction.
        accumulators: vectors that are accumulated at once.
        registers: vectors that must be held at once.
        steps: steps of the reduction of one register tile and chunk, each a register tile written out.
        vector_loads, element_loads, gathers: per step, of whole vectors, of elements that are broadcast, and of
            elements that are collected into vectors.
        multiply_adds: vector operations per step.
        useful: the part of all computed lanes and rows that is asked for.
        streams: places far apart in memory that a register tile reads and writes.
    """

    tasks: Numbers
    balance: Numbers
    micro_tiles: Numbers
    accumulators: Numbers
    registers: Numbers
    steps: Numbers
    vector_loads: Numbers
    element_loads: Numbers
    gathers: Numbers
    multiply_adds: Numbers
    useful: Numbers
    streams: Numbers


def features(problem: Problem, form: Form, columns: Columns, threads: int) -> Features:
    """The features of candidates for a number of threads."""
    one: Numbers = np.ones_like(columns.whole[0])
    tasks, micro, accumulators, useful = one, chunks(form, columns), one / form.lanes, one
    for a in problem.spatial:
        size = columns.tiles[REGISTER][a]
        tasks = tasks * np.ceil(columns.whole[a] / columns.tiles[L2][a])
        micro = micro * np.ceil(columns.whole[a] / size)
        accumulators = accumulators * size
        useful = useful * problem.axes[a].extent / columns.whole[a]
    steps = window = one
    for k in problem.reduce:
        steps = steps * columns.tiles[L1][k] / columns.tiles[REGISTER][k]
        window = window * columns.tiles[REGISTER][k]
    vectors, broadcast, gathers = one * 0, one * 0, one * 0
    held = one * 0
    for k, o in enumerate(problem.operands):
        if o.written:
            continue
        touched = elements(o, columns.tiles[REGISTER])
        along = 1 if _is_packed(form, k) else o.strides[form.lane]
        if along == 0:
            broadcast = broadcast + touched
        elif along == 1:
            # shifted windows are loaded as vectors of their own
            lanes = columns.tiles[REGISTER][form.lane]
            shifts = _shifts(o, form.lane, columns.tiles[REGISTER])
            loads = touched / _lane_run(o, form.lane, columns.tiles[REGISTER]) * shifts * lanes / form.lanes
            vectors = vectors + loads
            held = np.maximum(held, loads / window)
        else:
            gathers = gathers + touched
    registers = accumulators + np.minimum(held, accumulators) + 1
    balance = np.ceil(tasks / threads) * threads / tasks
    done = accumulators * window * problem.operations
    streams = sum_of(_streams(o, columns.tiles[REGISTER], _is_packed(form, k)) for k, o in enumerate(_all(problem)))
    return Features(
        tasks, balance, micro, accumulators, registers, steps, vectors, broadcast, gathers, done, useful, streams
    )


APART = 1024
"""Bytes from which on two rows are different streams."""


def _streams(operand: Operand, box: Sequence[Numbers], packed: bool) -> Numbers:
    """Rows of an operand that a tile touches, as far as they lie apart."""
    rows: Numbers = np.ones_like(box[0])
    if packed:
        return rows
    for row, size in zip(operand.index[:-1], operand.shape[:-1], strict=True):
        if any(row):
            rows = rows * np.minimum(distinct(row, box)[0], max(1, size))
    reach = sum_of(abs(s) * (b - 1.0) * operand.bytes for s, b in zip(operand.strides, box, strict=True))
    return np.minimum(rows, 1.0 + reach / APART)


def _shifts(operand: Operand, lane: int, box: Sequence[Numbers]) -> Numbers:
    """How many vectors that start at different elements one vector of lanes stands for: a window along the lanes."""
    shifts: Numbers = np.ones_like(box[0])
    for row in operand.index:
        if row[lane]:
            for a, c in enumerate(row):
                if a != lane and c:
                    shifts = shifts * box[a]
    return shifts


def _lane_run(operand: Operand, lane: int, box: Sequence[Numbers]) -> Numbers:
    """Elements of the dimensions that the lane axis moves in, which `elements` counts."""
    total: Numbers = np.ones_like(box[0])
    for row, size in zip(operand.index, operand.shape, strict=True):
        if row[lane]:
            run = np.ones_like(box[0])
            for a, c in enumerate(row):
                if c:
                    run = run + abs(c) * (box[a] - 1.0)
            total = total * np.minimum(run, max(1, size))
    return total


def sum_of(parts: Iterable[Numbers]) -> Numbers:
    """The sum of arrays; a plain 0 where there are none."""
    total: Numbers = np.zeros(1)
    for part in parts:
        total = total + part
    return total


def _all(problem: Problem) -> tuple[Operand, ...]:
    return (*problem.operands, *problem.results)


def _is_packed(form: Form, operand: int) -> bool:
    return any(k == operand for k, _ in form.packed)
