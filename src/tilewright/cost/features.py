"""What is known of the register tiles and the tasks of programs without running them: closed formulas over arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.cost.candidate_batch import (
    PAGE_BYTES,
    CandidateBatch,
    distant_segments,
    is_packed,
    k_block_count,
    sum_arrays,
)
from tilewright.cost.footprint import Numbers, index_count_and_span, touched_elements
from tilewright.cost.shape_family import OperandView
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, LINE_BYTES, REGISTER, Sketch

MIN_STREAM_DISTANCE = 1024
"""Bytes from which on two rows are different streams."""

_SEGMENT_DISTANCES = np.array([[float(MIN_STREAM_DISTANCE)], [float(PAGE_BYTES)]])


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a batch.

    Attributes:
        tasks: parallel tasks, B.
        register_tiles: register tiles, each over one chunk of the reduction.
        accumulators: vectors that are accumulated at once.
        registers: vectors that must be held at once.
        steps: steps of the reduction of one register tile and chunk, each a register tile written out.
        vector_loads, broadcast_loads: per step, of whole vectors, and of elements that are broadcast.
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
    register_tiles: Numbers
    accumulators: Numbers
    registers: Numbers
    steps: Numbers
    vector_loads: Numbers
    broadcast_loads: Numbers
    shuffled_vectors: Numbers
    vector_operations: Numbers
    streams: Numbers
    pages: Numbers
    all_pages: Numbers
    stream_starts: Numbers
    split_loads: Numbers
    vector_stores: Numbers
    gather_loads: Numbers
    scatter_stores: Numbers
    tile_invariant_broadcasts: Numbers
    step_invariant_broadcasts: Numbers
    reused_vectors: Numbers


MAX_SHUFFLE_STRIDE = 2
"""The largest stride, in elements, at which vectors are put together from vectors that hold all between."""


def extract_features(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Features:
    """The features of candidates.

    Args:
        problem: what they are programs of, or one of several problems whose strides along lanes are alike.
        form, columns: the candidates.
    """
    one: Numbers = np.ones_like(batch.covered[0])
    tasks, micro, accumulators = one, k_block_count(sketch, batch), one / sketch.lanes
    for a in problem.spatial:
        size = batch.tiles[REGISTER][a]
        tasks = tasks * np.ceil(batch.covered[a] / batch.tiles[L2][a])
        micro = micro * np.ceil(batch.covered[a] / size)
        accumulators = accumulators * size
    steps = window = one
    for k in problem.reduce:
        steps = steps * (batch.tiles[L1][k] / batch.tiles[REGISTER][k])
        if k == sketch.lane:
            # every vector along the reduction has sums of its own
            accumulators = accumulators * batch.tiles[REGISTER][k]
        else:
            window = window * batch.tiles[REGISTER][k]
    none: Numbers = np.zeros_like(one)
    vectors = broadcast = gathers = held = kept = none
    crossings = stores = apart = spread = hoisted = fixed = again = none
    strides = lane_strides(problem, sketch)
    for k, o in enumerate(batch.family.operands):
        touched = touched_elements(o, batch.tiles[REGISTER])
        along = strides[k]
        if along > MAX_SHUFFLE_STRIDE:
            if o.written:
                spread = spread + touched
            else:
                apart = apart + touched * _lane_shifts(o, sketch.lane, batch.tiles[REGISTER])
            continue
        if o.written:
            stores = stores + touched / sketch.lanes
            continue
        box, lanes = batch.tiles[REGISTER], batch.tiles[REGISTER][sketch.lane]
        shifts = _lane_shifts(o, sketch.lane, box)
        shifted = _window_axes(problem, sketch, o, box)
        if shifted:
            more = _window_registers(problem, sketch, o, box, shifted)
            kept, again = kept + more, again + more * shifts
        if along == 0:
            if any(o.uses(r) for r in problem.reduce):
                broadcast = broadcast + touched
                hoisted = hoisted + (0.0 if any(o.uses(a) for a in sketch.order[-2:]) else touched)
            else:
                fixed = fixed + touched
            continue
        # shifted windows are vectors of their own
        run = _lane_extent(o, sketch.lane, box)
        made = touched / run[0] * shifts * lanes / sketch.lanes
        if along == 1:
            if not is_packed(sketch, k):
                (crossing,) = o.per_shape(lambda at: _split_fraction(at, sketch))
                crossings = crossings + made * crossing
            vectors = vectors + made
            held = np.maximum(held, made / window)
        else:
            # all that lies between the elements is loaded too
            vectors = vectors + touched / run[0] * run[1] / sketch.lanes
            gathers = gathers + made
    registers = accumulators + np.minimum(held, accumulators) + kept + 1
    done = accumulators * window * problem.operations
    # a register tile, and what it reads over one chunk
    swept = [batch.sizes[: L1 + 1, a] if x.is_reduction else batch.sizes[[REGISTER, REGISTER], a]
             for a, x in enumerate(problem.axes)]  # fmt: skip
    places = [
        distant_segments(o, swept, _SEGMENT_DISTANCES, is_packed(sketch, k))
        for k, o in enumerate(batch.family.accesses)
    ]
    streams = none + sum_arrays(p[0] for p, o in zip(places, batch.family.accesses, strict=True) if not o.written)
    starts, pages = np.zeros((2, 1)) + sum_arrays(places[: len(problem.operands)])
    swept = [np.stack((batch.sizes[REGISTER, a], batch.covered[a])) if x.is_reduction else own
             for a, (x, own) in enumerate(zip(problem.axes, swept, strict=True))]  # fmt: skip
    read = batch.family.accesses[: len(problem.operands)]
    all_pages = none + sum_arrays(
        distant_segments(o, swept, _SEGMENT_DISTANCES, is_packed(sketch, k))[1] for k, o in enumerate(read)
    )
    return Features(
        tasks=tasks, register_tiles=micro, accumulators=accumulators, registers=registers, steps=steps,
        vector_loads=vectors, broadcast_loads=broadcast, shuffled_vectors=gathers, vector_operations=done,
        streams=streams,
        pages=pages, all_pages=all_pages, stream_starts=starts, split_loads=crossings, vector_stores=stores,
        gather_loads=apart, scatter_stores=spread,
        tile_invariant_broadcasts=hoisted, step_invariant_broadcasts=fixed, reused_vectors=again,
    )  # fmt: skip


def lane_strides(problem: Problem, sketch: Sketch) -> tuple[int, ...]:
    """Per operand by how many elements it moves along the lanes, as far as that matters: all strides too large for
    shuffles count alike."""
    moved = [1 if (k, sketch.lane) in sketch.packed else o.strides[sketch.lane] for k, o in enumerate(problem.operands)]
    return tuple([s if abs(s) <= MAX_SHUFFLE_STRIDE else MAX_SHUFFLE_STRIDE + 1 for s in moved])


def _split_fraction(operand: Operand, sketch: Sketch) -> tuple[float]:
    """The part of an operand's vectors that begin in one line and end in another: rows, or windows along the lanes,
    that start anywhere."""
    vector = sketch.lanes * operand.element_bytes
    anywhere = any(s * operand.element_bytes % vector for a, s in enumerate(operand.strides) if a != sketch.lane)
    return (vector / LINE_BYTES if anywhere else 0.0,)


def _window_axes(problem: Problem, sketch: Sketch, operand: OperandView, box: Sequence[Numbers]) -> list[int]:
    """The axes of windows that are written out, along which later steps use an operand's elements again."""
    # along the lanes, a shifted window is loaded anew
    return [k for k in problem.reduce if k != sketch.lane and operand.uses(k) and (box[k] > 1.0).any()
            and not any(row[sketch.lane] and row[k] for row in operand.index)]  # fmt: skip


