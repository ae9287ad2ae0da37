"""The rule of text generation that no sequence of n words occurs twice."""

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import TRUE, Expr, const
from tilewright.expr.operations import binary, maximum, select
from tilewright.ops.checks import expect_dtype, expect_rank, expect_size
from tilewright.ops.clamp import clamp_index
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator


@operator("NGramRepeatBlock", domain=CONTRIB)
def ngram_repeat_block(d: Definition) -> OpValue:
    """The scores of the next words, with -inf for words that would repeat a sequence of `ngram_size` words: inputs
    words so far [batch, length], scores [batch, words].

    Raises:
        ShapeError: `ngram_size` is not positive, or the operands do not match.
    """
    words, scores, size = d.input(0), d.input(1), d.attr_int("ngram_size", 0)
    if size < 1:
        raise ShapeError(f"ngram_size: expected 1 or more, got {size}", where=f"node {d.label}")
    expect_rank(d, words, 2, "input_ids")
    expect_rank(d, scores, 2, "scores")
    expect_dtype(d, words, int64, "input_ids")
    expect_size(d, scores.shape[0], words.shape[0], "batch of scores")
    length = words.shape[1]
    starts = maximum(length - (size - 1), 0)

    def word(batch: Expr, position: Expr) -> Expr:
        return words[batch, clamp_index(position, length)]

    def excluded_word(batch: Expr, start: Expr) -> Expr:
        is_repeated: Expr = TRUE
        for k in range(size - 1):
            same = word(batch, start + k).equals(word(batch, length - (size - 1) + k))
            is_repeated = binary("and", is_repeated, same)
        return select(is_repeated, word(batch, start + (size - 1)), -1)

    excluded = d.compute((words.shape[0], starts), excluded_word)

    def is_excluded(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        return select(excluded[i[0], r[0]].equals(i[1]), const(1), 0)

    count = d.reduce(scores.shape, (starts,), is_excluded, Reducer.MAX)
    return d.compute(scores.shape, lambda *i: select(count[i] > 0, const(float("-inf"), scores.dtype), scores[i]))
