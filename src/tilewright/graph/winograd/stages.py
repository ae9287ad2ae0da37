"""Winograd stages: input transform, one contraction per point, output transform.

    source    the input with channels last, as many elements as whole tiles need
    V         B^T d per tile: [points..., batch..., places..., tiles..., channels]
    M         the sum over channels of V U, a matrix product per point; U = G g is computed at compile time
    T         A^T M per tile: [batch..., places..., (tiles, m)..., outputs], viewed without the split into tiles
    results   T with the dimensions in their order; what follows the convolution is fused into it

Untiled dimensions (time in a video, say) keep their places, and M sums over their taps as it does over channels: only
the tiled dimensions amplify rounding errors. Channels are innermost in all stages, so that every transform works on
vectors of channels, whatever the sizes are. The rows of a transform are cases of the stage's axis (`a == 0`, `a == 1`,
...), which unrolled loops decide.
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
    """A convolution computed by minimal filtering.

    Attributes:
        tile_sizes: m of F(m, r) per spatial dimension, 0 for an untiled one.
        transforms: one per tiled dimension.
        padded_input, transformed_input, contraction, output_tiles: the stages that compute source, V, M and T.
        tiles_view: T without the split into tiles.
        output: the stage that writes the convolution's results.
        transformed_weights: the buffer of U, [points..., taps..., channels, outputs], with the taps of untiled
            dimensions.
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
    """The stages of a convolution for the given tile sizes.

    Args:
        convolution: the convolution.
        tile_sizes: m of F(m, r) per spatial dimension, 0 for an untiled one; not all 0.
        make_name: generates the name of a buffer from a word for its contents.
    """
    label = convolution.stage.label
    output_channels, channels = convolution.output_channels.extent, convolution.input_channels.extent
    tiled = [(s, toom_cook(m, s.taps)) for s, m in zip(convolution.spatial, tile_sizes, strict=True) if m]
    untiled = [s for s, m in zip(convolution.spatial, tile_sizes, strict=True) if not m]
    transforms = tuple(f for _, f in tiled)
    counts = [ceildiv(s.axis.extent, f.tile_size) for s, f in tiled]
    batch = [a.extent for a in convolution.batch]
    points = [const(f.multiplications) for f in transforms]
    input_extents = [s.axis.extent + s.taps - 1 for s in untiled]
    sizes = [*input_extents, *(n * f.tile_size + f.taps - 1 for n, f in zip(counts, transforms, strict=True))]
    outer = len(batch) + len(untiled)

    order = (*untiled, *(s for s, _ in tiled))
    padded_input = _stage(
        make_name("source"), (*batch, *sizes, channels), lambda i: _input_element(convolution, order, sizes, i), label
    )
    transformed_input = _stage(
        make_name("data"),
        (*points, *batch, *input_extents, *counts, channels),
        lambda i: _transform_input(padded_input.output, transforms, i, outer),
        label,
    )
    transformed_weights = Buffer(
        make_name("weights"), (*points, *(s.tap.extent for s in untiled), channels, output_channels), float32
    )
    contraction = _contraction(
        make_name("product"), transformed_input.output, transformed_weights, len(batch), untiled, label
    )
    tile_dims = [x for n, f in zip(counts, transforms, strict=True) for x in (n, const(f.tile_size))]
    places = [s.axis.extent for s in untiled]
    shape = (*batch, *places, *tile_dims, output_channels)
    output_tiles = _stage(
        make_name("tiles"), shape, lambda i: _transform_output(contraction.output, transforms, i, outer), label
    )
    rows = [n * f.tile_size for n, f in zip(counts, transforms, strict=True)]
    tiles_view = View(
        Buffer(make_name("rows"), (*batch, *places, *rows, output_channels), float32), output_tiles.output, label
    )
    axes = (*convolution.batch, *(s.axis for s in order), convolution.output_channels)
    output = replace(
        convolution.stage, reduce_axes=(), reducer=None, body=Load(tiles_view.output, tuple(a.var for a in axes))
    )
    return WinogradForm(
        tuple(tile_sizes),
        transforms,
        padded_input,
        transformed_input,
        contraction,
        output_tiles,
        tiles_view,
        output,
        transformed_weights,
    )


def _contraction(
    name: str, data: Buffer, weights: Buffer, batch: int, untiled: Sequence[SpatialAxis], label: str
) -> Computation:
    """M, the sum of V U over channels and the taps of untiled dimensions, per point, place and tile.

    Args:
        name: of the buffer of M.
        data: V.
        weights: U.
        batch: number of batch axes.
        untiled: the untiled dimensions.
        label: of the stage.
    """
    first = len(weights.shape) - 2 - len(untiled) + batch
    shape = list(data.shape)
    shape[first : first + len(untiled)] = [s.axis.extent for s in untiled]
    axes = _axes((*shape[:-1], weights.shape[-1]))
    taps = [Axis(Var(f"r{k}"), s.tap.extent) for k, s in enumerate(untiled)]
    channel = Axis(Var(f"r{len(untiled)}"), data.shape[-1])
    index: list[Expr] = [a.var for a in axes]
    data_index = [*index[:-1], channel.var]
    for k, tap in enumerate(taps):
        data_index[first + k] = data_index[first + k] + tap.var
    points = index[: first - batch]
    factors = data[tuple(data_index)] * weights[(*points, *(t.var for t in taps), channel.var, index[-1])]
    result = Buffer(name, tuple(a.extent for a in axes), float32)
    return Computation(result, axes, (*taps, channel), factors, Reducer.SUM, label)


