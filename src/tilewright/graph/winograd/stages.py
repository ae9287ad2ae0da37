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

from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Axis, Computation, Reducer, View
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Const, Expr, Load, Var, both, ceildiv, const, select
from tilewright.expr.prover import prove
from tilewright.expr.simplify import substitute
from tilewright.graph.winograd.sliding import Slide, Sliding
from tilewright.graph.winograd.transforms import POINTS, Filter, Rows, toom_cook

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Fast:
    """A sliding filter computed by minimal filtering.

    Attributes:
        outputs: m of F(m, r) per dimension along which the filter slides, 0 where it is not cut into tiles.
        filters: one per dimension that is cut.
        source, data, product, tiles: the stages.
        view: of the tiles.
        results: the stage that writes what the sum wrote.
        weights: the buffer of U, [points..., taps..., channels, outputs] with the taps of the other dimensions.
    """

    outputs: tuple[int, ...]
    filters: tuple[Filter, ...]
    source: Computation
    data: Computation
    product: Computation
    tiles: Computation
    view: View
    results: Computation
    weights: Buffer

    @property
    def stages(self) -> tuple[Computation | View, ...]:
        """In order of execution."""
        return self.source, self.data, self.product, self.tiles, self.view, self.results


def fast(found: Sliding, outputs: Sequence[int], name: Callable[[str], str]) -> Fast:
    """The stages for tiles of `outputs` results.

    Args:
        found: the filter.
        outputs: m of F(m, r) per dimension along which the filter slides, 0 where it is not cut into tiles; not all 0.
        name: makes the name of a buffer from what it holds.
    """
    label, last, channels = found.stage.label, found.outputs.extent, found.channels.extent
    cut = [(s, toom_cook(m, s.taps)) for s, m in zip(found.slides, outputs, strict=True) if m]
    kept = [s for s, m in zip(found.slides, outputs, strict=True) if not m]
    filters = tuple(f for _, f in cut)
    counts = [ceildiv(s.axis.extent, f.outputs) for s, f in cut]
    batch = [a.extent for a in found.batch]
    points = [const(f.products) for f in filters]
    reach = [s.axis.extent + s.taps - 1 for s in kept]
    sizes = [*reach, *(n * f.outputs + f.taps - 1 for n, f in zip(counts, filters, strict=True))]
    outer = len(batch) + len(kept)

    order = (*kept, *(s for s, _ in cut))
    source = _stage(name("source"), (*batch, *sizes, channels), lambda i: _element(found, order, sizes, i), label)
    data = _stage(
        name("data"),
        (*points, *batch, *reach, *counts, channels),
        lambda i: _data(source.output, filters, i, outer),
        label,
    )
    weights = Buffer(name("weights"), (*points, *(s.tap.extent for s in kept), channels, last), float32)
    sums = _product(name("product"), data.output, weights, len(batch), kept, label)
    split = [x for n, f in zip(counts, filters, strict=True) for x in (n, const(f.outputs))]
    places = [s.axis.extent for s in kept]
    shape = (*batch, *places, *split, last)
    tiles = _stage(name("tiles"), shape, lambda i: _result(sums.output, filters, i, outer), label)
    rows = [n * f.outputs for n, f in zip(counts, filters, strict=True)]
    view = View(Buffer(name("rows"), (*batch, *places, *rows, last), float32), tiles.output, label)
    own = (*found.batch, *(s.axis for s in order), found.outputs)
    results = replace(found.stage, reduce_axes=(), reducer=None, body=Load(view.output, tuple(a.var for a in own)))
    return Fast(tuple(outputs), filters, source, data, sums, tiles, view, results, weights)


def _product(name: str, data: Buffer, weights: Buffer, batch: int, kept: Sequence[Slide], label: str) -> Computation:
    """M, the sum of V U over channels and the taps of the dimensions that are not cut, per point, place and tile.

    Args:
        name: of the buffer of M.
        data: V.
        weights: U.
        batch: how many axes of the results the filter does not know.
        kept: the dimensions that are not cut.
        label: of the stage.
    """
    first = len(weights.shape) - 2 - len(kept) + batch
    shape = list(data.shape)
    shape[first : first + len(kept)] = [s.axis.extent for s in kept]
    axes = _axes((*shape[:-1], weights.shape[-1]))
    taps = [Axis(Var(f"r{k}"), s.tap.extent) for k, s in enumerate(kept)]
    channel = Axis(Var(f"r{len(kept)}"), data.shape[-1])
    index: list[Expr] = [a.var for a in axes]
    moved = [*index[:-1], channel.var]
    for k, tap in enumerate(taps):
        moved[first + k] = moved[first + k] + tap.var
    points = index[: first - batch]
    factors = data[tuple(moved)] * weights[(*points, *(t.var for t in taps), channel.var, index[-1])]
    result = Buffer(name, tuple(a.extent for a in axes), float32)
    return Computation(result, axes, (*taps, channel), factors, Reducer.SUM, label)


