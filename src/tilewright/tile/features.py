"""What is known of the register tiles and the tasks of programs without running them: closed formulas over arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.tile.columns import LINE, PAGE, Columns, chunks, is_packed, rows, sum_of
from tilewright.tile.family import Placed
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
        vector_loads, element_loads: per step, of whole vectors, and of elements that are broadcast.
        gathers: vectors per step that are put together from elements that lie apart.
        multiply_adds: vector operations per step.
        streams: places far apart in memory that a register tile reads; nothing waits for what is only written.
        pages: pages that a register tile reads over one chunk of the reduction.
        all_pages: pages that it reads over all chunks.
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
    vector_loads: Numbers
    element_loads: Numbers
    gathers: Numbers
    multiply_adds: Numbers
    streams: Numbers
    pages: Numbers
    all_pages: Numbers
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


def features(problem: Problem, form: Form, columns: Columns) -> Features:
    """The features of candidates.

    Args:
        problem: what they are programs of, or one of several problems whose strides along lanes are alike.
        form, columns: the candidates.
    """
    one: Numbers = np.ones_like(columns.whole[0])
    tasks, micro, accumulators = one, chunks(form, columns), one / form.lanes
    for a in problem.spatial:
        size = columns.tiles[REGISTER][a]
        tasks = tasks * np.ceil(columns.whole[a] / columns.tiles[L2][a])
        micro = micro * np.ceil(columns.whole[a] / size)
        accumulators = accumulators * size
    steps = window = one
    for k in problem.reduce:
        steps = steps * (columns.tiles[L1][k] / columns.tiles[REGISTER][k])
        if k == form.lane:
            # every vector along the reduction has sums of its own
            accumulators = accumulators * columns.tiles[REGISTER][k]
        else:
            window = window * columns.tiles[REGISTER][k]
    none: Numbers = np.zeros_like(one)
    vectors = broadcast = gathers = held = kept = none
    crossings = stores = apart = spread = hoisted = fixed = again = none
    strides = strides_along(problem, form)
    for k, o in enumerate(columns.family.operands):
        touched = elements(o, columns.tiles[REGISTER])
        along = strides[k]
        if along > SHUFFLED:
            if o.written:
                spread = spread + touched
            else:
                apart = apart + touched * _shifts(o, form.lane, columns.tiles[REGISTER])
            continue
        if o.written:
            stores = stores + touched / form.lanes
            continue
        box, lanes = columns.tiles[REGISTER], columns.tiles[REGISTER][form.lane]
        shifts = _shifts(o, form.lane, box)
        shifted = _shifted(problem, form, o, box)
        if shifted:
            more = _kept(problem, form, o, box, shifted)
            kept, again = kept + more, again + more * shifts
        if along == 0:
            if any(o.uses(r) for r in problem.reduce):
                broadcast = broadcast + touched
                hoisted = hoisted + (0.0 if any(o.uses(a) for a in form.order[-2:]) else touched)
            else:
                fixed = fixed + touched
            continue
        # shifted windows are vectors of their own
        run = _lane_run(o, form.lane, box)
        made = touched / run[0] * shifts * lanes / form.lanes
        if along == 1:
            if not is_packed(form, k):
                (crossing,) = o.each(lambda at: _crossing(at, form))
                crossings = crossings + made * crossing
            vectors = vectors + made
            held = np.maximum(held, made / window)
        else:
            # all that lies between the elements is loaded too
            vectors = vectors + touched / run[0] * run[1] / form.lanes
            gathers = gathers + made
    registers = accumulators + np.minimum(held, accumulators) + kept + 1
    done = accumulators * window * problem.operations
    # a register tile, and what it reads over one chunk
    swept = [columns.sizes[: L1 + 1, a] if x.reduce else columns.sizes[[REGISTER, REGISTER], a]
             for a, x in enumerate(problem.axes)]  # fmt: skip
    places = [rows(o, swept, _BETWEEN, is_packed(form, k)) for k, o in enumerate(columns.family.accesses)]
    streams = none + sum_of(p[0] for p, o in zip(places, columns.family.accesses, strict=True) if not o.written)
    starts, pages = np.zeros((2, 1)) + sum_of(places[: len(problem.operands)])
    swept = [np.stack((columns.sizes[REGISTER, a], columns.whole[a])) if x.reduce else own
             for a, (x, own) in enumerate(zip(problem.axes, swept, strict=True))]  # fmt: skip
    read = columns.family.accesses[: len(problem.operands)]
    all_pages = none + sum_of(rows(o, swept, _BETWEEN, is_packed(form, k))[1] for k, o in enumerate(read))
    return Features(
        tasks=tasks, micro_tiles=micro, accumulators=accumulators, registers=registers, steps=steps,
        vector_loads=vectors, element_loads=broadcast, gathers=gathers, multiply_adds=done, streams=streams,
        pages=pages, all_pages=all_pages, starts=starts, crossings=crossings, stores=stores, apart=apart, spread=spread,
        hoisted=hoisted, fixed=fixed, again=again,
    )  # fmt: skip


def strides_along(problem: Problem, form: Form) -> tuple[int, ...]:
    """Per operand by how many elements it moves along the lanes, as far as that matters: all strides too large for
    shuffles count alike."""
    moved = [1 if (k, form.lane) in form.packed else o.strides[form.lane] for k, o in enumerate(problem.operands)]
    return tuple([s if abs(s) <= SHUFFLED else SHUFFLED + 1 for s in moved])


def _crossing(operand: Operand, form: Form) -> tuple[float]:
    """The part of an operand's vectors that begin in one line and end in another: rows, or windows along the lanes,
    that start anywhere."""
    vector = form.lanes * operand.bytes
    anywhere = any(s * operand.bytes % vector for a, s in enumerate(operand.strides) if a != form.lane)
    return (vector / LINE if anywhere else 0.0,)


def _shifted(problem: Problem, form: Form, operand: Placed, box: Sequence[Numbers]) -> list[int]:
    """The axes of windows that are written out, along which later steps use an operand's elements again."""
    # along the lanes, a shifted window is loaded anew
    return [k for k in problem.reduce if k != form.lane and operand.uses(k) and (box[k] > 1.0).any()
            and not any(row[form.lane] and row[k] for row in operand.index)]  # fmt: skip


