"""Scaled dot-product attention as a composition: two contractions with a softmax between them.

Three-dimensional operands are read in place ([batch, sequence, heads*size]), without a transposition.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, boolean
from tilewright.expr.nodes import TRUE, Const, Expr, const
from tilewright.expr.operations import binary, cast, conjunction, select, unary
from tilewright.ops.cast import ONNX_DTYPES
from tilewright.ops.checks import expect_broadcastable, expect_dtype, expect_rank, expect_size
from tilewright.ops.contraction import accumulator_dtype, sum_over, widening_product
from tilewright.ops.definition import Definition, OpValue, broadcast_element, operator
from tilewright.ops.window import MAX_STEP

HeadReader = Callable[[Expr, Expr, Expr, Expr], Expr]
"""The element at (batch, head, position, feature)."""


@dataclass(frozen=True, slots=True)
class _Heads:
    """A query, key or value: its sizes and a function that loads its elements."""

    batch: Expr
    heads: Expr
    length: Expr
    size: Expr
    read: HeadReader
    dtype: DType


def _from_rank4(x: OpValue) -> _Heads:
    batch, heads, length, size = x.shape
    return _Heads(batch, heads, length, size, lambda b, h, s, k: x[b, h, s, k], x.dtype)


def _heads(d: Definition, x: OpValue, count: int, what: str) -> _Heads:
    if x.rank == 4:
        return _from_rank4(x)
    expect_rank(d, x, 3, what)
    if count < 1:
        raise ShapeError("3-dimensional inputs need q_num_heads and kv_num_heads", where=f"node {d.label}")
    hidden = x.shape[2]
    d.require((hidden % count).equals(0), f"{what}: expected a multiple of {count} heads, got {hidden}")
    size = hidden // count
    return _Heads(x.shape[0], const(count), x.shape[1], size, lambda b, h, s, k: x[b, s, h * size + k], x.dtype)


def _append_to_past(
    d: Definition, x: _Heads, past: OpValue | None, is_output: bool, what: str
) -> tuple[_Heads, OpValue | None]:
    """The KV cache: past elements followed by new ones; a stage only with a past or where the result is an output."""
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
    return _from_rank4(result), result


@operator("Attention", ignores=("qk_matmul_output_mode",))
def attention(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """softmax(scale * Q K^T, capped and masked) V; completely masked rows give 0

    Raises:
        UnsupportedError: output qk_matmul_output or input nonpad_kv_seqlen is used, or `softmax_precision` is less
            precise than the inputs.
    """
    if d.num_outputs > 3:
        raise d.unsupported("output qk_matmul_output is not supported")
    if d.optional(6) is not None:
        raise d.unsupported("input nonpad_kv_seqlen is not supported")
    is_3d = d.input(0).rank == 3
    query = _heads(d, d.input(0), d.attr_int("q_num_heads", 0), "Q")
    key = _heads(d, d.input(1), d.attr_int("kv_num_heads", 0), "K")
    value = _heads(d, d.input(2), d.attr_int("kv_num_heads", 0), "V")
    expect_size(d, key.size, query.size, "head size of K")
    expect_size(d, value.length, key.length, "positions of V")
    for x, what in ((key, "K"), (value, "V")):
        expect_size(d, x.batch, query.batch, f"batch of {what}")
    new_length = key.length
    key, present_key = _append_to_past(d, key, d.optional(4), d.num_outputs > 1, "past_key")
    value, present_value = _append_to_past(d, value, d.optional(5), d.num_outputs > 2, "past_value")
    y = _attend(d, query, key, value, key.length - new_length)
    if is_3d:
        y = d.view(y, (query.batch, query.length, query.heads * value.size))
    results = [r for r in (y, present_key, present_value) if r is not None]
    return tuple(results) if d.num_outputs > 1 else y


def _attend(d: Definition, query: _Heads, key: _Heads, value: _Heads, past: Expr) -> OpValue:
    wide = accumulator_dtype(query.dtype)
    d.require((query.heads % key.heads).equals(0), f"heads of Q: expected a multiple of {key.heads}, got {query.heads}")
    group = query.heads // key.heads
    outer = (query.batch, query.heads, query.length)
    scores = sum_over(
        d, (*outer, key.length), (query.size,),
        lambda i, r: widening_product(query.read(i[0], i[1], i[2], r[0]), key.read(i[0], i[1] // group, i[3], r[0]),
        wide),
    )  # fmt: skip
    wide = _softmax_dtype(d, query.dtype)
    scores = _scale_and_mask(d, scores, query.size, past, wide)

    def finite_max(*i: Expr) -> Expr:
        # The maximum of a row of -inf can't be subtracted; with 0 instead, all its exponentials are 0.
        return select(row_max[i].equals(float("-inf")), const(0, wide), row_max[i])

    row_max = d.reduce(outer, (key.length,), lambda i, r: scores[(*i, *r)], Reducer.MAX)
    shift = d.compute(outer, finite_max)
    powers = d.compute(scores.shape, lambda *i: unary("exp", scores[i] - shift[i[:3]]))
    total = d.reduce(outer, (key.length,), lambda i, r: powers[(*i, *r)], Reducer.SUM)
    is_3d = d.input(0).rank == 3
    shape = (outer[0], outer[2], outer[1], value.size) if is_3d else (*outer, value.size)

    def row(i: tuple[Expr, ...]) -> tuple[Expr, Expr, Expr]:
        return (i[0], i[2], i[1]) if is_3d else (i[0], i[1], i[2])

    weighted = sum_over(
        d, shape, (key.length,),
        lambda i, r: widening_product(powers[(*row(i), r[0])], value.read(i[0], row(i)[1] // group, r[0], i[3]), wide),
    )  # fmt: skip
    return d.compute(
        shape,
        lambda *i: cast(
            query.dtype, select(total[row(i)].equals(0.0), const(0, wide), weighted[i] / total[row(i)])
        ),
    )  # fmt: skip


def _softmax_dtype(d: Definition, dtype: DType) -> DType:
    """The type of the softmax of inputs of `dtype`: at least as precise as `softmax_precision`.

    Raises:
        UnsupportedError: `softmax_precision` can't represent all values of `dtype`, so inputs would be rounded.
    """
    number = d.attr_int("softmax_precision", 0)
    requested = ONNX_DTYPES.get(number, dtype) if number else dtype
    if not requested.is_float or (requested != dtype and requested.bits <= dtype.bits):
        raise d.unsupported(f"softmax_precision {number} is less precise than {dtype}")
    return accumulator_dtype(requested)


def _window_sizes(d: Definition) -> tuple[int, int]:
    """Numbers of keys before and after its own position that a query attends to; -1 for all, also for huge numbers.

    Raises:
        ShapeError: a number is below -1.
    """
    left, right = d.attr_int("left_window_size", -1), d.attr_int("right_window_size", -1)
    for name, size in (("left_window_size", left), ("right_window_size", right)):
        if size < -1:
            raise ShapeError(f"{name}: expected -1 or more, got {size}", where=f"node {d.label}")
    return (left if left < MAX_STEP else -1), (right if right < MAX_STEP else -1)


def _scale_and_mask(d: Definition, scores: OpValue, size: Expr, past: Expr, dtype: DType) -> OpValue:
    """Scale, soft cap, mask, windows and causal mask, in this order, as one element-wise stage of type `dtype`."""
    score_dtype, masked_value = scores.dtype, const(float("-inf"), scores.dtype)
    left, right = _window_sizes(d)
    scale = d.attr_float("scale", 0.0)
    factor = const(scale, score_dtype) if scale else 1.0 / unary("sqrt", cast(score_dtype, size))
    cap = d.attr_float("softcap", 0.0)
    mask, causal = d.optional(3), bool(d.attr_int("is_causal", 0))
    mask_length: Expr | None = None
    if mask is not None:
        last, total = mask.shape[-1], scores.shape[-1]
        if isinstance(last, Const) and isinstance(total, Const) and 1 < last.value < total.value and d.opset >= 24:
            mask_length = last
            expect_broadcastable(d, mask, (*scores.shape[:-1], last), "attn_mask")
        else:
            expect_broadcastable(d, mask, scores.shape, "attn_mask")

    def body(*i: Expr) -> Expr:
        value = scores[i] * factor
        if cap:
            value = unary("tanh", value / cap) * cap
        allowed: Expr = TRUE
        if causal:
            allowed = i[3] <= i[2] + past
        if left >= 0:
            allowed = conjunction(allowed, i[3] >= i[2] + past - left)
        if right >= 0:
            allowed = conjunction(allowed, i[3] <= i[2] + past + right)
        if mask_length is not None:
            allowed = binary("and", allowed, i[3] < mask_length)
        if mask is not None and mask.dtype == boolean:
            allowed = (
                binary("and", allowed, broadcast_element(mask, i))
                if mask_length is None
                else select(allowed, broadcast_element(mask, i), False)
            )
        elif mask is not None:
            value = value + cast(score_dtype, broadcast_element(mask, i))
        return cast(dtype, select(allowed, value, masked_value))

    return d.compute(scores.shape, body)
