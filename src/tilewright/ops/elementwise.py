"""Helpers of element-wise operators: broadcasting, type agreement, and the precision of intermediate values."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import overload

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr, as_expr
from tilewright.expr.operations import cast
from tilewright.expr.traversal import is_one
from tilewright.ops.axes import show_shape
from tilewright.ops.checks import expect_dtype
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, broadcast_element, broadcast_shape
from tilewright.ops.legacy_broadcast import align_operand

_MAX_FOLD_OPERANDS = 32
"""Operands combined in one expression at most."""


@overload
def elementwise(d: Definition, body: Callable[[Expr], Expr], x: OpValue, /) -> OpValue: ...
@overload
def elementwise(d: Definition, body: Callable[[Expr, Expr], Expr], x: OpValue, y: OpValue, /) -> OpValue: ...
@overload
def elementwise(
    d: Definition, body: Callable[[Expr, Expr, Expr], Expr], x: OpValue, y: OpValue, z: OpValue, /
) -> OpValue: ...
@overload
def elementwise(d: Definition, body: Callable[..., Expr], /, *operands: OpValue) -> OpValue: ...
def elementwise(d: Definition, body: Callable[..., Expr], /, *operands: OpValue) -> OpValue:
    """`body` applied to the elements of all operands, broadcast together.

    Raises:
        ShapeError: the shapes can't be broadcast.
    """
    shape = broadcast_shape(d, *(x.shape for x in operands))
    return d.compute(shape, lambda *i: body(*(broadcast_element(x, i) for x in operands)))


def fold_elementwise(
    d: Definition,
    step: Callable[[Expr, Expr], Expr],
    operands: Sequence[OpValue],
    first: Callable[[Expr], Expr] = lambda value: value,
    last: Callable[[Expr], Expr] = lambda value: value,
) -> OpValue:
    """`last(step(step(first(a), first(b)), first(c)) ...)` of the elements of any number of operands, broadcast.

    Walks over expressions recurse, so many operands are folded in chunks, in order, to limit the depth.

    Raises:
        ShapeError: the shapes can't be broadcast.
    """
    total: OpValue | None = None
    for start in range(0, len(operands), _MAX_FOLD_OPERANDS):
        chunk = operands[start : start + _MAX_FOLD_OPERANDS]
        has_total, is_last = total is not None, start + _MAX_FOLD_OPERANDS >= len(operands)

        def body(*values: Expr, has_total: bool = has_total, is_last: bool = is_last) -> Expr:
            initial = values[0] if has_total else first(values[0])
            result = reduce(step, map(first, values[1:]), initial)
            return last(result) if is_last else result

        total = elementwise(d, body, *chunk) if total is None else elementwise(d, body, total, *chunk)
    assert total is not None
    return total


def float_function(d: Definition, function: Callable[[Expr], Expr]) -> OpValue:
    """`function` applied to every element of input 0, a float tensor; 16-bit types are computed in float32.

    Raises:
        ShapeError: the input is not floating point.
    """
    x = d.input(0)
    if not x.dtype.is_float:
        raise ShapeError(f"input 0: expected a floating-point type, got {x.dtype}", where=f"node {d.label}")
    wide = accumulator_dtype(x.dtype)
    return d.compute(x.shape, lambda *i: cast(x.dtype, function(cast(wide, x[i]))))


def inputs_of_one_type(d: Definition, first: int = 0, last: int | None = None) -> tuple[OpValue, ...]:
    """Inputs `first` to `last` (exclusive; None for all), all present and of one element type.

    Raises:
        ShapeError: one is missing, or two types differ.
    """
    count = len(d.operands) if last is None else last
    operands = tuple(d.input(k) for k in range(first, count))
    if not operands:
        raise ShapeError("expected at least 1 input, got 0", where=f"node {d.label}")
    for k, x in enumerate(operands):
        expect_dtype(d, x, operands[0].dtype, f"input {first + k}")
    return operands


def two_inputs_of_one_type(d: Definition, first: int = 0) -> tuple[OpValue, OpValue]:
    """Inputs `first` and `first + 1`, both present and of one element type; aligned as the opset specifies.

    Raises:
        ShapeError: one is missing, or the types differ.
    """
    a, b = inputs_of_one_type(d, first, first + 2)
    return a, align_operand(d, a, b)


def scalar(d: Definition, position: int) -> Expr:
    """The single element of input `position`: its value where known at compile time, else a load.

    Raises:
        ShapeError: the input has more than one element.
    """
    x = d.input(position)
    if not all(is_one(n) for n in x.shape):
        what = f"input {position}: expected one element, got shape {show_shape(x.shape)}"
        raise ShapeError(what, where=f"node {d.label}")
    return broadcast_element(x, tuple(as_expr(0) for _ in x.shape))


def optional_scalar(d: Definition, position: int) -> Expr | None:
    """Like `scalar`; None where the input is omitted."""
    return None if d.optional(position) is None else scalar(d, position)
