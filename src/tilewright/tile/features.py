"""What is known of the register tiles and the tasks of programs without running them: closed formulas over arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.tile.columns import PAGE, Columns, accesses_of, chunks, is_packed, rows, sum_of
from tilewright.tile.footprint import Numbers, distinct, elements
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import L1, L2, REGISTER, Form

APART = 1024
"""Bytes from which on two rows are different streams."""

_BETWEEN = np.array([[float(APART)], [float(PAGE)]])


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a batch.

    Attributes:
        tasks: parallel tasks, B.
        micro_tiles: register tiles, each over one chunk of the reduction.
        accumulators: vectors that are accumulated at once.
        registers: vectors that must be held at once.
        steps: steps of the reduction of one register tile and chunk, each a register tile written out.
        entries: how often the loops around the steps start, for one register tile and chunk.
        vector_loads, element_loads: per step, of whole vectors, and of elements that are broadcast.
        gathers: vectors per step that are put together from elements that lie apart.
        multiply_adds: vector operations per step.
        streams: places far apart in memory that a register tile reads; nothing waits for what is only written.
        pages: pages that a register tile reads over one chunk of the reduction.
        starts: places far apart at which a register tile begins to read, per chunk of the reduction.
        crossings: of the vector loads per step, those that touch two cache lines.
        stores: vectors that element-wise work stores per step.
        apart: elements per step that lie far apart along the lanes: they are loaded one by one.
        spread: elements per step that are stored so.
        hoisted: of the elements that are broadcast per step, those that are the same in the next register tiles.
        fixed: elements that are broadcast and the same in all steps of a register tile.
        again: vectors that a window written out has loaded and uses again for another line: as many for every shift
            along the lanes.
    """

    tasks: Numbers
    micro_tiles: Numbers
    accumulators: Numbers
    registers: Numbers
    steps: Numbers
    entries: Numbers
    vector_loads: Numbers
    element_loads: Numbers
    gathers: Numbers
    multiply_adds: Numbers
    streams: Numbers
    pages: Numbers
    starts: Numbers
    crossings: Numbers
    stores: Numbers
    apart: Numbers
    spread: Numbers
    hoisted: Numbers
    fixed: Numbers
    again: Numbers


SHUFFLED = 2
"""The largest stride, in elements, at which vectors are put together from vectors that hold all between."""

LINE = 64
"""Bytes of a cache line."""


