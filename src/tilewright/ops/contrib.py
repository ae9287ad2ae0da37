"""Operators of the domain com.microsoft that are compositions of standard ones."""

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import int32
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, select, unary
from tilewright.ops.activation import gelu_erf, gelu_tanh
from tilewright.ops.checks import expect_rank, expect_shape
from tilewright.ops.clamp import clamp_index
from tilewright.ops.contraction import accumulator_dtype, batched_matmul, epilogue
from tilewright.ops.definition import Definition, OpValue, is_one, operator
from tilewright.ops.elementwise import elementwise, float_function, two_inputs_of_one_type
from tilewright.ops.gather import resolve_index
from tilewright.ops.layernorm import inverse_stddev, normalize
from tilewright.ops.reduce import keep_dims, mean_over
from tilewright.ops.transpose import permute

_DOMAIN = "com.microsoft"


@operator("Gelu", domain=_DOMAIN)
def gelu(d: Definition) -> OpValue:
    """Gelu with the error function."""
    return float_function(d, gelu_erf)


@operator("QuickGelu", domain=_DOMAIN)
def quick_gelu(d: Definition) -> OpValue:
    """x * sigmoid(alpha * x)"""
    alpha = d.attr_float("alpha", 1.702)
    return float_function(d, lambda x: x * unary("sigmoid", x * alpha))


@operator("BiasGelu", "FastGelu", domain=_DOMAIN)
def bias_gelu(d: Definition) -> OpValue:
    """Gelu of x + bias: with the error function, or (FastGelu, whose bias is optional) with tanh."""
    function = gelu_erf if d.op_type == "BiasGelu" else gelu_tanh
    if d.op_type == "FastGelu" and d.optional(1) is None:
        return float_function(d, function)
    x, bias = two_inputs_of_one_type(d)
    wide = accumulator_dtype(x.dtype)
    return elementwise(d, lambda a, b: cast(x.dtype, function(cast(wide, a) + cast(wide, b))), x, bias)


@operator("FusedMatMul", domain=_DOMAIN)
def fused_matmul(d: Definition) -> OpValue:
    """alpha * A' B'; matrices are transposed where `transA`, `transB` are set.

    With `transBatchA`, `transBatchB` the first dimension moves behind the other batch dimensions, to the rows.
    """
    a, b = two_inputs_of_one_type(d)
    wide = accumulator_dtype(a.dtype)
    left, right = (
        _matrix_operand(d, x, bool(d.attr_int(f"trans{name}", 0)), bool(d.attr_int(f"transBatch{name}", 0)))
        for x, name in ((a, "A"), (b, "B"))
    )
    return epilogue(d, batched_matmul(d, left, right, wide), a.dtype, scale=d.attr_float("alpha", 1.0))


def _matrix_operand(d: Definition, x: OpValue, transposed: bool, batch_transposed: bool) -> OpValue:
    """An operand of FusedMatMul with its dimensions in the order batch, rows, columns; vectors stay as they are."""
    if x.rank < 2:
        return x
    order = list(range(x.rank))
    if batch_transposed and x.rank > 2:
        order = [*order[1:-1], 0, order[-1]]
    if transposed:
        order = [*order[:-2], order[-1], order[-2]]
    return permute(d, x, order)


@operator("SkipSimplifiedLayerNormalization", domain=_DOMAIN)
def skip_simplified_layer_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """RMSNormalization of x + skip (+ bias) over the last dimension: inputs x, skip, gamma, bias; optional results: an
    unused one, 1 / root mean square, and the sum."""
    total = _sum_with_skip(d, d.optional(3))
    axes = (total.rank - 1,)
    inverse = inverse_stddev(d, total, None, axes, d.attr_float("epsilon", 1e-12))
    result = normalize(d, total, None, inverse, axes, d.input(2), None)
    if d.num_outputs == 1:
        return result
    statistics = keep_dims(d, inverse, total, axes)
    return (result, statistics, statistics, total)[: d.num_outputs]


