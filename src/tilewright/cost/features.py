"""Features of tile programs: instruction counts, streams and pages of register tiles, as formulas over arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from tilewright.cost.caches import PAGE_BYTES
from tilewright.cost.candidate_batch import CandidateBatch, is_packed, k_block_count
from tilewright.cost.footprint import (
    Numbers,
    distant_segments,
    index_count_and_span,
    sum_arrays,
    touched_elements,
)
from tilewright.cost.shape_family import OperandView
from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sketch
from tilewright.tile.transposed_columns import MIN_COLUMNS, column_axis

MAX_SHUFFLE_STRIDE = 2
"""Largest stride, in elements, at which vectors are assembled by shuffles from vectors of everything in between."""


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a batch.

    A step is one iteration of the innermost reduction loop: a fully unrolled register tile.

    Attributes:
        tasks: parallel tasks.
        register_tiles: register tiles, each over one K-block.
        accumulators: vectors that are accumulated at the same time.
        registers: vectors that are live at the same time.
        waiting_vectors: further vectors that unrolled windows with strides keep for more than a step.
        steps: steps of one register tile over one K-block.
        vector_loads: loads of whole vectors per step.
        broadcast_loads: loads of elements that are broadcast, per step.
        shuffled_vectors: vectors per step that shuffles assemble from strided elements.
        vector_operations: arithmetic instructions per step.
        streams: separate streams that a register tile reads; nothing waits for stores.
        pages: pages that a register tile reads over one K-block.
        all_pages: pages that it reads over all K-blocks.
        stream_starts: separate streams of operands that a register tile starts per K-block.
        split_loads: vector loads per step that touch two cache lines.
        vector_stores: vectors that elementwise work stores per step.
        gather_loads: elements per step that are loaded one by one, as they are far apart along the lanes.
        row_loads: pieces of rows per step that are loaded to be transposed in registers.
        transposed_vectors: vectors per step that are transposed in registers.
        scatter_stores: elements per step that are stored one by one.
        tile_invariant_broadcasts: broadcast loads per step that the next register tiles share.
        step_invariant_broadcasts: broadcast loads that are the same in all steps of a register tile.
        reused_vectors: vectors of an unrolled window that the next output row reuses, per lane shift.
    """

    tasks: Numbers
    register_tiles: Numbers
    accumulators: Numbers
    registers: Numbers
    waiting_vectors: Numbers
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
    row_loads: Numbers
    transposed_vectors: Numbers
    scatter_stores: Numbers
    tile_invariant_broadcasts: Numbers
    step_invariant_broadcasts: Numbers
    reused_vectors: Numbers


class _StepCounts:
    """Counts per step, summed over operands; see `Features`.

    Attributes:
        operand_registers: most vectors of one operand that are live at the same time.
        window_registers: vectors of unrolled windows that stay live for reuse.
        waiting_vectors: those that stay live for longer, beyond `window_registers`.
    """

    def __init__(self, problem: Problem, sketch: Sketch, batch: CandidateBatch, line: int, window: Numbers) -> None:
        """`line` in bytes; `window` is the number of steps that an unrolled window stands for."""
        self._problem, self._sketch, self._box = problem, sketch, batch.tiles[REGISTER]
        self._line, self._window = line, window
        zeros: Numbers = np.zeros_like(window)
        self.vector_loads = self.broadcast_loads = self.shuffled_vectors = zeros
        self.split_loads = self.vector_stores = self.gather_loads = self.scatter_stores = zeros
        self.tile_invariant_broadcasts = self.step_invariant_broadcasts = self.reused_vectors = zeros
        self.row_loads = self.transposed_vectors = zeros
        self.operand_registers = self.window_registers = self.waiting_vectors = zeros

    def add(self, position: int, operand: OperandView, stride: int) -> None:
        """Counts one of the problem's operands, by its position and its stride along the lanes (`lane_strides`)."""
        elements = touched_elements(operand, self._box)
        if operand.written:
            if stride > MAX_SHUFFLE_STRIDE:
                self.scatter_stores = self.scatter_stores + elements
            else:
                self.vector_stores = self.vector_stores + elements / self._sketch.lanes
            return
        shifts = _lane_shifts(operand, self._sketch.lane, self._box)
        if stride > MAX_SHUFFLE_STRIDE:
            self._add_columns(position, elements * shifts)
            return
        if window_axes := _window_axes(self._problem, self._sketch, operand, self._box):
            reused, waiting = _window_registers(self._problem, self._sketch, operand, self._box, window_axes)
            self.window_registers = self.window_registers + reused
            self.waiting_vectors = self.waiting_vectors + waiting - reused
            self.reused_vectors = self.reused_vectors + reused * shifts
        if stride == 0:
            self._add_broadcast(operand, elements)
        else:
            self._add_vectors(position, operand, stride, elements, shifts)

    def _add_columns(self, position: int, elements: Numbers) -> None:
        """Counts an operand whose elements along the lanes are far apart: transposed in registers where the tile has
        enough neighbouring columns."""
        lanes, axis = self._sketch.lanes, column_axis(self._problem, self._sketch, position)
        if axis is None:
            self.gather_loads = self.gather_loads + elements
            return
        columns = self._box[axis]
        width = np.exp2(np.floor(np.log2(np.clip(columns, 1.0, lanes))))
        # the last piece of a row begins so early that it ends with the row
        pieces = elements / columns * np.ceil(columns / width)
        is_transposed = columns >= MIN_COLUMNS
        self.gather_loads = self.gather_loads + np.where(is_transposed, 0.0, elements)
        self.row_loads = self.row_loads + np.where(is_transposed, pieces, 0.0)
        self.transposed_vectors = self.transposed_vectors + np.where(is_transposed, pieces * width / lanes, 0.0)

    def _add_broadcast(self, operand: OperandView, elements: Numbers) -> None:
        """Counts an operand that does not move along the lanes."""
        if not any(operand.uses(r) for r in self._problem.reduce):
            self.step_invariant_broadcasts = self.step_invariant_broadcasts + elements
            return
        self.broadcast_loads = self.broadcast_loads + elements
        if not any(operand.uses(a) for a in self._sketch.order[-2:]):
            self.tile_invariant_broadcasts = self.tile_invariant_broadcasts + elements

    def _add_vectors(
        self, position: int, operand: OperandView, stride: int, elements: Numbers, shifts: Numbers
    ) -> None:
        """Counts an operand that is contiguous along the lanes, or that shuffles make so."""
        lanes = self._sketch.lanes
        count, span = _lane_extent(operand, self._sketch.lane, self._box)
        # every shift of a window along the lanes is a vector of its own
        vectors = elements / count * shifts * self._box[self._sketch.lane] / lanes
        if stride == 1:
            if not is_packed(self._sketch, position):
                (split,) = operand.per_shape(lambda at: _split_fraction(at, self._sketch, self._line))
                self.split_loads = self.split_loads + vectors * split
            self.vector_loads = self.vector_loads + vectors
            self.operand_registers = np.maximum(self.operand_registers, vectors / self._window)
        else:
            # everything between the elements is loaded as well
            self.vector_loads = self.vector_loads + elements / count * span / lanes
            self.shuffled_vectors = self.shuffled_vectors + vectors


