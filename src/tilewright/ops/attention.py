"""Attention of the standard operators."""

from tilewright.errors import ShapeError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.dtype import DType, boolean, int64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import binary, cast, select
from tilewright.ops.attention_core import (
    Heads,
    ScoreFunction,
    SoftmaxForm,
    append_to_past,
    attend,
    capped,
    heads_first,
    query_key_products,
    row_weights,
    score_scale,
    split_heads,
    window_condition,
)
from tilewright.ops.cast import ONNX_DTYPES
from tilewright.ops.checks import expect_broadcastable, expect_shape
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, broadcast_element, operator
from tilewright.ops.window import MAX_STEP


@operator("Attention", ignores=("qk_matmul_output_mode",))
def attention(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """softmax(scale * Q K^T, capped and masked) V; completely masked rows give 0.

    Raises:
        ShapeError: operands do not fit, or there are both a past and the number of keys that count.
        UnsupportedError: `softmax_precision` is less precise than the inputs.
    """
    query = _heads(d, d.input(0), d.attr_int("q_num_heads", 0), "Q")
    key = _heads(d, d.input(1), d.attr_int("kv_num_heads", 0), "K")
    value = _heads(d, d.input(2), d.attr_int("kv_num_heads", 0), "V")
    new_length = key.length
    key, present_key = append_to_past(d, key, d.optional(4), d.num_outputs > 1, "past_key")
    value, present_value = append_to_past(d, value, d.optional(5), d.num_outputs > 2, "past_value")
    valid = _valid_keys(d, query)
    past = key.length - new_length
    dtype = _softmax_dtype(d, query.dtype)
    form = SoftmaxForm(dtype, valid is not None or _may_mask_rows(d, query.length, key.length, past))
    score = _score_function(d, query, key.length, past, valid, dtype)
    y = attend(d, query, key, value, score, form, merged=d.input(0).rank == 3)
    scores = _scores_output(d, query, key, score, form) if d.num_outputs > 3 else None
    results = [r for r in (y, present_key, present_value, scores) if r is not None]
    return tuple(results) if d.num_outputs > 1 else y


def _valid_keys(d: Definition, query: Heads) -> OpValue | None:
    """The number of keys of each batch that count, the last of which are those of the queries; None without."""
    valid = d.optional(6)
    if valid is None:
        return None
    if d.optional(4) is not None or d.optional(5) is not None:
        raise ShapeError("nonpad_kv_seqlen: expected none beside a past", where=f"node {d.label}")
    expect_shape(d, valid, (query.batch,), "nonpad_kv_seqlen")
    return valid


def _scores_output(d: Definition, query: Heads, key: Heads, score: ScoreFunction, form: SoftmaxForm) -> OpValue:
    """Output qk_matmul_output: products, scores or weights, computed again beside the attention, which stays whole.

    Raises:
        ShapeError: the mode is none.
    """
    mode = d.attr_int("qk_matmul_output_mode", 0)
    products = query_key_products(d, query, key)
    if mode not in range(4):
        raise ShapeError(f"qk_matmul_output_mode: expected 0 to 3, got {mode}", where=f"node {d.label}")
    if mode == 3:
        masked = d.compute(products.shape, lambda *i: score(i, products[i]), form.dtype)
        powers, inverse = row_weights(d, masked, form)
        return d.compute(products.shape, lambda *i: cast(query.dtype, powers[i] * inverse[i[:3]]))
    factor = score_scale(products.dtype, d.attr_float("scale", 0.0), query.size)
    cap = d.attr_float("softcap", 0.0) if mode == 1 else 0.0

    def body(*i: Expr) -> Expr:
        value = score(i, products[i]) if mode == 2 else capped(products[i] * factor, cap)
        return cast(query.dtype, value)

    return d.compute(products.shape, body)


def _heads(d: Definition, x: OpValue, count: int, what: str) -> Heads:
    if x.rank == 4:
        return heads_first(x)
    if x.rank == 3 and count < 1:
        raise ShapeError("3-dimensional inputs need q_num_heads and kv_num_heads", where=f"node {d.label}")
    return split_heads(d, x, count, what)


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
    left, right = (left if left < MAX_STEP else -1), (right if right < MAX_STEP else -1)
    return left, (0 if d.attr_int("is_causal", 0) else right)


def _may_mask_rows(d: Definition, queries: Expr, keys: Expr, past: Expr) -> bool:
    """Whether -inf may be in all places of a row: masks may hold anything that is not known to be finite, and a window
    may lie behind the last key (its end is never before the first)."""
    mask, (left, _) = d.optional(3), _window_sizes(d)
    if left >= 0 and not can_prove(queries + past <= keys + left):
        return True
    return mask is not None and (mask.dtype == boolean or not d.is_finite(mask))


def _mask_length(d: Definition, mask: OpValue, scores: tuple[Expr, ...]) -> Expr | None:
    """The number of keys that a short mask covers, None where it covers all."""
    last, total = mask.shape[-1], scores[-1]
    if isinstance(last, Const) and isinstance(total, Const) and 1 < last.value < total.value and d.opset >= 24:
        expect_broadcastable(d, mask, (*scores[:-1], last), "attn_mask")
        return last
    expect_broadcastable(d, mask, scores, "attn_mask")
    return None


def _score_function(
    d: Definition, query: Heads, keys: Expr, past: Expr, valid: OpValue | None, dtype: DType
) -> ScoreFunction:
    """Scale, soft cap, mask, windows and causal mask, in this order, as one function of type `dtype`.

    The first query follows `past` keys, or is so far before the last of the keys that are `valid`.
    """
    wide = accumulator_dtype(query.dtype)
    left, right = _window_sizes(d)
    factor = score_scale(wide, d.attr_float("scale", 0.0), query.size)
    cap, mask = d.attr_float("softcap", 0.0), d.optional(3)
    shape = (query.batch, query.heads, query.length, keys)
    mask_length = None if mask is None else _mask_length(d, mask, shape)

    def score(i: tuple[Expr, ...], product: Expr) -> Expr:
        value = capped(product * factor, cap)
        count = None if valid is None else cast(int64, valid[i[0]])
        before = past if count is None else count - query.length
        allowed = window_condition(i[2], i[3], before, left, right)
        if count is not None:
            allowed = binary("and", allowed, i[3] < count)
        if mask_length is not None:
            allowed = binary("and", allowed, i[3] < mask_length)
        if mask is not None and mask.dtype == boolean:
            allowed = (
                binary("and", allowed, broadcast_element(mask, i))
                if mask_length is None
                else select(allowed, broadcast_element(mask, i), False)
            )
        elif mask is not None:
            value = value + cast(wide, broadcast_element(mask, i))
        return cast(dtype, select(allowed, value, const(float("-inf"), wide)))

    return score
