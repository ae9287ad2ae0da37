"""GroupQueryAttention of ONNX Runtime's domain: causal attention with a cache and, optionally, rotary embedding.

Every sequence of the batch has its own length. New keys follow the past ones of their sequence, so a cache may have
room that a sequence does not use.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.dtype import int32, int64
from tilewright.expr.nodes import TRUE, Const, Expr, const
from tilewright.expr.operations import cast, maximum, select
from tilewright.expr.traversal import is_one
from tilewright.ops.attention_core import (
    Heads,
    ScoreFunction,
    SoftmaxForm,
    attend,
    capped,
    heads_first,
    packed_heads,
    score_scale,
    window_condition,
)
from tilewright.ops.checks import expect_dtype, expect_rank, expect_shape
from tilewright.ops.clamp import clamp_index
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, broadcast_element, operator
from tilewright.ops.rotary import rotate, table_rotation

_UNSUPPORTED_INPUTS = (
    (12, "k_scale"), (13, "v_scale"), (14, "q_norm_weight"), (15, "k_norm_weight"), (16, "query_seqlens"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lengths:
    """The lengths of the sequences of a batch.

    Attributes:
        seqlens: input 5: the length of each sequence with its new positions, minus 1.
        new: number of new positions.
        total: length of the longest sequence with its new positions.
        has_past: whether there are past keys.
    """

    seqlens: OpValue
    new: Expr
    total: Expr
    has_past: bool

    def whole(self, batch: Expr) -> Expr:
        """The length of a sequence with its new positions."""
        known = self.seqlens.known_elements
        if known and all(k is known[0] for k in known):
            return cast(int64, known[0]) + 1
        return cast(int64, self.seqlens[batch]) + 1

    def past(self, batch: Expr) -> Expr:
        """The number of past positions of a sequence: none where new positions are padded."""
        return maximum(self.whole(batch) - self.new, 0) if self.has_past else const(0)


@operator(
    "GroupQueryAttention", domain=CONTRIB,
    ignores=("qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon", "rotary_interleaved", "kv_cache_bit_width"),
)  # fmt: skip
def group_query_attention(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """Attention whose groups of queries share a head of keys and values.

    Inputs: query, key, value, past key, past value [batch, heads, past, size], lengths - 1 of the sequences, length of
    the longest one, tables of cosines and sines, position numbers, attention bias, sinks of the heads. Query, key and
    value are [batch, length, heads * size], or one tensor of all, side by side. Results: attention, keys and values of
    the cache. Attention is causal unless `causal` is 0; a query attends to `local_window_size` keys, its own included.

    Raises:
        UnsupportedError: a length of the longest sequence that depends on data, caches that are quantized or windows,
            normalized queries and keys, padded chunks, or the product of queries and keys as a result.
    """
    _refuse_unsupported(d)
    query, key, value = _inputs(d)
    expect_shape(d, d.input(5), (query.shape[0],), "seqlens_k")
    expect_dtype(d, d.input(5), int32, "seqlens_k")
    lengths = _Lengths(d.input(5), query.shape[1], _total_length(d), d.optional(3) is not None)
    if not lengths.has_past:
        what = f"total_sequence_length: expected {lengths.new} without a past, got {lengths.total}"
        d.require(lengths.total.equals(lengths.new), what)
    if d.attr_int("do_rotary", 0):
        query, key = (_with_rotation(d, x, lengths) for x in (query, key))
    keys, values = _heads_of(key), _heads_of(value)
    caches: list[OpValue] = []
    if lengths.has_past or d.num_outputs > 1:
        caches = [_append(d, x, p, lengths, w) for x, p, w in ((keys, 3, "past_key"), (values, 4, "past_value"))]
    if lengths.has_past:
        keys, values = map(heads_first, caches)
    form = SoftmaxForm(accumulator_dtype(query.dtype), sink=_sink(d, query))
    queries = _heads_of(query)
    y = attend(d, queries, keys, values, _score_function(d, queries, keys, lengths), form, merged=True)
    return (y, *caches)[: d.num_outputs] if d.num_outputs > 1 else y


def _refuse_unsupported(d: Definition) -> None:
    for position, name in _UNSUPPORTED_INPUTS:
        if d.optional(position) is not None:
            raise d.unsupported(f"input {name} is not supported")
    for name in ("sliding_window_cache", "qk_output"):
        if d.attr_int(name, 0):
            raise d.unsupported(f"{name} is not supported")
    for name in ("k_quant_type", "v_quant_type"):
        if d.attr_str(name, "NONE") != "NONE":
            raise d.unsupported(f"{name} {d.attr_str(name, 'NONE')} is not supported")
    if d.num_outputs > 3:
        raise d.unsupported("output output_qk is not supported")


def _total_length(d: Definition) -> Expr:
    """The length of the longest sequence.

    Raises:
        ShapeError: it is no scalar.
        UnsupportedError: it depends on data.
    """
    known = d.known_elements(6)
    if len(known) != 1:
        what = f"total_sequence_length: expected one element, got {len(known)}"
        raise ShapeError(what, where=f"node {d.label}")
    return cast(int64, known[0])


def _inputs(d: Definition) -> tuple[OpValue, OpValue, OpValue]:
    """Query, key and value as [batch, length, heads, size]."""
    heads, kv_heads = d.attr_int("num_heads", 0), d.attr_int("kv_num_heads", 0)
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        what = f"num_heads: expected a multiple of kv_num_heads, got {heads} and {kv_heads}"
        raise ShapeError(what, where=f"node {d.label}")
    query, key, value = d.input(0), d.optional(1), d.optional(2)
    if key is None and value is None:
        packed = _split(d, query, heads + 2 * kv_heads, "query")
        parts = ((0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads))
        q, k, v = (_head_range(d, packed, first, count) for first, count in parts)
        return q, k, v
    if key is None or value is None:
        raise ShapeError("expected key and value together, got one", where=f"node {d.label}")
    for x, what in ((key, "key"), (value, "value")):
        expect_dtype(d, x, query.dtype, what)
        expect_shape(d, x, (*query.shape[:2], x.shape[-1]), what)
    return _split(d, query, heads, "query"), _split(d, key, kv_heads, "key"), _split(d, value, kv_heads, "value")


def _split(d: Definition, x: OpValue, heads: int, what: str) -> OpValue:
    expect_rank(d, x, 3, what)
    batch, length, hidden = x.shape
    d.require((hidden % heads).equals(0), f"{what}: expected a multiple of {heads} heads, got {hidden}")
    return d.view(x, (batch, length, const(heads), hidden // heads))


def _head_range(d: Definition, x: OpValue, first: int, count: int) -> OpValue:
    """Heads `first` to `first + count`."""
    batch, length, _, size = x.shape

    def element(*i: Expr) -> Expr:
        return x[i[0], i[1], i[2] + first, i[3]]

    return d.compute((batch, length, const(count), size), element)


def _heads_of(x: OpValue) -> Heads:
    return packed_heads(x, 0, x.shape[2])


def _with_rotation(d: Definition, x: OpValue, lengths: _Lengths) -> OpValue:
    """Heads with rotary embedding: at given positions, or at those after the past."""
    ids = d.optional(9)
    if ids is not None:
        expect_shape(d, ids, x.shape[:2], "position_ids")

    def position(batch: Expr, sequence: Expr) -> Expr:
        return lengths.past(batch) + sequence if ids is None else ids[batch, sequence]

    table = d.input(7)
    expect_rank(d, table, 2, "cos_cache")
    if not isinstance(table.shape[1], Const):
        raise d.unsupported("the size of the tables of angles is symbolic")
    rotary_dim, interleaved = 2 * int(table.shape[1].value), bool(d.attr_int("rotary_interleaved", 0))
    return rotate(d, x, table_rotation(d, x, 2, rotary_dim, interleaved, (7, 8), position))


def _append(d: Definition, x: Heads, position: int, lengths: _Lengths, what: str) -> OpValue:
    """The cache [batch, heads, positions, size]: past elements, then new ones; 0 in the room that is left."""
    past = d.optional(position)
    if past is None:
        if lengths.has_past:
            raise ShapeError(f"{what} is missing", where=f"node {d.label}")
        return d.compute((x.batch, x.heads, x.length, x.size), x.read)
    expect_dtype(d, past, x.dtype, what)
    expect_rank(d, past, 4, what)
    expect_shape(d, past, (x.batch, x.heads, past.shape[2], x.size), what)
    room = past.shape[2]

    def body(b: Expr, h: Expr, s: Expr, k: Expr) -> Expr:
        start = lengths.past(b)
        new = x.read(b, h, clamp_index(s - start, x.length), k)
        zero = const(0, x.dtype)
        appended = select(s < start + x.length, new, zero)
        old = select(s < room, past[b, h, clamp_index(s, room), k], zero)
        return select(s < start, old, appended)

    return d.compute((x.batch, x.heads, maximum(room, lengths.total), x.size), body)


def _sink(d: Definition, query: OpValue) -> Callable[[Expr], Expr] | None:
    """The score that takes part in the sums of each head without a value."""
    sink, wide = d.optional(11), accumulator_dtype(query.dtype)
    if sink is not None:
        expect_shape(d, sink, (query.shape[2],), "head_sink")
        return lambda head: cast(wide, sink[head])
    return (lambda _: const(0, wide)) if d.attr_int("smooth_softmax", 0) == 1 else None


def _score_function(d: Definition, query: Heads, keys: Heads, lengths: _Lengths) -> ScoreFunction:
    """Scale, soft cap and bias, where the lengths, causality and the window allow."""
    wide = accumulator_dtype(query.dtype)
    factor = score_scale(wide, d.attr_float("scale", 0.0), query.size)
    cap, window, is_causal = d.attr_float("softcap", 0.0), d.attr_int("local_window_size", -1), d.attr_int("causal", 1)
    if window != -1 and (window < 1 or not is_causal):
        what = f"local_window_size: expected -1, or 1 or more with causal=1, got {window}"
        raise ShapeError(what, where=f"node {d.label}")
    left = window - 1 if window > 0 else -1
    bias = _attention_bias(d, query, lengths)

    def score(i: tuple[Expr, ...], product: Expr) -> Expr:
        value = capped(product * factor, cap)
        past = lengths.past(i[0])
        if bias is not None:
            column = i[3] if can_prove(keys.length <= lengths.total) else clamp_index(i[3], lengths.total)
            value = value + cast(wide, broadcast_element(bias, (*i[:3], column)))
        if is_causal:
            allowed = window_condition(i[2], i[3], past, left, 0)
        else:
            whole = lengths.whole(i[0])
            allowed = TRUE if isinstance(whole, Const) and can_prove(keys.length <= whole) else i[3] < whole
        return select(allowed, value, float("-inf"))

    return score


def _attention_bias(d: Definition, query: Heads, lengths: _Lengths) -> OpValue | None:
    """Input 10, [batch or 1, heads or 1, new, total]."""
    bias = d.optional(10)
    if bias is not None:
        expect_rank(d, bias, 4, "attention_bias")
        outer = [b if is_one(b) else n for b, n in zip(bias.shape, (query.batch, query.heads), strict=False)]
        expect_shape(d, bias, (*outer, query.length, lengths.total), "attention_bias")
    return bias
