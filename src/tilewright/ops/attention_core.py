"""Scaled dot-product attention of heads: two contractions with a softmax between them.

The operators of this name differ in how they state heads, masks and caches; what they compute is here. Heads are read
in place; `graph/canonicalize` brings the layouts of all exporters into one form.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import TRUE, Expr, as_expr, const
from tilewright.expr.operations import cast, conjunction, maximum, select, unary
from tilewright.ops.checks import expect_dtype, expect_rank, expect_size
from tilewright.ops.contraction import accumulator_dtype, sum_over, widening_product
from tilewright.ops.definition import Definition, OpValue

HeadReader = Callable[[Expr, Expr, Expr, Expr], Expr]
"""The element at (batch, head, position, feature)."""

ScoreFunction = Callable[[tuple[Expr, ...], Expr], Expr]
"""The masked score at an index (batch, head, query, key), given the product of query and key there."""


@dataclass(frozen=True, slots=True)
class Heads:
    """A query, key or value: its sizes and a function that loads its elements."""

    batch: Expr
    heads: Expr
    length: Expr
    size: Expr
    read: HeadReader
    dtype: DType


def heads_first(x: OpValue) -> Heads:
    """The heads of [batch, heads, length, size]."""
    batch, heads, length, size = x.shape
    return Heads(batch, heads, length, size, lambda b, h, s, k: x[b, h, s, k], x.dtype)


def split_heads(d: Definition, x: OpValue, count: int, what: str) -> Heads:
    """The heads of [batch, length, count * size].

    Raises:
        ShapeError: the last dimension is no multiple of `count`.
    """
    expect_rank(d, x, 3, what)
    if count < 1:
        raise ShapeError(f"{what}: expected 1 head or more, got {count}", where=f"node {d.label}")
    batch, length, hidden = x.shape
    d.require((hidden % count).equals(0), f"{what}: expected a multiple of {count} heads, got {hidden}")
    return packed_heads(d.view(x, (batch, length, count, hidden // count)), 0, count)


def packed_heads(x: OpValue, first: int, count: Expr | int) -> Heads:
    """Heads `first` to `first + count` of [batch, length, heads, size]."""
    batch, length, _, size = x.shape
    return Heads(batch, as_expr(count), length, size, lambda b, h, s, k: x[b, s, h + first, k], x.dtype)


def append_to_past(
    d: Definition, x: Heads, past: OpValue | None, is_output: bool, what: str
) -> tuple[Heads, OpValue | None]:
    """The cache: past elements [batch, heads, past, size] followed by new ones; a stage only with a past or where the
    result is an output.

    Raises:
        ShapeError: the past has another shape or type than the new elements.
    """
    if past is None and not is_output:
        return x, None
    start = const(0)
    if past is not None:
        expect_rank(d, past, 4, what)
        expect_dtype(d, past, x.dtype, what)
        for k, size in ((0, x.batch), (1, x.heads), (3, x.size)):
            expect_size(d, past.shape[k], size, f"dimension {k} of {what}")
        start = past.shape[2]

    def body(b: Expr, h: Expr, s: Expr, k: Expr) -> Expr:
        new = x.read(b, h, s - start, k)
        return new if past is None else select(s < start, past[b, h, s, k], new)

    result = d.compute((x.batch, x.heads, start + x.length, x.size), body, x.dtype)
    return heads_first(result), result


def score_scale(dtype: DType, scale: float, size: Expr) -> Expr:
    """The factor of the products of queries and keys: `scale`, or 1 / sqrt(size) where it is 0."""
    return const(scale, dtype) if scale else 1.0 / unary("sqrt", cast(dtype, size))


def capped(value: Expr, cap: float) -> Expr:
    """cap * tanh(value / cap); the value itself for a cap of 0."""
    return unary("tanh", value / cap) * cap if cap else value


def window_condition(query: Expr, key: Expr, past: Expr, left: int, right: int) -> Expr:
    """Whether the query at position `past + query` attends to a key: at most `left` before it and `right` after it.

    Args:
        query: the query's place among the new ones.
        key: the key's position.
        past: number of keys before the first query.
        left: keys before the query's own position; -1 for all.
        right: keys after it; -1 for all, 0 for causal attention.
    """
    after = TRUE if right < 0 else key <= query + past + right
    return conjunction(after, TRUE if left < 0 else key >= query + past - left)


@dataclass(frozen=True, slots=True)
class SoftmaxForm:
    """How the scores of a row become weights.

    Attributes:
        dtype: the type of scores and weights.
        may_mask_rows: whether all scores of a row may be masked by -inf; the row's weights are 0 then. Otherwise the
            weights of such a row are NaN, as those of Softmax.
        sink: a score per head that takes part in the sum without a value; None where there is none.
    """

    dtype: DType
    may_mask_rows: bool = False
    sink: Callable[[Expr], Expr] | None = None


def attend(
    d: Definition, query: Heads, key: Heads, value: Heads, score: ScoreFunction, form: SoftmaxForm, merged: bool
) -> OpValue:
    """softmax(score(Q K^T)) V; the sums of values are divided by the sums of weights.

    Args:
        d: the operator.
        query: the queries.
        key: the keys; their heads divide those of the queries.
        value: the values, as many as keys.
        score: scale, mask and further functions of the products, of type `form.dtype`.
        form: how the scores of a row become weights.
        merged: whether the result is [batch, queries, heads * size] rather than [batch, heads, queries, size].

    Raises:
        ShapeError: sizes of queries, keys and values do not fit.
    """
    _check_sizes(d, query, key, value)
    group = query.heads // key.heads
    outer = (query.batch, query.heads, query.length)
    scores = query_key_products(d, query, key)
    masked = d.compute(scores.shape, lambda *i: score(i, scores[i]), form.dtype)
    powers, inverse = row_weights(d, masked, form)
    shape = (outer[0], outer[2], outer[1], value.size) if merged else (*outer, value.size)

    def row(i: tuple[Expr, ...]) -> tuple[Expr, Expr, Expr]:
        return (i[0], i[2], i[1]) if merged else (i[0], i[1], i[2])

    def weighted(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        element = value.read(i[0], row(i)[1] // group, r[0], i[3])
        return widening_product(powers[(*row(i), r[0])], element, form.dtype)

    total = sum_over(d, shape, (key.length,), weighted)
    result = d.compute(shape, lambda *i: cast(query.dtype, total[i] * inverse[row(i)]))
    return d.view(result, (query.batch, query.length, query.heads * value.size)) if merged else result


def query_key_products(d: Definition, query: Heads, key: Heads) -> OpValue:
    """Q K^T for each head, in the accumulator type; the heads of keys divide those of queries."""
    group, wide = query.heads // key.heads, accumulator_dtype(query.dtype)

    def product(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        element = key.read(i[0], i[1] // group, i[3], r[0])
        return widening_product(query.read(i[0], i[1], i[2], r[0]), element, wide)

    return sum_over(d, (query.batch, query.heads, query.length, key.length), (query.size,), product)


def _check_sizes(d: Definition, query: Heads, key: Heads, value: Heads) -> None:
    expect_size(d, key.size, query.size, "head size of K")
    expect_size(d, value.length, key.length, "positions of V")
    for x, what in ((key, "K"), (value, "V")):
        expect_size(d, x.batch, query.batch, f"batch of {what}")
    d.require((query.heads % key.heads).equals(0), f"heads of Q: expected a multiple of {key.heads}, got {query.heads}")


def row_weights(d: Definition, scores: OpValue, form: SoftmaxForm) -> tuple[OpValue, OpValue]:
    """exp(score - maximum), and the inverse of each row's sum."""
    *outer, length = scores.shape
    zero = const(0, form.dtype)
    row_max = d.reduce(outer, (length,), lambda i, r: scores[(*i, *r)], Reducer.MAX)
    shift = row_max
    if form.sink is not None:
        sink = form.sink
        shift = d.compute(outer, lambda *i: maximum(row_max[i], sink(i[1])))
    elif form.may_mask_rows:
        # The maximum of a row of -inf can't be subtracted; with 0 instead, all its exponentials are 0.
        shift = d.compute(outer, lambda *i: select(row_max[i].equals(float("-inf")), zero, row_max[i]))
    powers = d.compute(scores.shape, lambda *i: unary("exp", scores[i] - shift[i[:3]]))
    total = d.reduce(outer, (length,), lambda i, r: powers[(*i, *r)], Reducer.SUM)

    def inverse(*i: Expr) -> Expr:
        if form.sink is not None:
            return as_expr(1.0, form.dtype) / (total[i] + unary("exp", form.sink(i[1]) - shift[i]))
        # The sum is at least 1, or NaN, unless the row is masked or there are no keys.
        return select(total[i].equals(0.0), zero, const(1, form.dtype) / total[i])

    return powers, d.compute(outer, inverse)
