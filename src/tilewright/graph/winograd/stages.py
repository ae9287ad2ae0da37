"""A sliding filter as stages: tiles of the input, a product of matrices per point, tiles of the results.

    source    the input with channels last, as many elements as whole tiles need
    V         B^T d per tile: [points..., batch..., tiles..., channels]
    M         the sum over channels of V U, a matrix product per point; U = G g is computed now
    T         A^T M per tile: [batch..., (tiles, m)..., outputs], looked at without the split into tiles
    results   T with the dimensions in their order; what follows the convolution is fused into it

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
from tilewright.graph.winograd.sliding import Sliding
from tilewright.graph.winograd.transforms import POINTS, Filter, Rows, toom_cook

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Fast:
    """A sliding filter computed by minimal filtering.

    Attributes:
        filters: one per dimension along which it slides.
        source, data, product, tiles: the stages.
        view: of the tiles.
        results: the stage that writes what the sum wrote.
        weights: the buffer of U, [points..., channels, outputs].
    """

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


def fast(found: Sliding, outputs: int, name: Callable[[str], str]) -> Fast:
    """The stages for tiles of `outputs` results in every dimension along which the filter slides.

    Args:
        found: the filter.
        outputs: m of F(m, r).
        name: makes the name of a buffer from what it holds.
    """
    label, last = found.stage.label, found.outputs.extent
    filters = tuple(toom_cook(outputs, s.taps) for s in found.slides)
    counts = [ceildiv(s.axis.extent, outputs) for s in found.slides]
    batch = [a.extent for a in found.batch]
    points = [const(f.products) for f in filters]
    sizes = [n * f.outputs + f.taps - 1 for n, f in zip(counts, filters, strict=True)]

    source = _stage(name("source"), (*batch, *sizes, found.channels.extent), lambda i: _element(found, sizes, i), label)
    data = _stage(
        name("data"),
        (*points, *batch, *counts, found.channels.extent),
        lambda i: _data(source.output, filters, i, len(batch)),
        label,
    )
    weights = Buffer(name("weights"), (*points, found.channels.extent, last), float32)
    result = Buffer(name("product"), (*points, *batch, *counts, last), float32)
    axes = _axes(result.shape)
    channel = Axis(Var("r0"), found.channels.extent)
    index = [a.var for a in axes]
    factors = data.output[(*index[:-1], channel.var)] * weights[(*index[: len(points)], channel.var, index[-1])]
    sums = Computation(result, axes, (channel,), factors, Reducer.SUM, label)
    split = [x for n in counts for x in (n, const(outputs))]
    tiles = _stage(name("tiles"), (*batch, *split, last), lambda i: _result(result, filters, i, len(batch)), label)
    view = View(Buffer(name("rows"), (*batch, *(n * outputs for n in counts), last), float32), tiles.output, label)
    own = (*found.batch, *_moving(found), found.outputs)
    results = replace(found.stage, reduce_axes=(), reducer=None, body=Load(view.output, tuple(a.var for a in own)))
    return Fast(filters, source, data, sums, tiles, view, results, weights)


def amplification(found: Sliding, outputs: int) -> float:
    """By how much rounding errors may grow beyond those of the direct sum; infinite where there are too few points."""
    if any(outputs + s.taps - 2 > len(POINTS) for s in found.slides):
        return inf
    return prod(toom_cook(outputs, s.taps).amplification for s in found.slides)


def transformed_weights(found: Sliding, filters: Sequence[Filter], weights: Array) -> Array:
    """U = G g along every dimension along which the filter slides, [points..., channels, outputs].

    Computed in double precision and rounded once.
    """
    order = [*(s.tap.var for s in found.slides), found.channels.var, found.outputs.var]
    index = found.weights.indices
    chosen = weights[tuple(int(i.value) if isinstance(i, Const) else slice(None) for i in index)]
    left = [i for i in index if not isinstance(i, Const)]
    result = chosen.astype(np.float64).transpose([left.index(v) for v in order])
    for k, f in enumerate(filters):
        g = np.array([[float(x) for x in row] for row in f.weights])
        result = np.moveaxis(np.tensordot(g, result, axes=(1, k)), 0, k)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(result.astype(weights.dtype))


def _axes(shape: Sequence[Expr]) -> tuple[Axis, ...]:
    return tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(shape))


def _stage(name: str, shape: Sequence[Expr], body: Callable[[tuple[Expr, ...]], Expr], label: str) -> Computation:
    axes = _axes(shape)
    return Computation(Buffer(name, tuple(shape), float32), axes, (), body(tuple(a.var for a in axes)), None, label)


def _element(found: Sliding, sizes: Sequence[Expr], i: tuple[Expr, ...]) -> Expr:
    """The element of the input for batch axes, places and channel; 0 behind its end, where a tile is not full."""
    known: dict[Var, Expr] = {a.var: x for a, x in zip((*found.batch, *_moving(found)), i, strict=False)}
    known |= {found.channels.var: i[-1], **{s.tap.var: const(0) for s in found.slides}}
    index = tuple(substitute(x, known) for x in found.data.indices)
    limits: list[Expr] = []
    for s, size in zip(found.slides, sizes, strict=True):
        k = found.dimension(s)
        there = found.data.buffer.shape[k]
        if not prove(size <= there):
            limits.append(index[k] < there)
    return select(both(*limits), found.data.buffer[index], 0.0)


def _moving(found: Sliding) -> tuple[Axis, ...]:
    return tuple(s.axis for s in found.slides)


def _data(source: Buffer, filters: Sequence[Filter], i: tuple[Expr, ...], batch: int) -> Expr:
    """B^T d: `i` has points, batch axes, tiles and the channel."""
    count = len(filters)
    points, outer, tiles, channel = i[:count], i[count : count + batch], i[count + batch : -1], i[-1]
    values: dict[tuple[int, ...], Expr] = {}
    for place in product(*(range(f.products) for f in filters)):
        moved = (t * f.outputs + p for t, f, p in zip(tiles, filters, place, strict=True))
        values[place] = source[(*outer, *moved, channel)]
    return _nested([f.data for f in filters], points, values)


def _result(sums: Buffer, filters: Sequence[Filter], i: tuple[Expr, ...], batch: int) -> Expr:
    """A^T M: `i` has batch axes, a tile and a place in it per dimension, and the output channel."""
    outer, tiles, places = i[:batch], i[batch:-1:2], i[batch + 1 : -1 : 2]
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
