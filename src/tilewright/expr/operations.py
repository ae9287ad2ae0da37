"""Operations on expressions, simplified as they are built: the functions behind the operators of `Expr`."""

import numpy as np

from tilewright.errors import DefinitionError
from tilewright.expr.algebra.simplify import make_binary, make_cast, make_unary
from tilewright.expr.dtype import DType, boolean
from tilewright.expr.nodes import TRUE, BinaryOp, Const, Expr, Select, UnaryOp, as_expr, const


def _coerce_operands(a: Expr | int | float, b: Expr | int | float) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        return a, _coerce(b, a.dtype)
    if isinstance(b, Expr):
        return _coerce(a, b.dtype), b
    return as_expr(a), as_expr(b)


def _coerce(value: Expr | int | float, like: DType) -> Expr:
    """`value` itself if it is an expression, else its literal of type `like`, without rounding."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, int):
        if not isinstance(value, (float, np.generic)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected an expression or a number, got {type(value).__name__} `{value}`")
        if not like.is_float and not float(value).is_integer():
            raise DefinitionError(f"{value} can't be combined with a value of type {like}", hint="cast the value first")
    return const(value, like)


def binary(op: BinaryOp, a: Expr | int | float, b: Expr | int | float) -> Expr:
    """The operation on two values, simplified; a Python number takes the other operand's type.

    Raises:
        DefinitionError: the operands' types differ.
    """
    if isinstance(a, Expr) and isinstance(b, Expr):
        left, right = a, b
    else:
        left, right = _coerce_operands(a, b)
    if left.dtype is not right.dtype and left.dtype != right.dtype:
        what = f"operands of {op!r} have types {left.dtype} and {right.dtype}"
        raise DefinitionError(what, hint="cast one of them")
    return make_binary(op, left, right)


def divide(a: Expr | int | float, b: Expr | int | float) -> Expr:
    """The quotient of two floats, as `/` writes it.

    Raises:
        DefinitionError: the operands are not floats.
    """
    left, right = _coerce_operands(a, b)
    if not left.dtype.is_float:
        hint = "write // to round down, or cast to a float first"
        raise DefinitionError(f"`/` of {left.dtype} values: the quotient is not of type {left.dtype}", hint=hint)
    return binary("div", left, right)


def unary(op: UnaryOp, a: Expr) -> Expr:
    """The operation on one value, folded where the operand is a literal."""
    return make_unary(op, a)


def select(cond: Expr, a: Expr, b: Expr | int | float) -> Expr:
    """`a` where `cond` is true, else `b` (lazy); folded where the condition is a literal.

    Raises:
        DefinitionError: `cond` is not bool, or the arms' types differ.
    """
    else_arm = _coerce(b, a.dtype)
    if cond.dtype != boolean or else_arm.dtype != a.dtype:
        raise DefinitionError(f"select needs bool and equal types, got {cond.dtype}, {a.dtype}, {else_arm.dtype}")
    if isinstance(cond, Const):
        return a if cond.value else else_arm
    return a if a is else_arm else Select(cond, a, else_arm)


def cast(dtype: DType, a: Expr) -> Expr:
    """`a` converted to `dtype`; folded where it is a literal or already has the type."""
    return make_cast(dtype, a)


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    """The smaller of two values."""
    return binary("min", a, b)


def maximum(a: Expr | int, b: Expr | int) -> Expr:
    """The larger of two values."""
    return binary("max", a, b)


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """The quotient of int64 expressions rounded up, for b > 0."""
    dividend, divisor = _coerce_operands(a, b)
    return (dividend + divisor - 1) // divisor


def conjunction(*conditions: Expr) -> Expr:
    """The conjunction of bool expressions; True for none."""
    result: Expr = TRUE
    for c in conditions:
        result = binary("and", result, c)
    return result