def extract_features(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, line: int, cost: CostParameters
) -> Features:
    """The features of candidates.

    Args:
        problem: the candidates' problem, or one of several with the same strides along the lanes.
        sketch, batch: the candidates.
        line: bytes of a cache line.
        cost: the machine's parameters.
    """
    one: Numbers = np.ones_like(batch.covered[0])
    tasks, register_tiles, accumulators = one, k_block_count(sketch, batch), one / sketch.lanes
    for a in problem.spatial:
        size = batch.tiles[REGISTER][a]
        tasks = tasks * np.ceil(batch.covered[a] / batch.tiles[L2][a])
        register_tiles = register_tiles * np.ceil(batch.covered[a] / size)
        accumulators = accumulators * size
    steps = window = one
    for k in problem.reduce:
        steps = steps * (batch.tiles[L1][k] / batch.tiles[REGISTER][k])
        if k == sketch.lane:
            # every vector along the reduction has partial sums of its own
            accumulators = accumulators * batch.tiles[REGISTER][k]
        else:
            window = window * batch.tiles[REGISTER][k]
    counts = _StepCounts(problem, sketch, batch, line, window)
    for k, (operand, stride) in enumerate(zip(batch.family.operands, lane_strides(problem, sketch), strict=True)):
        counts.add(k, operand, stride)
    streams, stream_starts, pages, all_pages = _streams_and_pages(problem, sketch, batch, line, cost)
    return Features(
        tasks=tasks,
        register_tiles=register_tiles,
        accumulators=accumulators,
        registers=accumulators + np.minimum(counts.operand_registers, accumulators) + counts.window_registers + 1,
        waiting_vectors=counts.waiting_vectors,
        steps=steps,
        vector_loads=counts.vector_loads,
        broadcast_loads=counts.broadcast_loads,
        shuffled_vectors=counts.shuffled_vectors,
        vector_operations=accumulators
        * window
        * (problem.operations if batch.operations is None else batch.operations),
        streams=streams,
        pages=pages,
        all_pages=all_pages,
        stream_starts=stream_starts,
        split_loads=counts.split_loads,
        vector_stores=counts.vector_stores,
        gather_loads=counts.gather_loads,
        row_loads=counts.row_loads,
        transposed_vectors=counts.transposed_vectors,
        scatter_stores=counts.scatter_stores,
        tile_invariant_broadcasts=counts.tile_invariant_broadcasts,
        step_invariant_broadcasts=counts.step_invariant_broadcasts,
        reused_vectors=counts.reused_vectors,
    )