def _window_registers(
    problem: Problem, sketch: Sketch, operand: OperandView, box: Sequence[Numbers], window_axes: Sequence[int]
) -> Numbers:
    """Registers for what one step of a window that is written out has loaded and a later one uses again."""
    one: Numbers = np.ones_like(box[0])
    most: Numbers = np.zeros_like(one)
    single = [one if problem.axes[a].is_reduction else x for a, x in enumerate(box)]
    step = touched_elements(operand, single)
    for k in window_axes:
        window = list(single)
        window[k] = box[k]
        again = box[k] * step - touched_elements(operand, window)
        most = np.maximum(most, again / np.maximum(box[k] - 1.0, 1.0))
    return most / sketch.lanes if operand.uses(sketch.lane) else most


def _lane_shifts(operand: OperandView, lane: int, box: Sequence[Numbers]) -> Numbers:
    """How many vectors that start at different elements one vector of lanes stands for: a window along the lanes."""
    shifts: Numbers = np.ones_like(box[0])
    for row in operand.index:
        if row[lane]:
            for a, c in enumerate(row):
                if a != lane and c:
                    shifts = shifts * box[a]
    return shifts


def _lane_extent(operand: OperandView, lane: int, box: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Of the dimensions that the lane axis moves in: the elements touched, and those from the first to the last."""
    count: Numbers = np.ones_like(box[0])
    reach: Numbers = np.ones_like(box[0])
    for row, steps, size in zip(operand.index, operand.index_terms, operand.dim_sizes, strict=True):
        if row[lane]:
            found = index_count_and_span(steps, box)
            count = count * np.minimum(found[0], size)
            reach = reach * np.minimum(found[1], size)
    return count, reach
