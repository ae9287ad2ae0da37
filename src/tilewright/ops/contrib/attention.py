"""Attention and MultiHeadAttention of ONNX Runtime's domain.

Masks of 0 and 1 become `mask_filter_value` (-10000) or 0, which is added to the scores; what causal attention excludes
has no weight at all.
"""

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, int32
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import binary, cast, select
from tilewright.expr.traversal import is_one
from tilewright.ops.attention_core import (
    HeadReader,
    Heads,
    ScoreFunction,
    SoftmaxForm,
    append_to_past,
    attend,
    heads_first,
    packed_heads,
    score_scale,
    window_condition,
)
from tilewright.ops.axes import show_shape
from tilewright.ops.checks import expect_dtype, expect_rank, expect_shape, expect_size
from tilewright.ops.contraction import accumulator_dtype, batched_matmul, epilogue
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, broadcast_element, operator

_DEFAULT_FILTER = -10000.0


@operator("Attention", domain=CONTRIB, ignores=("rotary_embedding_dim",))
def attention(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """Self-attention with its input projections: inputs x, weights [hidden, q + k + v], bias, mask, past keys and
    values [2, batch, heads, past, size], attention bias; optional result: past and new keys and values.

    Raises:
        UnsupportedError: rotary embedding, or a cache that is shared with the past.
    """
    if d.optional(6) is not None:
        raise d.unsupported("input past_sequence_length is not supported")
    x, weights = d.input(0), d.input(1)
    expect_rank(d, x, 3, "input")
    expect_rank(d, weights, 2, "weights")
    expect_dtype(d, weights, x.dtype, "weights")
    projected = _add_bias(d, batched_matmul(d, x, weights, accumulator_dtype(x.dtype)), d.optional(2), x.dtype)
    return self_attention(d, projected, d.optional(4), d.optional(3), d.optional(5))


def self_attention(
    d: Definition, projected: OpValue, past: OpValue | None, mask: OpValue | None, bias: OpValue | None
) -> OpValue | tuple[OpValue, ...]:
    """Attention of projected queries, keys and values, with the attributes of Attention.

    Args:
        d: the operator.
        projected: [batch, length, q + k + v].
        past: past keys and values [2, batch, heads, past, size].
        mask: which keys count.
        bias: addend of the scores.

    Raises:
        ShapeError: operands or attributes do not match.
        UnsupportedError: rotary embedding, a cache that is shared with the past, or an unsupported form of mask.
    """
    for name in ("do_rotary", "past_present_share_buffer"):
        if d.attr_int(name, 0):
            raise d.unsupported(f"{name} is not supported")
    heads = _head_count(d)
    sizes = _hidden_sizes(d, projected.shape[2], heads)
    query, key, value = _split_projections(d, projected, sizes, heads)
    past_key, past_value = (None, None) if past is None else _split_past(d, past)
    new_length = key.length
    key, _ = append_to_past(d, key, past_key, False, "past (keys)")
    value, _ = append_to_past(d, value, past_value, False, "past (values)")
    dtype = projected.dtype
    masks = _Masks(d, (query.batch, query.heads, query.length, key.length), key.length - new_length, dtype)
    score = _score_function(d, query, masks, mask, bias)
    y = attend(d, query, key, value, score, SoftmaxForm(accumulator_dtype(dtype)), merged=True)
    if d.num_outputs == 1:
        return y
    expect_size(d, value.size, key.size, "head size of V (of a cache of keys and values)")
    shape = (const(2), key.batch, key.heads, key.length, key.size)

    def cached(*i: Expr) -> Expr:
        which, b, h, s, k = i
        return select(which.equals(0), key.read(b, h, s, k), value.read(b, h, s, k))

    return y, d.compute(shape, cached, dtype)


@operator("MultiHeadAttention", domain=CONTRIB)
def multi_head_attention(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """Attention of projected queries, keys and values: inputs query, key, value, bias, key padding mask, attention
    bias, past key, past value; optional results: past and new keys, past and new values.

    Query, key and value are [batch, length, heads * size]; or one tensor of all [batch, length, heads, 3, size]; or a
    query and one tensor of keys and values [batch, length, heads, 2, size]; or keys and values of another call,
    [batch, heads, length, size].

    Raises:
        UnsupportedError: a cache that is shared with the past, beams, or the product of queries and keys as a result.
    """
    for position, name in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if d.optional(position) is not None:
            raise d.unsupported(f"input {name} is not supported")
    if d.num_outputs > 3:
        raise d.unsupported("output qk is not supported")
    query, key, value = _multi_head_inputs(d, _head_count(d))
    new_length = key.length
    key, present_key = append_to_past(d, key, d.optional(6), d.num_outputs > 1, "past_key")
    value, present_value = append_to_past(d, value, d.optional(7), d.num_outputs > 2, "past_value")
    masks = _Masks(d, (query.batch, query.heads, query.length, key.length), key.length - new_length, query.dtype)
    score = _score_function(d, query, masks, d.optional(4), d.optional(5))
    y = attend(d, query, key, value, score, SoftmaxForm(accumulator_dtype(query.dtype)), merged=True)
    results = [r for r in (y, present_key, present_value) if r is not None]
    return tuple(results) if d.num_outputs > 1 else y


def _head_count(d: Definition) -> int:
    heads = d.attr_int("num_heads", 0)
    if heads < 1:
        raise ShapeError(f"num_heads: expected 1 or more, got {heads}", where=f"node {d.label}")
    return heads


def _add_bias(d: Definition, total: OpValue, bias: OpValue | None, dtype: DType) -> OpValue:
    """total + bias [columns], converted to `dtype`."""
    if bias is None:
        return epilogue(d, total, dtype)
    expect_shape(d, bias, total.shape[-1:], "bias")
    expect_dtype(d, bias, dtype, "bias")
    return epilogue(d, total, dtype, lambda i: cast(total.dtype, bias[i[-1]]))


def _hidden_sizes(d: Definition, total: Expr, heads: int) -> tuple[Expr, Expr, Expr]:
    """Columns of the queries, keys and values."""
    listed = d.attr_ints("qkv_hidden_sizes")
    if listed is None:
        d.require((total % (3 * heads)).equals(0), f"weights: expected a multiple of {3 * heads} columns, got {total}")
        return total // 3, total // 3, total // 3
    if len(listed) != 3 or listed[0] != listed[1] or any(n < 1 or n % heads for n in listed):
        what = f"qkv_hidden_sizes: expected three multiples of {heads}, the first two equal, got {list(listed)}"
        raise ShapeError(what, where=f"node {d.label}")
    expect_size(d, total, const(sum(listed)), "columns of the weights")
    q, k, v = map(const, listed)
    return q, k, v


def _split_projections(
    d: Definition, x: OpValue, sizes: tuple[Expr, Expr, Expr], heads: int
) -> tuple[Heads, Heads, Heads]:
    """Queries, keys and values in [batch, length, q + k + v]."""
    batch, length, total = x.shape
    if sizes[0] is sizes[2]:
        size = sizes[0] // heads
        parts = d.view(x, (batch, length, const(3), const(heads), size))

        def third(k: int) -> Heads:
            return Heads(batch, const(heads), length, size, lambda b, h, s, f: parts[b, s, k, h, f], x.dtype)

        return third(0), third(1), third(2)

    def part(start: Expr, columns: Expr) -> Heads:
        size = columns // heads
        return Heads(
            batch, const(heads), length, size, lambda b, h, s, f: x[b, s, start + h * size + f], x.dtype
        )  # fmt: skip

    return part(const(0), sizes[0]), part(sizes[0], sizes[1]), part(total - sizes[2], sizes[2])


def _split_past(d: Definition, past: OpValue) -> tuple[OpValue, OpValue]:
    """Past keys and values of [2, batch, heads, past, size]."""
    expect_rank(d, past, 5, "past")
    expect_size(d, past.shape[0], const(2), "dimension 0 of past")

    def part(which: int) -> OpValue:
        return d.compute(past.shape[1:], lambda *i: past[(const(which), *i)])

    return part(0), part(1)


def _multi_head_inputs(d: Definition, heads: int) -> tuple[Heads, Heads, Heads]:
    query, key, value, bias = d.input(0), d.optional(1), d.optional(2), d.optional(3)
    if query.rank == 5:
        queries, keys, values = _packed_heads_of(d, query, heads, 3, bias)
        return queries, keys, values
    expect_rank(d, query, 3, "query")
    if key is None:
        raise ShapeError("input 1 (key) is missing", where=f"node {d.label}")
    hidden = query.shape[2]
    queries = _biased_heads(d, query, heads, bias, const(0), "query")
    if key.rank == 5:
        keys, values = _packed_heads_of(d, key, heads, 2, None)
        return queries, keys, values
    if value is None:
        raise ShapeError("input 2 (value) is missing", where=f"node {d.label}")
    for x, what in ((key, "key"), (value, "value")):
        expect_dtype(d, x, query.dtype, what)
    if key.rank == 4:
        expect_rank(d, value, 4, "value")
        return queries, heads_first(key), heads_first(value)
    keys = _biased_heads(d, key, heads, bias, hidden, "key")
    return queries, keys, _biased_heads(d, value, heads, bias, hidden * 2, "value")


def _biased_heads(d: Definition, x: OpValue, heads: int, bias: OpValue | None, start: Expr, what: str) -> Heads:
    """Heads of x [batch, length, heads * size] + bias[start:]."""
    expect_rank(d, x, 3, what)
    batch, length, hidden = x.shape
    d.require((hidden % heads).equals(0), f"{what}: expected a multiple of {heads} heads, got {hidden}")
    if bias is not None:
        expect_rank(d, bias, 1, "bias")
        expect_dtype(d, bias, x.dtype, "bias")
        d.require(start + hidden <= bias.shape[0], f"bias: expected {start + hidden} elements or more for the {what}")
        whole, source = bias, x
        # a part of a constant is a constant
        part = d.compute((hidden,), lambda *i: whole[start + i[0]])
        x = d.compute(x.shape, lambda *i: source[i] + part[i[2]])
    return packed_heads(d.view(x, (batch, length, const(heads), hidden // heads)), 0, heads)


def _packed_heads_of(d: Definition, x: OpValue, heads: int, count: int, bias: OpValue | None) -> list[Heads]:
    """The `count` last of queries, keys, values in [batch, length, heads, count, size]."""
    what = "packed query, key and value" if count == 3 else "packed key and value"
    if bias is not None:
        raise d.unsupported(f"bias of a {what} is not supported")
    batch, length, _, _, size = x.shape
    expect_shape(d, x, (batch, length, const(heads), const(count), size), what)

    def reader(part: int) -> HeadReader:
        return lambda b, h, s, k: x[b, s, h, part, k]

    return [Heads(batch, const(heads), length, size, reader(k), x.dtype) for k in range(count)]


class _Masks:
    """The masks of a node as functions of an index of the scores.

    Args:
        d: the node.
        shape: of the scores.
        past: number of past keys.
        dtype: of the queries.
    """

    def __init__(self, d: Definition, shape: tuple[Expr, ...], past: Expr, dtype: DType) -> None:
        self._d, self.shape, self.past = d, shape, past
        self.wide = accumulator_dtype(dtype)
        self._query_dtype = dtype
        self._filter = d.attr_float("mask_filter_value", _DEFAULT_FILTER)

    def padding(self, mask: OpValue, i: tuple[Expr, ...]) -> Expr:
        """The value that a mask of int32 adds to a score: per key, per query and key, or lengths of the batch.

        Raises:
            ShapeError: the mask has none of these shapes.
            UnsupportedError: a mask with four dimensions, or cumulated lengths.
        """
        d, (batch, _, length, total) = self._d, self.shape
        expect_dtype(d, mask, int32, "mask")
        if mask.rank == 1:
            is_kept = self._within_lengths(mask, i)
        elif mask.rank == 2:
            expect_shape(d, mask, (batch, total), "mask")
            is_kept = mask[i[0], i[3]] > 0
        elif mask.rank == 3:
            expect_shape(d, mask, (batch, length, total), "mask")
            is_kept = mask[i[0], i[2], i[3]] > 0
        elif mask.rank == 4:
            raise d.unsupported("a mask with four dimensions is not supported")
        else:
            raise ShapeError(f"mask: expected 1 to 3 dimensions, got {mask.rank}", where=f"node {d.label}")
        return select(is_kept, const(0, self.wide), self._filter)

    def _within_lengths(self, mask: OpValue, i: tuple[Expr, ...]) -> Expr:
        """Whether a key is before the end, and from the start on, that a mask of [batch] or [2 * batch] states."""
        d, batch, size = self._d, self.shape[0], mask.shape[0]
        ends = cast(i[3].dtype, mask[i[0]])
        if size is batch:
            return i[3] < ends
        if size is batch * 2:
            return binary("and", i[3] < ends, i[3] >= cast(i[3].dtype, mask[i[0] + batch]))
        if size is batch * 3 + 2:
            raise d.unsupported("a mask of cumulated lengths is not supported")
        what = f"mask: expected {batch} or {batch * 2} lengths, got {show_shape(mask.shape)}"
        raise ShapeError(what, where=f"node {d.label}")

    def bias(self, x: OpValue, i: tuple[Expr, ...]) -> Expr:
        """The value that an attention bias adds to a score; batch and heads may be 1."""
        expect_rank(self._d, x, 4, "attention_bias")
        expect_dtype(self._d, x, self._query_dtype, "attention_bias")
        sizes = (
            *(const(1) if is_one(n) else m for n, m in zip(x.shape[:2], self.shape, strict=False)),
            *self.shape[2:],
        )
        expect_shape(self._d, x, sizes, "attention_bias")
        return cast(self.wide, broadcast_element(x, i))


def _score_function(
    d: Definition, query: Heads, masks: _Masks, padding: OpValue | None, bias: OpValue | None
) -> ScoreFunction:
    """product * scale + bias + padding, where causal attention allows."""
    factor = score_scale(masks.wide, d.attr_float("scale", 0.0), query.size)
    is_causal = bool(d.attr_int("unidirectional", 0))

    def score(i: tuple[Expr, ...], product: Expr) -> Expr:
        value = product * factor
        value = value if bias is None else value + masks.bias(bias, i)
        value = value if padding is None else value + masks.padding(padding, i)
        allowed = window_condition(i[2], i[3], masks.past, -1, 0 if is_causal else -1)
        return select(allowed, value, float("-inf"))

    return score
