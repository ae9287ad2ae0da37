"""Scaled dot-product attention, by composition: two contractions with the softmax between them.

Three-dimensional operands are read as they lie ([batch, sequence, heads*size]); nothing is transposed beforehand.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, boolean
from tilewright.expr.nodes import TRUE, Const, Expr, const
from tilewright.expr.operations import binary, cast, conjunction, select, unary
from tilewright.ops.cast import ONNX_DTYPES
from tilewright.ops.contraction import (
    accumulator_dtype,
    expect_broadcastable,
    expect_dtype,
    expect_rank,
    expect_size,
    sum_over,
    widening_product,
)
from tilewright.ops.definition import Definition, Operand, broadcast_element, operator
from tilewright.ops.window import MAX_STEP

HeadReader = Callable[[Expr, Expr, Expr, Expr], Expr]
"""The element at (batch, head, position, feature)."""


@dataclass(frozen=True, slots=True)
class _Heads:
    """A query, key or value: its four sizes, and how to read it."""

    batch: Expr
    heads: Expr
    length: Expr
    size: Expr
    read: HeadReader
    dtype: DType


def _from_rank4(x: Operand) -> _Heads:
    batch, heads, length, size = x.shape
    return _Heads(batch, heads, length, size, lambda b, h, s, k: x[b, h, s, k], x.dtype)


def _heads(d: Definition, x: Operand, count: int, what: str) -> _Heads:
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
    d: Definition, x: _Heads, past: Operand | None, is_output: bool, what: str
) -> tuple[_Heads, Operand | None]:
    """Past and new elements one after the other; a stage only where there is a past or the result is an output."""
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

    whole = d.compute((x.batch, x.heads, start + x.length, x.size), body, x.dtype)
    return _from_rank4(whole), whole


@operator("Attention", ignores=("qk_matmul_output_mode",))
def attention(d: Definition) -> Operand | tuple[Operand, ...]:
    """softmax(scale * Q K^T, capped and masked) V; rows in which everything is masked give 0

    Raises:
        UnsupportedError: the node wants the product of Q and K, to which `qk_matmul_output_mode` belongs; it says how
            long the keys are; the softmax is to have less precision than the inputs.
    """
    if d.num_outputs > 3:
        raise d.unsupported("output qk_matmul_output is not expressed")
    if d.optional(6) is not None:
        raise d.unsupported("input nonpad_kv_seqlen is not expressed")
    flat = d.input(0).rank == 3
    query = _heads(d, d.input(0), d.attr_int("q_num_heads", 0), "Q")
    key = _heads(d, d.input(1), d.attr_int("kv_num_heads", 0), "K")
    value = _heads(d, d.input(2), d.attr_int("kv_num_heads", 0), "V")
    expect_size(d, key.size, query.size, "head size of K")
    expect_size(d, value.length, key.length, "positions of V")
    for x, what in ((key, "K"), (value, "V")):
        expect_size(d, x.batch, query.batch, f"batch of {what}")
    past = key.length
    key, present_key = _append_to_past(d, key, d.optional(4), d.num_outputs > 1, "past_key")
    value, present_value = _append_to_past(d, value, d.optional(5), d.num_outputs > 2, "past_value")
    y = _attend(d, query, key, value, key.length - past)
    if flat:
        y = d.view(y, (query.batch, query.length, query.heads * value.size))
    results = [r for r in (y, present_key, present_value) if r is not None]
    return tuple(results) if d.num_outputs > 1 else y


def _attend(d: Definition, query: _Heads, key: _Heads, value: _Heads, past: Expr) -> Operand:
    wide = accumulator_dtype(query.dtype)
    d.require((query.heads % key.heads).equals(0), f"heads of Q: expected a multiple of {key.heads}, got {query.heads}")
    group = query.heads // key.heads
    rows = (query.batch, query.heads, query.length)
    scores = sum_over(
        d, (*rows, key.length), (query.size,),
        lambda i, r: widening_product(query.read(i[0], i[1], i[2], r[0]), key.read(i[0], i[1] // group, i[3], r[0]),
        wide),
    )  # fmt: skip
    wide = _softmax_dtype(d, query.dtype)
    scores = _scale_and_mask(d, scores, query.size, past, wide)

    def highest(*i: Expr) -> Expr:
        # A row of nothing but -inf has no maximum to subtract; 0 makes all its exponentials 0.
        return select(peak[i].equals(float("-inf")), const(0, wide), peak[i])

    peak = d.reduce(rows, (key.length,), lambda i, r: scores[(*i, *r)], Reducer.MAX)
    top = d.compute(rows, highest)
    powers = d.compute(scores.shape, lambda *i: unary("exp", scores[i] - top[i[:3]]))
    total = d.reduce(rows, (key.length,), lambda i, r: powers[(*i, *r)], Reducer.SUM)
    flat = d.input(0).rank == 3
    shape = (rows[0], rows[2], rows[1], value.size) if flat else (*rows, value.size)

    def row(i: tuple[Expr, ...]) -> tuple[Expr, Expr, Expr]:
        return (i[0], i[2], i[1]) if flat else (i[0], i[1], i[2])

    mixed = sum_over(
        d, shape, (key.length,),
        lambda i, r: widening_product(powers[(*row(i), r[0])], value.read(i[0], row(i)[1] // group, r[0], i[3]), wide),
    )  # fmt: skip
    return d.compute(
        shape,
        lambda *i: cast(
            query.dtype, select(total[row(i)].equals(0.0), const(0, wide), mixed[i] / total[row(i)])
        ),
    )  # fmt: skip


def _softmax_dtype(d: Definition, dtype: DType) -> DType:
    """The type of the softmax of inputs of `dtype`: never less precise than `softmax_precision` asks.

    Raises:
        UnsupportedError: it asks for a type that does not hold all numbers of `dtype`, and so for a rounding.
    """
    number = d.attr_int("softmax_precision", 0)
    asked = ONNX_DTYPES.get(number, dtype) if number else dtype
    if not asked.is_float or (asked != dtype and asked.bits <= dtype.bits):
        raise d.unsupported(f"softmax_precision {number} is less precise than {dtype}")
    return accumulator_dtype(asked)


def _window_sizes(d: Definition) -> tuple[int, int]:
    """How many keys before and behind its own position a query sees; -1 for all, which a number beyond all sizes is.

    Raises:
        ShapeError: a number is below -1.
    """
    left, right = d.attr_int("left_window_size", -1), d.attr_int("right_window_size", -1)
    for name, size in (("left_window_size", left), ("right_window_size", right)):
        if size < -1:
            raise ShapeError(f"{name}: expected -1 or more, got {size}", where=f"node {d.label}")
    return (left if left < MAX_STEP else -1), (right if right < MAX_STEP else -1)


def _scale_and_mask(d: Definition, scores: Operand, size: Expr, past: Expr, dtype: DType) -> Operand:
    """scale, soft cap, mask, windows and causal frontier, in this order, as one element-wise stage of type `dtype`."""
    wide, lowest = scores.dtype, const(float("-inf"), scores.dtype)
    left, right = _window_sizes(d)
    scale = d.attr_float("scale", 0.0)
    factor = const(scale, wide) if scale else 1.0 / unary("sqrt", cast(wide, size))
    cap = d.attr_float("softcap", 0.0)
    mask, causal = d.optional(3), bool(d.attr_int("is_causal", 0))
    short: Expr | None = None
    if mask is not None:
        last, total = mask.shape[-1], scores.shape[-1]
        if isinstance(last, Const) and isinstance(total, Const) and 1 < last.value < total.value and d.opset >= 24:
            short = last
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
        if short is not None:
            allowed = binary("and", allowed, i[3] < short)
        if mask is not None and mask.dtype == boolean:
            allowed = (
                binary("and", allowed, broadcast_element(mask, i))
                if short is None
                else select(allowed, broadcast_element(mask, i), False)
            )
        elif mask is not None:
            value = value + cast(wide, broadcast_element(mask, i))
        return cast(dtype, select(allowed, value, lowest))

    return d.compute(scores.shape, body)
