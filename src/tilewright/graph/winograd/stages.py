"""A sliding filter as stages: tiles of the input, a product of matrices per point, tiles of the results.

    source    the input with channels last, as many elements as whole tiles need
    V         B^T d per tile: [points..., batch..., places..., tiles..., channels]
    M         the sum over channels of V U, a matrix product per point; U = G g is computed now
    T         A^T M per tile: [batch..., places..., (tiles, m)..., outputs], looked at without the split into tiles
    results   T with the dimensions in their order; what follows the convolution is fused into it

Dimensions that are not cut into tiles (time in a video, say) keep their places, and M adds up their taps as it does
channels: rounding errors are amplified by the other dimensions alone.
Channels are innermost in all of them, so that every transform works on vectors of channels, whatever the sizes are.
The rows of a transform are cases of the stage's axis (`a == 0`, `a == 1`, ...), which loops written out decide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np

from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation, Reducer, View
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var, const
from tilewright.expr.operations import ceildiv, conjunction, select
from tilewright.graph.winograd.match_convolution import Convolution, SpatialAxis
from tilewright.graph.winograd.transforms import POINTS, Matrix, MinimalFilter, toom_cook

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class WinogradForm:
    """A sliding filter computed by minimal filtering.

    Attributes:
        outputs: m of F(m, r) per dimension along which the filter slides, 0 where it is not cut into tiles.
        filters: one per dimension that is cut.
        source, data, product, tiles: the stages.
        view: of the tiles.
        results: the stage that writes what the sum wrote.
        weights: the buffer of U, [points..., taps..., channels, outputs] with the taps of the other dimensions.
    """

    tile_sizes: tuple[int, ...]
    transforms: tuple[MinimalFilter, ...]
    padded_input: Computation
    transformed_input: Computation
    contraction: Computation
    output_tiles: Computation
    tiles_view: View
    output: Computation
    transformed_weights: Buffer

    @property
    def stages(self) -> tuple[Computation | View, ...]:
        """In order of execution."""
        return (
            self.padded_input,
            self.transformed_input,
            self.contraction,
            self.output_tiles,
            self.tiles_view,
            self.output,
        )


def make_winograd_form(
    convolution: Convolution, tile_sizes: Sequence[int], make_name: Callable[[str], str]
) -> WinogradForm:
    """The stages for tiles of `outputs` results.

    Args:
        found: the filter.
        outputs: m of F(m, r) per dimension along which the filter slides, 0 where it is not cut into tiles; not all 0.
        name: makes the name of a buffer from what it holds.
    """
    label, last, channels = (
        convolution.stage.label,
        convolution.output_channels.extent,
        convolution.input_channels.extent,
    )
    cut = [(s, toom_cook(m, s.taps)) for s, m in zip(convolution.spatial, tile_sizes, strict=True) if m]
    kept = [s for s, m in zip(convolution.spatial, tile_sizes, strict=True) if not m]
    filters = tuple(f for _, f in cut)
    counts = [ceildiv(s.axis.extent, f.tile_size) for s, f in cut]
    batch = [a.extent for a in convolution.batch]
    points = [const(f.multiplications) for f in filters]
    reach = [s.axis.extent + s.taps - 1 for s in kept]
    sizes = [*reach, *(n * f.tile_size + f.taps - 1 for n, f in zip(counts, filters, strict=True))]
    outer = len(batch) + len(kept)

    order = (*kept, *(s for s, _ in cut))
    source = _stage(
        make_name("source"), (*batch, *sizes, channels), lambda i: _input_element(convolution, order, sizes, i), label
    )
    data = _stage(
        make_name("data"),
        (*points, *batch, *reach, *counts, channels),
        lambda i: _transform_input(source.output, filters, i, outer),
        label,
    )
    weights = Buffer(make_name("weights"), (*points, *(s.tap.extent for s in kept), channels, last), float32)
    sums = _contraction(make_name("product"), data.output, weights, len(batch), kept, label)
    split = [x for n, f in zip(counts, filters, strict=True) for x in (n, const(f.tile_size))]
    places = [s.axis.extent for s in kept]
    shape = (*batch, *places, *split, last)
    tiles = _stage(make_name("tiles"), shape, lambda i: _transform_output(sums.output, filters, i, outer), label)
    rows = [n * f.tile_size for n, f in zip(counts, filters, strict=True)]
    view = View(Buffer(make_name("rows"), (*batch, *places, *rows, last), float32), tiles.output, label)
    own = (*convolution.batch, *(s.axis for s in order), convolution.output_channels)
    results = replace(
        convolution.stage, reduce_axes=(), reducer=None, body=Load(view.output, tuple(a.var for a in own))
    )
    return WinogradForm(tuple(tile_sizes), filters, source, data, sums, tiles, view, results, weights)


def _contraction(
    name: str, data: Buffer, weights: Buffer, batch: int, untiled: Sequence[SpatialAxis], label: str
) -> Computation:
    """M, the sum of V U over channels and the taps of the dimensions that are not cut, per point, place and tile.

    Args:
        name: of the buffer of M.
        data: V.
        weights: U.
        batch: how many axes of the results the filter does not know.
        kept: the dimensions that are not cut.
        label: of the stage.
    """
    first = len(weights.shape) - 2 - len(untiled) + batch
    shape = list(data.shape)
    shape[first : first + len(untiled)] = [s.axis.extent for s in untiled]
    axes = _axes((*shape[:-1], weights.shape[-1]))
    taps = [Axis(Var(f"r{k}"), s.tap.extent) for k, s in enumerate(untiled)]
    channel = Axis(Var(f"r{len(untiled)}"), data.shape[-1])
    index: list[Expr] = [a.var for a in axes]
    moved = [*index[:-1], channel.var]
    for k, tap in enumerate(taps):
        moved[first + k] = moved[first + k] + tap.var
    points = index[: first - batch]
    factors = data[tuple(moved)] * weights[(*points, *(t.var for t in taps), channel.var, index[-1])]
    result = Buffer(name, tuple(a.extent for a in axes), float32)
    return Computation(result, axes, (*taps, channel), factors, Reducer.SUM, label)


def error_growth(convolution: Convolution, tile_sizes: Sequence[int]) -> float:
    """By how much rounding errors may grow beyond those of the direct sum; infinite where there are too few points.

    Args:
        found: the filter.
        outputs: as for `fast`; a dimension that is not cut adds nothing.
    """
    cut = [(m, s.taps) for s, m in zip(convolution.spatial, tile_sizes, strict=True) if m]
    if any(m + taps - 2 > len(POINTS) for m, taps in cut):
        return inf
    return prod(toom_cook(m, taps).error_growth for m, taps in cut)


def transform_weights(convolution: Convolution, tile_sizes: Sequence[int], weights: Array) -> Array:
    """U = G g along every dimension that is cut into tiles, [points..., taps..., channels, outputs].

    Computed in double precision and rounded once.

    Args:
        found: the filter.
        outputs: as for `fast`.
        weights: g, as the program has it.
    """
    cut = [(s, toom_cook(m, s.taps)) for s, m in zip(convolution.spatial, tile_sizes, strict=True) if m]
    kept = [s for s, m in zip(convolution.spatial, tile_sizes, strict=True) if not m]
    order = [
        *(s.tap.var for s, _ in cut),
        *(s.tap.var for s in kept),
        convolution.input_channels.var,
        convolution.output_channels.var,
    ]
    index = convolution.weights.indices
    chosen = weights[tuple(int(i.value) if isinstance(i, Const) else slice(None) for i in index)]
    left = [i for i in index if not isinstance(i, Const)]
    result = chosen.astype(np.float64).transpose([left.index(v) for v in order])
    for k, (_, f) in enumerate(cut):
        g = np.array([[float(x) for x in row] for row in f.filter_transform])
        result = np.moveaxis(np.tensordot(g, result, axes=(1, k)), 0, k)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(result.astype(weights.dtype))


def _axes(shape: Sequence[Expr]) -> tuple[Axis, ...]:
    return tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(shape))


def _stage(name: str, shape: Sequence[Expr], body: Callable[[tuple[Expr, ...]], Expr], label: str) -> Computation:
    axes = _axes(shape)
    return Computation(Buffer(name, tuple(shape), float32), axes, (), body(tuple(a.var for a in axes)), None, label)


def _input_element(
    convolution: Convolution, slides: Sequence[SpatialAxis], sizes: Sequence[Expr], i: tuple[Expr, ...]
) -> Expr:
    """The element of the input for batch axes, places and channel; 0 behind its end, where a tile is not full."""
    own = (*convolution.batch, *(s.axis for s in slides), convolution.input_channels)
    known: dict[Var, Expr] = {a.var: x for a, x in zip(own, i, strict=True)}
    known |= {s.tap.var: const(0) for s in slides}
    index = tuple(substitute(x, known) for x in convolution.data.indices)
    limits: list[Expr] = []
    for s, size in zip(slides, sizes, strict=True):
        k = convolution.input_dimension(s)
        there = convolution.data.buffer.shape[k]
        if not can_prove(size <= there):
            limits.append(index[k] < there)
    return select(conjunction(*limits), convolution.data.buffer[index], 0.0)


def _transform_input(source: Buffer, transforms: Sequence[MinimalFilter], i: tuple[Expr, ...], before: int) -> Expr:
    """B^T d: `i` has points, the `before` axes before tiles, tiles and the channel."""
    count = len(transforms)
    points, outer, tiles, channel = i[:count], i[count : count + before], i[count + before : -1], i[-1]
    values: dict[tuple[int, ...], Expr] = {}
    for place in product(*(range(f.multiplications) for f in transforms)):
        moved = (t * f.tile_size + p for t, f, p in zip(tiles, transforms, place, strict=True))
        values[place] = source[(*outer, *moved, channel)]
    return _apply_matrices([f.input_transform for f in transforms], points, values)


def _transform_output(sums: Buffer, transforms: Sequence[MinimalFilter], i: tuple[Expr, ...], before: int) -> Expr:
    """A^T M: `i` has the `before` axes before tiles, a tile and a place in it per dimension, and the output channel."""
    outer, tiles, places = i[:before], i[before:-1:2], i[before + 1 : -1 : 2]
    values: dict[tuple[int, ...], Expr] = {}
    for point in product(*(range(f.multiplications) for f in transforms)):
        values[point] = sums[(*(const(p) for p in point), *outer, *tiles, i[-1])]
    return _apply_matrices([f.output_transform for f in transforms], places, values)


def _apply_matrices(matrices: Sequence[Matrix], rows: Sequence[Expr], values: dict[tuple[int, ...], Expr]) -> Expr:
    """The elements at `rows` of the product of the values with one matrix per dimension, one dimension at a time."""
    for matrix, row in zip(matrices, rows, strict=True):
        rest = dict.fromkeys(place[1:] for place in values)
        values = {r: _matrix_row(matrix, row, [values[(k, *r)] for k in range(len(matrix[0]))]) for r in rest}
    return values[()]


def _matrix_row(matrix: Matrix, row: Expr, values: Sequence[Expr]) -> Expr:
    """The sum of the values weighed by a row of a matrix, as cases of the row."""
    result = _weighted_sum(matrix[-1], values)
    for k in reversed(range(len(matrix) - 1)):
        result = select(row.equals(k), _weighted_sum(matrix[k], values), result)
    return result


def _weighted_sum(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """The sum of value times coefficient, positive coefficients first so that the sum starts with no negation."""
    terms = sorted(((c, v) for c, v in zip(row, values, strict=True) if c), key=lambda t: t[0] < 0)
    first, *rest = terms
    total = first[1] if first[0] == 1 else first[1] * float(first[0])
    for c, v in rest:
        part = v if abs(c) == 1 else v * float(abs(c))
        total = total + part if c > 0 else total - part
    return total