def error_growth(convolution: Convolution, tile_sizes: Sequence[int]) -> float:
    """Upper bound of rounding errors over those of the direct sum; infinite where there are too few interpolation
    points.

    Args:
        convolution: the convolution.
        tile_sizes: as for `make_winograd_form`; an untiled dimension adds nothing.
    """
    tiled = [(m, s.taps) for s, m in zip(convolution.spatial, tile_sizes, strict=True) if m]
    if any(m + taps - 2 > len(POINTS) for m, taps in tiled):
        return inf
    return prod(toom_cook(m, taps).error_growth for m, taps in tiled)


def transform_weights(convolution: Convolution, tile_sizes: Sequence[int], weights: Array) -> Array:
    """U = G g along every tiled dimension, [points..., taps..., channels, outputs].

    Computed in double precision and rounded once.

    Args:
        convolution: the convolution.
        tile_sizes: as for `make_winograd_form`.
        weights: g, as the program has it.
    """
    tiled = [(s, toom_cook(m, s.taps)) for s, m in zip(convolution.spatial, tile_sizes, strict=True) if m]
    untiled = [s for s, m in zip(convolution.spatial, tile_sizes, strict=True) if not m]
    order = [
        *(s.tap.var for s, _ in tiled),
        *(s.tap.var for s in untiled),
        convolution.input_channels.var,
        convolution.output_channels.var,
    ]
    index = convolution.weights.indices
    taps = weights[tuple(int(i.value) if isinstance(i, Const) else slice(None) for i in index)]
    axes = [i for i in index if not isinstance(i, Const)]
    transformed = taps.astype(np.float64).transpose([axes.index(v) for v in order])
    for k, (_, f) in enumerate(tiled):
        g = np.array([[float(x) for x in row] for row in f.filter_transform])
        transformed = np.moveaxis(np.tensordot(g, transformed, axes=(1, k)), 0, k)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(transformed.astype(weights.dtype))


def _axes(shape: Sequence[Expr]) -> tuple[Axis, ...]:
    return tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(shape))


def _stage(name: str, shape: Sequence[Expr], body: Callable[[tuple[Expr, ...]], Expr], label: str) -> Computation:
    axes = _axes(shape)
    return Computation(Buffer(name, tuple(shape), float32), axes, (), body(tuple(a.var for a in axes)), None, label)


def _input_element(
    convolution: Convolution, slides: Sequence[SpatialAxis], sizes: Sequence[Expr], i: tuple[Expr, ...]
) -> Expr:
    """The element of the input for batch axes, places and channel; 0 past its end, in tiles that are not full."""
    axes = (*convolution.batch, *(s.axis for s in slides), convolution.input_channels)
    place: dict[Var, Expr] = {a.var: x for a, x in zip(axes, i, strict=True)}
    place |= {s.tap.var: const(0) for s in slides}
    index = tuple(substitute(x, place) for x in convolution.data.indices)
    limits: list[Expr] = []
    for s, size in zip(slides, sizes, strict=True):
        k = convolution.input_dimension(s)
        size_limit = convolution.data.buffer.shape[k]
        if not can_prove(size <= size_limit):
            limits.append(index[k] < size_limit)
    return select(conjunction(*limits), convolution.data.buffer[index], 0.0)


def _transform_input(source: Buffer, transforms: Sequence[MinimalFilter], i: tuple[Expr, ...], before: int) -> Expr:
    """B^T d; `i` consists of points, `before` outer axes, tiles and the channel."""
    count = len(transforms)
    points, outer, tiles, channel = i[:count], i[count : count + before], i[count + before : -1], i[-1]
    values: dict[tuple[int, ...], Expr] = {}
    for place in product(*(range(f.multiplications) for f in transforms)):
        offsets = (t * f.tile_size + p for t, f, p in zip(tiles, transforms, place, strict=True))
        values[place] = source[(*outer, *offsets, channel)]
    return _apply_matrices([f.input_transform for f in transforms], points, values)


def _transform_output(sums: Buffer, transforms: Sequence[MinimalFilter], i: tuple[Expr, ...], before: int) -> Expr:
    """A^T M; `i` consists of `before` outer axes, a tile and a place in it per tiled dimension, and the output
    channel."""
    outer, tiles, places = i[:before], i[before:-1:2], i[before + 1 : -1 : 2]
    values: dict[tuple[int, ...], Expr] = {}
    for point in product(*(range(f.multiplications) for f in transforms)):
        values[point] = sums[(*(const(p) for p in point), *outer, *tiles, i[-1])]
    return _apply_matrices([f.output_transform for f in transforms], places, values)


def _apply_matrices(matrices: Sequence[Matrix], rows: Sequence[Expr], values: dict[tuple[int, ...], Expr]) -> Expr:
    """The elements at `rows` of the product of the values with one matrix per dimension, one dimension at a time."""
    for matrix, row in zip(matrices, rows, strict=True):
        remaining = dict.fromkeys(place[1:] for place in values)
        values = {r: _matrix_row(matrix, row, [values[(k, *r)] for k in range(len(matrix[0]))]) for r in remaining}
    return values[()]


def _matrix_row(matrix: Matrix, row: Expr, values: Sequence[Expr]) -> Expr:
    """The sum of the values weighted by a row of a matrix, as cases of the row."""
    result = _weighted_sum(matrix[-1], values)
    for k in reversed(range(len(matrix) - 1)):
        result = select(row.equals(k), _weighted_sum(matrix[k], values), result)
    return result


def _weighted_sum(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """The sum of value times coefficient, positive coefficients first so that the sum starts without a negation."""
    terms = sorted(((c, v) for c, v in zip(row, values, strict=True) if c), key=lambda t: t[0] < 0)
    first, *rest = terms
    total = first[1] if first[0] == 1 else first[1] * float(first[0])
    for c, v in rest:
        term = v if abs(c) == 1 else v * float(abs(c))
        total = total + term if c > 0 else total - term
    return total
