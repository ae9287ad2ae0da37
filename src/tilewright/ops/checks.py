"""Checks of operands: rank, element type, shape, sizes and broadcasting."""

from collections.abc import Sequence

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Expr, const
from tilewright.expr.traversal import is_one
from tilewright.ops.axes import show_shape
from tilewright.ops.definition import Definition, OpValue, simplest_size


def expect_rank(d: Definition, x: OpValue, rank: int, what: str) -> None:
    """Requires an operand of `rank` dimensions.

    Raises:
        ShapeError: it has another rank.
    """
    if x.rank != rank:
        raise ShapeError(f"{what}: expected {pluralize(rank, 'dimension')}, got {x.rank}", where=f"node {d.label}")


def expect_dtype(d: Definition, x: OpValue, dtype: DType, what: str) -> None:
    """Requires the element type of an operand.

    Raises:
        ShapeError: it has another type.
    """
    if x.dtype != dtype:
        raise ShapeError(f"{what}: expected type {dtype}, got {x.dtype}", where=f"node {d.label}")


def expect_shape(d: Definition, x: OpValue, shape: Sequence[Expr], what: str) -> None:
    """Requires the shape of an operand; symbolic sizes are compared on every call.

    Raises:
        ShapeError: it has another shape.
    """
    message = f"{what}: expected shape {show_shape(shape)}, got {show_shape(x.shape)}"
    if x.rank != len(shape):
        raise ShapeError(message, where=f"node {d.label}")
    for actual, expected in zip(x.shape, shape, strict=True):
        d.require(actual.equals(expected), message)


def expect_size(d: Definition, actual: Expr, expected: Expr, what: str) -> Expr:
    """Requires that a size has the expected value and returns the simpler of the two.

    Raises:
        ShapeError: the two can never be equal.
    """
    d.require(actual.equals(expected), f"{what}: expected {expected}, got {actual}")
    return simplest_size(expected, actual)


def expect_one_element(d: Definition, x: OpValue, what: str) -> Expr:
    """Requires an operand of one element, of any rank, and returns it; symbolic sizes are compared on every call.

    Raises:
        ShapeError: it has another number of elements.
    """
    for size in x.shape:
        d.require(size.equals(1), f"{what}: expected one element, got {show_shape(x.shape)}")
    return x[(const(0),) * x.rank]


def expect_broadcastable(d: Definition, x: OpValue, shape: Sequence[Expr], what: str) -> None:
    """Requires that `x` broadcasts to `shape` without changing it.

    Raises:
        ShapeError: `x` has more dimensions, or a size that can never equal its target.
        UnsupportedError: a data-dependent size of `x` may be 1.
    """
    if x.rank > len(shape):
        what = f"{what}: expected at most {pluralize(len(shape), 'dimension')}, got {x.rank}"
        raise ShapeError(what, where=f"node {d.label}")
    for size, target in zip(reversed(x.shape), reversed(shape), strict=False):
        if not is_one(size):
            d.refuse_unit_size(size, target, what)
            expect_size(d, size, target, what)