@operator("EmbedLayerNormalization", domain=_DOMAIN, ignores=("mask_index_type",))
def embed_layer_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """LayerNormalization of the sum of word, position and segment embeddings.

    Inputs: word numbers [batch, length], segment numbers, tables of words, positions and segments, gamma, beta, mask
    [batch, length], position numbers [batch or 1, length]. Optional results: the number of ones in each row of the
    mask (0 without one), and the sum.
    """
    words, word_table, position_table = d.input(0), d.input(2), d.input(3)
    segments, segment_table, positions = d.optional(1), d.optional(4), d.optional(8)
    expect_rank(d, words, 2, "input_ids")
    for table, what in ((word_table, "word_embedding"), (position_table, "position_embedding")):
        expect_rank(d, table, 2, what)
    if (segments is None) != (segment_table is None):
        raise ShapeError("expected segment_ids and segment_embedding together, got one", where=f"node {d.label}")
    batch, length = words.shape
    hidden = word_table.shape[1]
    wide = accumulator_dtype(word_table.dtype)

    def row(table: OpValue, numbers: OpValue | None, i: tuple[Expr, ...], what: str) -> Expr:
        if numbers is None:
            return cast(wide, table[clamp_index(i[1], table.shape[0]), i[2]])
        at = tuple(const(0) if is_one(n) else k for k, n in zip(i[:2], numbers.shape, strict=True))
        return cast(wide, table[resolve_index(d, numbers, at, table.shape[0], what), i[2]])

    def embedding(*i: Expr) -> Expr:
        value = row(word_table, words, i, "word_embedding") + row(position_table, positions, i, "position_embedding")
        if segments is not None and segment_table is not None:
            value = value + row(segment_table, segments, i, "segment_embedding")
        return cast(word_table.dtype, value)

    total = d.compute((batch, length, hidden), embedding)
    mean = mean_over(d, total, (2,), wide)
    inverse = inverse_stddev(d, total, mean, (2,), d.attr_float("epsilon", 1e-12))
    result = normalize(d, total, mean, inverse, (2,), d.input(5), d.input(6))
    return (result, *_embedding_extras(d, total))[: d.num_outputs] if d.num_outputs > 1 else result


def _embedding_extras(d: Definition, total: OpValue) -> tuple[OpValue, OpValue]:
    """The lengths by the mask, and the sum of the embeddings."""
    mask, (batch, length, _) = d.optional(7), total.shape
    if mask is None:
        return d.compute((batch,), lambda *_: const(0, int32), int32), total
    expect_shape(d, mask, (batch, length), "mask")

    def is_one_at(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        return select(mask[i[0], r[0]].equals(1), const(1, int32), 0)

    return d.reduce((batch,), (length,), is_one_at, Reducer.SUM), total


def _sum_with_skip(d: Definition, bias: OpValue | None) -> OpValue:
    """x + skip (+ bias)."""
    x, skip = two_inputs_of_one_type(d)
    if bias is None:
        return elementwise(d, lambda a, b: a + b, x, skip)
    return elementwise(d, lambda a, b, c: a + b + c, x, skip, bias)


@operator("SkipLayerNormalization", domain=_DOMAIN)
def skip_layer_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """LayerNormalization of x + skip (+ bias) over the last dimension: inputs x, skip, gamma, beta, bias; optional
    results: mean, 1 / standard deviation, and the sum."""
    total = _sum_with_skip(d, d.optional(4))
    axes = (total.rank - 1,)
    mean = mean_over(d, total, axes, accumulator_dtype(total.dtype))
    inverse = inverse_stddev(d, total, mean, axes, d.attr_float("epsilon", 1e-12))
    result = normalize(d, total, mean, inverse, axes, d.input(2), d.optional(3))
    if d.num_outputs == 1:
        return result
    statistics = (keep_dims(d, s, total, axes) for s in (mean, inverse))
    return (result, *statistics, total)[: d.num_outputs]
