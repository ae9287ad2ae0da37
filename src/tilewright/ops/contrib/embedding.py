"""Embeddings of words, positions and segments, summed and normalized."""

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import int32
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, select
from tilewright.expr.traversal import is_one
from tilewright.ops.checks import expect_rank, expect_shape
from tilewright.ops.clamp import clamp_index
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.contrib.parameters import quantization_of
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.gather import resolve_index
from tilewright.ops.layernorm import inverse_stddev, normalize
from tilewright.ops.reduce import mean_over


@operator("EmbedLayerNormalization", domain=CONTRIB, ignores=("mask_index_type",))
def embed_layer_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """LayerNormalization of the sum of word, position and segment embeddings.

    Inputs: word numbers [batch, length], segment numbers, tables of words, positions and segments, gamma, beta, mask
    [batch, length], position numbers [batch or 1, length]. Optional results: the number of ones in each row of the
    mask (0 without one), and the sum.
    """
    word_table, position_table = d.input(2), d.input(3)
    total = _summed_embeddings(d, (word_table, position_table, d.optional(4)), d.optional(8))
    result = _normalized(d, total, d.input(5), d.input(6))
    return (result, *_embedding_extras(d, total))[: d.num_outputs] if d.num_outputs > 1 else result


@operator("QEmbedLayerNormalization", domain=CONTRIB)
def quantized_embed_layer_normalization(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """EmbedLayerNormalization of quantized tables, gamma and beta, each with a scale and a zero point.

    Inputs: word numbers, segment numbers, tables of words, positions and segments, gamma, beta, mask, scales of the
    five, zero points of the five. Optional result: the number of ones in each row of the mask (0 without one).
    """
    tables = [_dequantized(d, position, _QUANTIZED[position]) for position in _QUANTIZED]
    words, positions, segments, gamma, beta = tables
    if words is None or positions is None or gamma is None or beta is None:
        raise ShapeError("expected tables of words and positions, gamma and beta", where=f"node {d.label}")
    total = _summed_embeddings(d, (words, positions, segments), None)
    result = _normalized(d, total, gamma, beta)
    return (result, _embedding_extras(d, total)[0])[: d.num_outputs] if d.num_outputs > 1 else result


_QUANTIZED = {
    2: "word_embedding", 3: "position_embedding", 4: "segment_embedding", 5: "gamma", 6: "beta",
}  # fmt: skip
"""Names of the quantized inputs by position; their scales are 6 positions later, their zero points 11."""


def _dequantized(d: Definition, position: int, what: str) -> OpValue | None:
    x = d.optional(position)
    if x is None:
        return None
    parameters = quantization_of(d, position + 6, position + 11, x.dtype, what)
    return d.compute(x.shape, lambda *i: parameters.dequantize(x[i]))


def _normalized(d: Definition, total: OpValue, gamma: OpValue, beta: OpValue) -> OpValue:
    mean = mean_over(d, total, (2,), accumulator_dtype(total.dtype))
    inverse = inverse_stddev(d, total, mean, (2,), d.attr_float("epsilon", 1e-12))
    return normalize(d, total, mean, inverse, (2,), gamma, beta)


def _summed_embeddings(
    d: Definition, tables: tuple[OpValue, OpValue, OpValue | None], positions: OpValue | None
) -> OpValue:
    """The sum of the rows that the word numbers (input 0), positions and segment numbers (input 1) select."""
    word_table, position_table, segment_table = tables
    words, segments = d.input(0), d.optional(1)
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

    return d.compute((batch, length, hidden), embedding)


def _embedding_extras(d: Definition, total: OpValue) -> tuple[OpValue, OpValue]:
    """The lengths by the mask, and the sum of the embeddings."""
    mask, (batch, length, _) = d.optional(7), total.shape
    if mask is None:
        return d.compute((batch,), lambda *_: const(0, int32), int32), total
    expect_shape(d, mask, (batch, length), "mask")

    def is_one_at(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        return select(mask[i[0], r[0]].equals(1), const(1, int32), 0)

    return d.reduce((batch,), (length,), is_one_at, Reducer.SUM), total
