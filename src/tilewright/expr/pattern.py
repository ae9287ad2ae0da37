"""Classification of computations by the pattern of their body and reduction.

Operator fusion, layout assignment and the choice of a schedule ask what a computation is. The answer is read off its
expression, so equal computations of different operators have one pattern (compare TVM's `OpPatternKind`).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeGuard

from tilewright.expr.computation import Computation, Reducer, iteration_space_size
from tilewright.expr.nodes import Binary, Buffer, Cast, Const, Expr, Load, Select, Var
from tilewright.expr.traversal import free_vars, is_one, loads

MAX_WINDOW_POINTS = 64
"""Largest reduction of a window; longer reductions are contractions, which gain from tiles across rows."""


class Pattern(StrEnum):
    """What a computation is."""

    CONTRACTION = "contraction"
    """A reduction of products of two operands, such as a matrix product or a convolution."""

    WINDOW = "window"
    """A contraction over at most `MAX_WINDOW_POINTS` points, one operand of which has every axis of the result in its
    indices: a depthwise convolution, which reads its operand in place."""

    REDUCTION = "reduction"
    """Any other reduction."""

    DATA_MOVEMENT = "data movement"
    """A load, or a load inside of constant padding: copies, transpositions, slices, padding."""

    ELEMENTWISE = "element-wise"
    """Any other computation without a reduction."""


def pattern_of(c: Computation) -> Pattern:
    """The pattern of a computation."""
    if not c.is_reduction:
        return Pattern.DATA_MOVEMENT if isinstance(_without_padding(c.body), Load) else Pattern.ELEMENTWISE
    if product_operands(c.body) is None:
        return Pattern.REDUCTION
    return Pattern.WINDOW if _is_window(c) else Pattern.CONTRACTION


def is_sum_of_products(c: Computation) -> bool:
    """Whether a computation sums products of two operands: a contraction or window in ordinary arithmetic."""
    return c.reducer is Reducer.SUM and product_operands(c.body) is not None


def product_operands(body: Expr) -> tuple[Load, Load] | None:
    """The loads of two different elements that an expression multiplies, casts aside; None for other expressions."""
    if not (isinstance(body, Binary) and body.op == "mul"):
        return None
    a, b = _without_casts(body.a), _without_casts(body.b)
    return (a, b) if isinstance(a, Load) and isinstance(b, Load) and a is not b else None


def reads_elementwise(c: Computation, operand: Buffer) -> bool:
    """Whether output and operand have one shape and every load of the operand is at the output's own indices."""
    index = tuple(a.var for a in c.axes)
    reads = [x for x in loads(c.body) if x.buffer == operand]
    return bool(reads) and c.output.shape == operand.shape and all(is_same_element(x, index) for x in reads)


def is_same_element(x: Load, index: Sequence[Expr]) -> bool:
    """Whether a load is at the index, up to dimensions of extent 1."""
    return all(i is v or is_one(n) for i, v, n in zip(x.indices, index, x.buffer.shape, strict=True))


def _is_window(c: Computation) -> bool:
    """Whether a reduction of products is short and reads an operand at every result's own place."""
    points = iteration_space_size(c.reduce_axes)
    axes = {a.var for a in c.axes if not is_one(a.extent)}
    is_short = isinstance(points, Const) and points.value <= MAX_WINDOW_POINTS
    return is_short and any(axes <= _index_variables(x) for x in loads(c.body))


def _index_variables(x: Load) -> set[Var]:
    return {v for i in x.indices for v in free_vars(i)}


def _without_padding(e: Expr) -> Expr:
    """The expression inside of selections of constants."""
    while isinstance(e, Select) and isinstance(e.b, Const):
        e = e.a
    return e


def _without_casts(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.a
    return e


def is_masked_score(value: Expr) -> TypeGuard[Select]:
    """Whether a value is a selection between a score and -inf, as of attention."""
    return isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == float("-inf")