def _streams_and_pages(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, line: int, cost: CostParameters
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Per register tile the streams, stream starts, pages of one K-block, and pages of all K-blocks."""
    zeros: Numbers = np.zeros_like(batch.covered[0])
    accesses, operand_count = batch.family.accesses, len(problem.operands)
    distances = np.array([[float(cost.min_stream_distance_bytes)], [float(PAGE_BYTES)]])
    # row 0: one register tile; row 1: a register tile over a K-block
    boxes = [
        batch.sizes[: L1 + 1, a] if x.is_reduction else batch.sizes[[REGISTER, REGISTER], a]
        for a, x in enumerate(problem.axes)
    ]
    segments = [distant_segments(o, boxes, line, distances, is_packed(sketch, k)) for k, o in enumerate(accesses)]
    streams = zeros + sum_arrays(x[0] for x, o in zip(segments, accesses, strict=True) if not o.written)
    stream_starts, pages = np.zeros((2, 1)) + sum_arrays(segments[:operand_count])
    # row 1: a register tile over the whole reduction
    boxes = [
        np.stack((batch.sizes[REGISTER, a], batch.covered[a])) if x.is_reduction else box
        for a, (x, box) in enumerate(zip(problem.axes, boxes, strict=True))
    ]
    all_pages = zeros + sum_arrays(
        distant_segments(o, boxes, line, distances, is_packed(sketch, k))[1]
        for k, o in enumerate(accesses[:operand_count])
    )
    return streams, stream_starts, pages, all_pages


def lane_strides(problem: Problem, sketch: Sketch) -> tuple[int, ...]:
    """Per operand the stride along the lanes, in elements; all strides too large for shuffles count as one more than
    `MAX_SHUFFLE_STRIDE`."""
    strides = [
        1 if (k, sketch.lane) in sketch.packed else o.strides[sketch.lane] for k, o in enumerate(problem.operands)
    ]
    return tuple([s if abs(s) <= MAX_SHUFFLE_STRIDE else MAX_SHUFFLE_STRIDE + 1 for s in strides])


def _split_fraction(operand: Operand, sketch: Sketch, line: int) -> tuple[float]:
    """Share of an operand's vectors that touch two cache lines, because rows or shifted windows are unaligned."""
    vector_bytes = sketch.lanes * operand.element_bytes
    strides = [s * operand.element_bytes for a, s in enumerate(operand.strides) if a != sketch.lane]
    return (vector_bytes / line if any(s % vector_bytes for s in strides) else 0.0,)


def _window_axes(problem: Problem, sketch: Sketch, operand: OperandView, box: Sequence[Numbers]) -> list[int]:
    """The axes of unrolled windows along which later steps reuse an operand's elements."""
    # along the lanes, a shifted window is loaded again
    return [
        k
        for k in problem.reduce
        if k != sketch.lane
        and operand.uses(k)
        and (box[k] > 1.0).any()
        and not any(row[sketch.lane] and row[k] for row in operand.index)
    ]


def _window_registers(
    problem: Problem, sketch: Sketch, operand: OperandView, box: Sequence[Numbers], window_axes: Sequence[int]
) -> tuple[Numbers, Numbers]:
    """Registers for what steps of an unrolled window have loaded and later ones reuse: on average what one step
    reuses, and at most what waits at the same time. A window of stride 2 meets an element again two steps later."""
    one: Numbers = np.ones_like(box[0])
    registers: Numbers = np.zeros_like(one)
    waiting: Numbers = np.zeros_like(one)
    one_step = [one if problem.axes[a].is_reduction else x for a, x in enumerate(box)]
    loaded = touched_elements(operand, one_step)
    for k in window_axes:
        window = list(one_step)
        window[k] = box[k]
        reused = box[k] * loaded - touched_elements(operand, window)
        registers = np.maximum(registers, reused / np.maximum(box[k] - 1.0, 1.0))
        distance = _reuse_distance(problem, operand, k)
        reusing_steps = np.maximum(box[k] - distance, 1.0)
        waiting = np.maximum(waiting, reused / reusing_steps * np.minimum(reusing_steps, distance))
    per_vector = sketch.lanes if operand.uses(sketch.lane) else 1.0
    return registers / per_vector, np.maximum(waiting, registers) / per_vector


def _reuse_distance(problem: Problem, operand: OperandView, window_axis: int) -> float:
    """Steps along a window's axis until an element is met again by another point: the window's stride over its
    dilation."""
    distances = [
        abs(row[a]) // gcd(row[a], row[window_axis])
        for row in operand.index
        if row[window_axis]
        for a in problem.spatial
        if row[a]
    ]
    return float(max(distances, default=1))


def _lane_shifts(operand: OperandView, lane: int, box: Sequence[Numbers]) -> Numbers:
    """Number of vectors, each shifted by some elements, per vector of lanes: points of a window along the lanes."""
    shifts: Numbers = np.ones_like(box[0])
    for row in operand.index:
        if row[lane]:
            for a, c in enumerate(row):
                if a != lane and c:
                    shifts = shifts * box[a]
    return shifts


def _lane_extent(operand: OperandView, lane: int, box: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """In the dimensions that depend on the lane axis: elements touched, and distance from first to last + 1."""
    count: Numbers = np.ones_like(box[0])
    span: Numbers = np.ones_like(box[0])
    for row, terms, size in zip(operand.index, operand.index_terms, operand.dim_sizes, strict=True):
        if row[lane]:
            dim_count, dim_span = index_count_and_span(terms, box)
            count = count * np.minimum(dim_count, size)
            span = span * np.minimum(dim_span, size)
    return count, span