def _kept(problem: Problem, form: Form, operand: Placed, box: Sequence[Numbers], shifted: Sequence[int]) -> Numbers:
    """Registers for what one step of a window that is written out has loaded and a later one uses again."""
    one: Numbers = np.ones_like(box[0])
    most: Numbers = np.zeros_like(one)
    single = [one if problem.axes[a].reduce else x for a, x in enumerate(box)]
    step = elements(operand, single)
    for k in shifted:
        window = list(single)
        window[k] = box[k]
        again = box[k] * step - elements(operand, window)
        most = np.maximum(most, again / np.maximum(box[k] - 1.0, 1.0))
    return most / form.lanes if operand.uses(form.lane) else most


def _shifts(operand: Placed, lane: int, box: Sequence[Numbers]) -> Numbers:
    """How many vectors that start at different elements one vector of lanes stands for: a window along the lanes."""
    shifts: Numbers = np.ones_like(box[0])
    for row in operand.index:
        if row[lane]:
            for a, c in enumerate(row):
                if a != lane and c:
                    shifts = shifts * box[a]
    return shifts


def _lane_run(operand: Placed, lane: int, box: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Of the dimensions that the lane axis moves in: the elements touched, and those from the first to the last."""
    count: Numbers = np.ones_like(box[0])
    reach: Numbers = np.ones_like(box[0])
    for row, steps, size in zip(operand.index, operand.steps, operand.room, strict=True):
        if row[lane]:
            found = distinct(steps, box)
            count = count * np.minimum(found[0], size)
            reach = reach * np.minimum(found[1], size)
    return count, reach