def features(problem: Problem, form: Form, columns: Columns) -> Features:
    """The features of candidates."""
    one: Numbers = np.ones_like(columns.whole[0])
    tasks, micro, accumulators = one, chunks(form, columns), one / form.lanes
    for a in problem.spatial:
        size = columns.tiles[REGISTER][a]
        tasks = tasks * np.ceil(columns.whole[a] / columns.tiles[L2][a])
        micro = micro * np.ceil(columns.whole[a] / size)
        accumulators = accumulators * size
    steps = window = one
    entries: Numbers = np.zeros_like(one)
    for k in problem.reduce:
        count = columns.tiles[L1][k] / columns.tiles[REGISTER][k]
        entries = entries + np.where(count > 1, steps, 0.0)
        steps = steps * count
        if k == form.lane:
            # every vector along the reduction has sums of its own
            accumulators = accumulators * columns.tiles[REGISTER][k]
        else:
            window = window * columns.tiles[REGISTER][k]
    none: Numbers = np.zeros_like(one)
    vectors = broadcast = gathers = held = kept = none
    crossings = stores = apart = spread = hoisted = fixed = again = none
    for k, o in enumerate(problem.operands):
        touched = elements(o, columns.tiles[REGISTER])
        along = 1 if (k, form.lane) in form.packed else o.strides[form.lane]
        if along != 0 and abs(along) > SHUFFLED:
            if o.written:
                spread = spread + touched
            else:
                apart = apart + touched * _shifts(o, form.lane, columns.tiles[REGISTER])
            continue
        if o.written:
            stores = stores + touched / form.lanes
            continue
        more = _kept(problem, form, o, columns.tiles[REGISTER])
        kept, again = kept + more, again + more * _shifts(o, form.lane, columns.tiles[REGISTER])
        if along == 0:
            if any(o.uses(r) for r in problem.reduce):
                broadcast = broadcast + touched
                hoisted = hoisted + (0.0 if any(o.uses(a) for a in form.order[-2:]) else touched)
            else:
                fixed = fixed + touched
            continue
        # shifted windows are vectors of their own
        box, lanes = columns.tiles[REGISTER], columns.tiles[REGISTER][form.lane]
        run = _lane_run(o, form.lane, box)
        made = touched / run[0] * _shifts(o, form.lane, box) * lanes / form.lanes
        if along == 1:
            crossings = crossings + (0.0 if is_packed(form, k) else made * _crossing(o, form))
            vectors = vectors + made
            held = np.maximum(held, made / window)
        else:
            # all that lies between the elements is loaded too
            vectors = vectors + touched / run[0] * run[1] / form.lanes
            gathers = gathers + made
    registers = accumulators + np.minimum(held, accumulators) + kept + 1
    done = accumulators * window * problem.operations
    # a register tile, and what it reads over one chunk
    swept = [np.array((columns.tiles[REGISTER][a], columns.tiles[L1 if x.reduce else REGISTER][a]))
             for a, x in enumerate(problem.axes)]  # fmt: skip
    places = [rows(o, swept, _BETWEEN, is_packed(form, k)) for k, o in enumerate(accesses_of(problem))]
    streams = none + sum_of(p[0] for p, o in zip(places, accesses_of(problem), strict=True) if not o.written)
    starts, pages = np.zeros((2, 1)) + sum_of(places[: len(problem.operands)])
    return Features(
        tasks=tasks, micro_tiles=micro, accumulators=accumulators, registers=registers, steps=steps, entries=entries,
        vector_loads=vectors, element_loads=broadcast, gathers=gathers, multiply_adds=done, streams=streams,
        pages=pages, starts=starts, crossings=crossings, stores=stores, apart=apart, spread=spread, hoisted=hoisted,
        fixed=fixed, again=again,
    )  # fmt: skip


def _crossing(operand: Operand, form: Form) -> float:
    """The part of an operand's vectors that begin in one line and end in another: rows, or windows along the lanes,
    that start anywhere."""
    vector = form.lanes * operand.bytes
    anywhere = any(s * operand.bytes % vector for a, s in enumerate(operand.strides) if a != form.lane)
    return vector / LINE if anywhere else 0.0


def _kept(problem: Problem, form: Form, operand: Operand, box: Sequence[Numbers]) -> Numbers:
    """Registers for what one step of a window that is written out has loaded and a later one uses again."""
    one: Numbers = np.ones_like(box[0])
    most: Numbers = np.zeros_like(one)
    single = [one if problem.axes[a].reduce else x for a, x in enumerate(box)]
    # along the lanes, a shifted window is loaded anew
    shifted = [k for k in problem.reduce if k != form.lane and operand.uses(k) and (box[k] > 1.0).any()
               and not any(row[form.lane] and row[k] for row in operand.index)]  # fmt: skip
    step = elements(operand, single) if shifted else one
    for k in shifted:
        window = list(single)
        window[k] = box[k]
        again = box[k] * step - elements(operand, window)
        most = np.maximum(most, again / np.maximum(box[k] - 1.0, 1.0))
    return most / form.lanes if operand.uses(form.lane) else most


def _shifts(operand: Operand, lane: int, box: Sequence[Numbers]) -> Numbers:
    """How many vectors that start at different elements one vector of lanes stands for: a window along the lanes."""
    shifts: Numbers = np.ones_like(box[0])
    for row in operand.index:
        if row[lane]:
            for a, c in enumerate(row):
                if a != lane and c:
                    shifts = shifts * box[a]
    return shifts


def _lane_run(operand: Operand, lane: int, box: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Of the dimensions that the lane axis moves in: the elements touched, and those from the first to the last."""
    count: Numbers = np.ones_like(box[0])
    reach: Numbers = np.ones_like(box[0])
    for row, steps, size in zip(operand.index, operand.steps, operand.shape, strict=True):
        if row[lane]:
            found = distinct(steps, box)
            count = count * np.minimum(found[0], max(1, size))
            reach = reach * np.minimum(found[1], max(1, size))
    return count, reach
