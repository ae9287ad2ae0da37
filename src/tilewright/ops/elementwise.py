"""What element-wise operators share: broadcasting, agreement of types, and the precision of the arithmetic inside."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import overload

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Expr, as_expr
from tilewright.expr.operations import cast
from tilewright.ops.axes import show_shape
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, Operand, broadcast_element, broadcast_shape, is_one
from tilewright.ops.legacy_broadcast import align_operand

_MAX_FOLD_OPERANDS = 32
"""Operands that one expression combines."""


@overload
def elementwise(d: Definition, body: Callable[[Expr], Expr], x: Operand, /) -> Operand: ...
@overload
def elementwise(d: Definition, body: Callable[[Expr, Expr], Expr], x: Operand, y: Operand, /) -> Operand: ...
@overload
def elementwise(
    d: Definition, body: Callable[[Expr, Expr, Expr], Expr], x: Operand, y: Operand, z: Operand, /
) -> Operand: ...
@overload
def elementwise(d: Definition, body: Callable[..., Expr], /, *operands: Operand) -> Operand: ...
def elementwise(d: Definition, body: Callable[..., Expr], /, *operands: Operand) -> Operand:
    """`body` of the elements of all operands, broadcast together.

    Raises:
        ShapeError: the shapes can't be broadcast.
    """
    shape = broadcast_shape(d, *(x.shape for x in operands))
    return d.compute(shape, lambda *i: body(*(broadcast_element(x, i) for x in operands)))


def fold_elementwise(
    d: Definition,
    step: Callable[[Expr, Expr], Expr],
    operands: Sequence[Operand],
    first: Callable[[Expr], Expr] = lambda value: value,
    last: Callable[[Expr], Expr] = lambda value: value,
) -> Operand:
    """`last(step(step(first(a), first(b)), first(c)) ...)` of the elements of any number of operands, broadcast.

    Expressions are walked by functions that call themselves, so many operands are folded part by part, in their order.

    Raises:
        ShapeError: the shapes can't be broadcast.
    """
    total: Operand | None = None
    for start in range(0, len(operands), _MAX_FOLD_OPERANDS):
        part = operands[start : start + _MAX_FOLD_OPERANDS]
        begun, ends = total is not None, start + _MAX_FOLD_OPERANDS >= len(operands)

        def body(*values: Expr, begun: bool = begun, ends: bool = ends) -> Expr:
            head = values[0] if begun else first(values[0])
            result = reduce(step, map(first, values[1:]), head)
            return last(result) if ends else result

        total = elementwise(d, body, *part) if total is None else elementwise(d, body, total, *part)
    assert total is not None
    return total


def float_function(d: Definition, function: Callable[[Expr], Expr]) -> Operand:
    """`function` of every element of input 0, a floating-point tensor; 16-bit types are computed in float32.

    Raises:
        ShapeError: the input is not floating point.
    """
    x = d.input(0)
    if not x.dtype.is_float:
        raise ShapeError(f"input 0: expected a floating-point type, got {x.dtype}", where=f"node {d.label}")
    wide = accumulator_dtype(x.dtype)
    return d.compute(x.shape, lambda *i: cast(x.dtype, function(cast(wide, x[i]))))


def inputs_of_one_type(d: Definition, first: int = 0, last: int | None = None) -> tuple[Operand, ...]:
    """Inputs `first` to `last` (exclusive; None for all), which must exist and have one element type.

    Raises:
        ShapeError: one is missing, or two types differ.
    """
    count = len(d.operands) if last is None else last
    operands = tuple(d.input(k) for k in range(first, count))
    if not operands:
        raise ShapeError("expected at least 1 input, got 0", where=f"node {d.label}")
    for k, x in enumerate(operands):
        expect_type(d, x, operands[0].dtype, f"input {first + k}")
    return operands


def two_inputs_of_one_type(d: Definition, first: int = 0) -> tuple[Operand, Operand]:
    """Inputs `first` and `first + 1`, which must exist and have one element type; aligned as the operator set says.

    Raises:
        ShapeError: one is missing, or the types differ.
    """
    a, b = inputs_of_one_type(d, first, first + 2)
    return a, align_operand(d, a, b)


def expect_type(d: Definition, x: Operand, dtype: DType, what: str) -> None:
    """States the element type of an operand.

    Raises:
        ShapeError: it has another type.
    """
    if x.dtype != dtype:
        raise ShapeError(f"{what}: expected type {dtype}, got {x.dtype}", where=f"node {d.label}")


def expect_shape(d: Definition, x: Operand, shape: Sequence[Expr], what: str) -> None:
    """States the shape of an operand; symbolic sizes are compared on every call.

    Raises:
        ShapeError: it has another shape.
    """
    message = f"{what}: expected shape {show_shape(shape)}, got {show_shape(x.shape)}"
    if x.rank != len(shape):
        raise ShapeError(message, where=f"node {d.label}")
    for actual, expected in zip(x.shape, shape, strict=True):
        d.require(actual.equals(expected), message)


def scalar(d: Definition, position: int) -> Expr:
    """The one element of input `position`: its value where it is known, else a load.

    Raises:
        ShapeError: the input has more than one element.
    """
    x = d.input(position)
    if not all(is_one(n) for n in x.shape):
        what = f"input {position}: expected one element, got shape {show_shape(x.shape)}"
        raise ShapeError(what, where=f"node {d.label}")
    return broadcast_element(x, tuple(as_expr(0) for _ in x.shape))


def optional_scalar(d: Definition, position: int) -> Expr | None:
    """Like `scalar`, or None where the input is left out."""
    return None if d.optional(position) is None else scalar(d, position)
