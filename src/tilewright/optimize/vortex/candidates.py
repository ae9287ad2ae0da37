"""Tile programs of a library's tiling strategies: how the levels of the library become the tiles of a problem's axes.

A strategy speaks of rows, columns and terms. Columns are the axis of the lanes; rows are the other spatial axes, the
innermost first, as if they were one; terms are the reduction. A product of matrices, batched or transposed, and a
convolution thus take the same strategies: with lanes along output channels and rows of pixels it is an implicit matrix
product, with lanes along pixels a direct convolution. Sizes beyond an axis are cut off, and tiles of a static axis are
rounded to its divisors, so that a register tile alone has a tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod

import numpy as np

from tilewright.machine.model import Machine
from tilewright.optimize.construct.search_space import (
    MAX_TILE_ROWS,
    MAX_WINDOW_EXTENT,
    MIN_K_BLOCK,
    REDUCTION_VECTOR_COUNTS,
    SearchSpace,
    max_k_block,
)
from tilewright.optimize.construct.tile_lattice import Indices, divisors, k_block_sizes
from tilewright.optimize.reduction_blocking import max_accumulation_length
from tilewright.optimize.vortex.library import Library
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, LEVELS, REGISTER, Sizes, Sketch, is_legal


def is_contraction(problem: Problem) -> bool:
    """Whether a problem multiplies operands that are used at several points, so that the library applies."""
    return bool(problem.reduce) and problem.has_reuse and len(problem.operands) >= 2 and not problem.is_plain_sum


def candidate_sizes(library: Library, problem: Problem, sketch: Sketch, machine: Machine) -> Sizes:
    """The distinct legal programs of all strategies for a sketch, as tile sizes [candidate, level, axis].

    Args:
        library: of the machine and the width of the problem's elements.
        problem: a contraction.
        sketch: which axis has the lanes, what is packed, and the order of loops.
        machine: the machine.
    """
    strategies = _tiling_strategies(library, problem, sketch)
    sizes = np.concatenate([_with_rows(strategies, problem, sketch, x) for x in _row_placings(problem, sketch)])
    sizes = sizes[_first_of_equal(sizes.reshape(len(sizes), -1))]
    sizes = sizes[is_legal(problem, sketch, sizes)]
    return sizes[SearchSpace.of(problem, sketch, machine).are_lowerable(sizes)] if len(sizes) else sizes


@dataclass(frozen=True, slots=True, eq=False)
class _TilingStrategies:
    """Strategies of the library that differ for a problem, one array each: rows, vectors and terms of a step of the
    register tile, rows, columns and terms of the cache buffer, parts of rows and columns that threads share."""

    rows: Indices
    vectors: Indices
    unroll: Indices
    buffer_rows: Indices
    buffer_columns: Indices
    terms: Indices
    row_parts: Indices
    column_parts: Indices


def _tiling_strategies(library: Library, problem: Problem, sketch: Sketch) -> _TilingStrategies:
    """The strategies, each once after what exceeds the problem is cut off."""
    lane, rows = problem.axes[sketch.lane], _row_axes(problem, sketch)
    tiles = library.register_tiles[library.links[:, 1]]
    buffers = library.cache_buffers[library.links[:, 0]]
    columns = np.concatenate((tiles, buffers), axis=1)
    # sizes of symbolic axes have no tiles but register tiles, and no static parts
    most_rows = prod(problem.axes[a].extent for a in rows if problem.axes[a].is_static)
    is_split = lane.is_static and not lane.is_reduction
    columns[:, 3] = np.minimum(columns[:, 3] // columns[:, 0], most_rows)
    columns[:, 4] = np.minimum(columns[:, 4], -(-lane.extent // library.lanes) * library.lanes) if is_split else 0
    columns[:, 5] = np.minimum(columns[:, 5], problem.reduction_length)
    columns = columns[_first_of_equal(columns)]
    grids = library.grids.copy()
    grids[:, 0] = np.minimum(grids[:, 0], most_rows)
    grids[:, 1] = np.minimum(grids[:, 1], lane.extent if is_split else 1)
    grids = np.unique(grids, axis=0)
    pairs = np.concatenate((np.repeat(columns, len(grids), axis=0), np.tile(grids, (len(columns), 1))), axis=1)
    m, v, u, r, c, k, p, q = pairs.T
    return _TilingStrategies(m, v, u, r * m, c, k, p, q)


def _row_axes(problem: Problem, sketch: Sketch) -> tuple[int, ...]:
    """The spatial axes beside the lanes, the innermost loop first."""
    return tuple(a for a in reversed(sketch.order) if a != sketch.lane)


def _row_placings(problem: Problem, sketch: Sketch) -> list[int | None]:
    """The axes that a register tile's rows may lie along: those along which an operand is used again; None for tiles
    of one row."""
    axes = [
        a
        for a in _row_axes(problem, sketch)
        if problem.axes[a].extent > 1 or not problem.axes[a].is_static
        if any(not o.uses(a) for o in problem.operands)
    ]
    return list(axes) or [None]


def _with_rows(x: _TilingStrategies, problem: Problem, sketch: Sketch, placing: int | None) -> Sizes:
    """The sizes of strategies whose register tiles have their rows along one axis, and along the next one where they
    are whole multiples of it."""
    sizes = np.ones((len(x.rows), len(LEVELS), len(problem.axes)), np.int64)
    rows = _row_axes(problem, sketch)
    left = x.rows if placing is not None else np.ones_like(x.rows)
    for a in rows[rows.index(placing) :] if placing is not None else ():
        axis = problem.axes[a]
        if not axis.is_static:
            sizes[:, REGISTER, a] = np.minimum(left, MAX_TILE_ROWS)
            left = np.ones_like(left)
            break
        whole = (left % axis.extent == 0) & (left > axis.extent)
        # the lowering unrolls no more rows along one axis
        most = min(axis.extent, MAX_TILE_ROWS)
        whole &= axis.extent <= most
        sizes[:, REGISTER, a] = np.minimum(np.where(whole, axis.extent, left), most)
        left = np.where(whole, left // axis.extent, 1)
        if (left == 1).all():
            break
    _set_row_tiles(sizes, x, problem, rows)
    _set_lane_tiles(sizes, x, problem, sketch)
    for a in problem.reduce:
        if a != sketch.lane:
            _set_terms(sizes, x, problem, sketch, a)
    return sizes


def _set_row_tiles(sizes: Sizes, x: _TilingStrategies, problem: Problem, rows: Sequence[int]) -> None:
    """Cache buffers and tasks of the row axes: the innermost axis is filled first, and divided last."""
    buffer_left = x.buffer_rows // np.maximum(1, sizes[:, REGISTER, list(rows)].prod(axis=1)) if rows else x.rows
    statics = [a for a in rows if problem.axes[a].is_static]
    counts = {a: problem.axes[a].extent // sizes[:, REGISTER, a] for a in statics}
    total = np.ones_like(x.rows)
    for a in statics:
        total = total * counts[a]
    task_left = np.where(x.row_parts > 0, -(-total // np.maximum(x.row_parts, 1)), np.maximum(buffer_left, 1))
    for a in rows:
        register = sizes[:, REGISTER, a]
        if a not in counts:
            sizes[:, L1, a] = sizes[:, L2, a] = register
            continue
        task = _largest_divisor(counts[a], task_left)
        buffer = _largest_divisor(task, buffer_left)
        sizes[:, L1, a], sizes[:, L2, a] = buffer * register, task * register
        # an axis that is not filled ends the contiguous part
        task_left = np.where(task == counts[a], task_left // task, 1)
        buffer_left = np.where(buffer == counts[a], buffer_left // buffer, 1)


def _set_lane_tiles(sizes: Sizes, x: _TilingStrategies, problem: Problem, sketch: Sketch) -> None:
    """Tiles of the lane axis, in whole vectors."""
    axis, a = problem.axes[sketch.lane], sketch.lane
    vectors = -(-axis.extent // sketch.lanes)
    if axis.is_reduction:
        allowed = np.array([c for c in REDUCTION_VECTOR_COUNTS if c <= vectors or c == 1])
        needed = -(-problem.reduction_length // (sketch.lanes * max_accumulation_length(problem.reduction_length)))
        count = allowed[np.searchsorted(allowed, x.vectors, side="right") - 1]
        count = np.maximum(count, min(needed, int(allowed[-1])))
        sizes[:, REGISTER, a] = count * sketch.lanes
        sizes[:, L1:, a] = (-(-vectors // count) * count * sketch.lanes)[:, None]
        return
    if not axis.is_static:
        sizes[:, :, a] = (x.vectors * sketch.lanes)[:, None]
        return
    width = np.minimum(x.vectors, vectors)
    count = -(-vectors // width)
    fitting = np.maximum(x.buffer_columns // (width * sketch.lanes), 1)
    parts = np.where(x.column_parts > 0, -(-count // np.maximum(x.column_parts, 1)), fitting)
    task = _largest_divisor(count, parts)
    buffer = _largest_divisor(task, fitting)
    for level, tiles in ((REGISTER, np.ones_like(width)), (L1, buffer), (L2, task)):
        sizes[:, level, a] = tiles * width * sketch.lanes


def _set_terms(sizes: Sizes, x: _TilingStrategies, problem: Problem, sketch: Sketch, a: int) -> None:
    """Tiles of a reduction axis: unrolled windows, and K-blocks of the longest axis."""
    axis = problem.axes[a]
    sizes[:, L1:, a] = axis.extent
    if axis.is_static and axis.extent <= MAX_WINDOW_EXTENT:
        # a window is a step where the tile has room for it
        sizes[:, REGISTER, a] = np.where(x.unroll > 1, axis.extent, 1)
    elif axis.is_static:
        sizes[:, REGISTER, a] = np.where(axis.extent % x.unroll == 0, x.unroll, 1)
    if a == sketch.k_block_axis:
        others = problem.reduction_length // axis.extent
        least = -(-max(MIN_K_BLOCK, isqrt(problem.reduction_length)) // others)
        limit = max_k_block(problem, a, least) or axis.extent
        options = np.array([d for d in k_block_sizes(axis.extent) if least <= d <= limit] or [limit])
        terms = np.maximum(x.terms // others, 1)
        chosen = options[np.clip(np.searchsorted(options, terms, side="right") - 1, 0, len(options) - 1)]
        # a buffer of all terms is not blocked, where so many may be added up in sequence
        chosen = np.where((terms >= axis.extent) & (limit >= axis.extent), axis.extent, chosen)
        step = sizes[:, REGISTER, a]
        sizes[:, REGISTER, a] = np.where(chosen % step == 0, step, 1)
        sizes[:, L1, a] = chosen


def _largest_divisor(counts: Indices, limits: Indices) -> Indices:
    """The largest divisor of each count that is at most its limit."""
    distinct, position = np.unique(np.minimum(limits, counts) * (int(counts.max()) + 1) + counts, return_inverse=True)
    most, count = np.divmod(distinct, int(counts.max()) + 1)
    largest = [max((d for d in divisors(int(n)) if d <= m), default=1) for n, m in zip(count, most, strict=True)]
    return np.array(largest, np.int64)[position.reshape(-1)]


def _first_of_equal(rows: Indices) -> Indices:
    """Positions of distinct rows of a matrix, the first of equal ones."""
    code, first = np.zeros(len(rows), np.int64), np.arange(len(rows))
    for column in rows.T:
        # numbers of distinct prefixes stay below the number of rows, so that their codes never overflow
        values = np.unique(column, return_inverse=True)[1].reshape(-1)
        code = code * len(rows) + values
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        code = code.reshape(-1)
    return np.sort(first)