def amplification(found: Sliding, outputs: Sequence[int]) -> float:
    """By how much rounding errors may grow beyond those of the direct sum; infinite where there are too few points.

    Args:
        found: the filter.
        outputs: as for `fast`; a dimension that is not cut adds nothing.
    """
    cut = [(m, s.taps) for s, m in zip(found.slides, outputs, strict=True) if m]
    if any(m + taps - 2 > len(POINTS) for m, taps in cut):
        return inf
    return prod(toom_cook(m, taps).amplification for m, taps in cut)


def transformed_weights(found: Sliding, outputs: Sequence[int], weights: Array) -> Array:
    """U = G g along every dimension that is cut into tiles, [points..., taps..., channels, outputs].

    Computed in double precision and rounded once.

    Args:
        found: the filter.
        outputs: as for `fast`.
        weights: g, as the program has it.
    """
    cut = [(s, toom_cook(m, s.taps)) for s, m in zip(found.slides, outputs, strict=True) if m]
    kept = [s for s, m in zip(found.slides, outputs, strict=True) if not m]
    order = [*(s.tap.var for s, _ in cut), *(s.tap.var for s in kept), found.channels.var, found.outputs.var]
    index = found.weights.indices
    chosen = weights[tuple(int(i.value) if isinstance(i, Const) else slice(None) for i in index)]
    left = [i for i in index if not isinstance(i, Const)]
    result = chosen.astype(np.float64).transpose([left.index(v) for v in order])
    for k, (_, f) in enumerate(cut):
        g = np.array([[float(x) for x in row] for row in f.weights])
        result = np.moveaxis(np.tensordot(g, result, axes=(1, k)), 0, k)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(result.astype(weights.dtype))


def _axes(shape: Sequence[Expr]) -> tuple[Axis, ...]:
    return tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(shape))


def _stage(name: str, shape: Sequence[Expr], body: Callable[[tuple[Expr, ...]], Expr], label: str) -> Computation:
    axes = _axes(shape)
    return Computation(Buffer(name, tuple(shape), float32), axes, (), body(tuple(a.var for a in axes)), None, label)


def _element(found: Sliding, slides: Sequence[Slide], sizes: Sequence[Expr], i: tuple[Expr, ...]) -> Expr:
    """The element of the input for batch axes, places and channel; 0 behind its end, where a tile is not full."""
    own = (*found.batch, *(s.axis for s in slides), found.channels)
    known: dict[Var, Expr] = {a.var: x for a, x in zip(own, i, strict=True)}
    known |= {s.tap.var: const(0) for s in slides}
    index = tuple(substitute(x, known) for x in found.data.indices)
    limits: list[Expr] = []
    for s, size in zip(slides, sizes, strict=True):
        k = found.dimension(s)
        there = found.data.buffer.shape[k]
        if not prove(size <= there):
            limits.append(index[k] < there)
    return select(both(*limits), found.data.buffer[index], 0.0)


def _data(source: Buffer, filters: Sequence[Filter], i: tuple[Expr, ...], before: int) -> Expr:
    """B^T d: `i` has points, the `before` axes before tiles, tiles and the channel."""
    count = len(filters)
    points, outer, tiles, channel = i[:count], i[count : count + before], i[count + before : -1], i[-1]
    values: dict[tuple[int, ...], Expr] = {}
    for place in product(*(range(f.products) for f in filters)):
        moved = (t * f.outputs + p for t, f, p in zip(tiles, filters, place, strict=True))
        values[place] = source[(*outer, *moved, channel)]
    return _nested([f.data for f in filters], points, values)


def _result(sums: Buffer, filters: Sequence[Filter], i: tuple[Expr, ...], before: int) -> Expr:
    """A^T M: `i` has the `before` axes before tiles, a tile and a place in it per dimension, and the output channel."""
    outer, tiles, places = i[:before], i[before:-1:2], i[before + 1 : -1 : 2]
    values: dict[tuple[int, ...], Expr] = {}
    for point in product(*(range(f.products) for f in filters)):
        values[point] = sums[(*(const(p) for p in point), *outer, *tiles, i[-1])]
    return _nested([f.results for f in filters], places, values)


def _nested(matrices: Sequence[Rows], rows: Sequence[Expr], values: dict[tuple[int, ...], Expr]) -> Expr:
    """The elements at `rows` of the product of the values with one matrix per dimension, one dimension at a time."""
    for matrix, row in zip(matrices, rows, strict=True):
        rest = dict.fromkeys(place[1:] for place in values)
        values = {r: _row_of(matrix, row, [values[(k, *r)] for k in range(len(matrix[0]))]) for r in rest}
    return values[()]


def _row_of(matrix: Rows, row: Expr, values: Sequence[Expr]) -> Expr:
    """The sum of the values weighed by a row of a matrix, as cases of the row."""
    result = _weighed(matrix[-1], values)
    for k in reversed(range(len(matrix) - 1)):
        result = select(row.equals(k), _weighed(matrix[k], values), result)
    return result


def _weighed(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """The sum of value times coefficient, positive coefficients first so that the sum starts with no negation."""
    terms = sorted(((c, v) for c, v in zip(row, values, strict=True) if c), key=lambda t: t[0] < 0)
    first, *rest = terms
    total = first[1] if first[0] == 1 else first[1] * float(first[0])
    for c, v in rest:
        part = v if abs(c) == 1 else v * float(abs(c))
        total = total + part if c > 0 else total - part
    return total
