"""Element-wise functions for the bodies of tensor expressions; a Python number takes the other operand's type."""

from typing import Literal

from tilewright.errors import DefinitionError
from tilewright.expr.dtype import DType, boolean, dtype_of
from tilewright.expr.nodes import Expr, UnaryOp, as_expr
from tilewright.expr.operations import binary, unary
from tilewright.expr.operations import cast as cast_node
from tilewright.expr.operations import select as select_node
from tilewright.expr.tensor import Reduction, Tensor


def cast(value: Expr, dtype: str | DType) -> Expr:
    """The value converted to another type; floats are truncated to integers."""
    return cast_node(dtype_of(dtype), _expect_expr(value, "cast"))


def select(condition: Expr, then: Expr | int | float, otherwise: Expr | int | float) -> Expr:
    """`then` where the condition is true, else `otherwise`.

    The arm not taken is not evaluated, so its indices may be out of bounds: `select((0 <= x) & (x < w), A[x], 0.0)`
    pads.
    """
    if isinstance(condition, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - what == answers
        hint = "== compares the expressions themselves: write a.equals(b)"
        raise DefinitionError(f"the condition is the Python value {condition}", where="select", hint=hint)
    if not isinstance(condition, Expr) or condition.dtype != boolean:  # pyright: ignore[reportUnnecessaryIsInstance]
        got = condition.dtype if isinstance(condition, Expr) else type(condition).__name__  # pyright: ignore
        raise DefinitionError(f"expected a condition, got a value of type {got}", where="select")
    if isinstance(then, Expr):
        return select_node(condition, then, otherwise)
    if not isinstance(otherwise, Expr):
        raise DefinitionError("both arms are plain numbers", where="select", hint='write cast(condition, "float32")')
    return select_node(condition, as_expr(then, otherwise.dtype), otherwise)


def maximum(a: Expr | float, b: Expr | float) -> Expr:
    """The larger of two values; NaN if one is NaN. For the largest along an axis see `max`."""
    return _extremum_of_two("max", a, b)


def minimum(a: Expr | float, b: Expr | float) -> Expr:
    """The smaller of two values; NaN if one is NaN. For the smallest along an axis see `min`."""
    return _extremum_of_two("min", a, b)


def abs(value: Expr) -> Expr:
    """The absolute value."""
    return unary("abs", _expect_expr(value, "abs"))


def exp(value: Expr) -> Expr:
    """e to the power of a float."""
    return _float_function("exp", value)


def log(value: Expr) -> Expr:
    """The natural logarithm of a float."""
    return _float_function("log", value)


def sqrt(value: Expr) -> Expr:
    """The square root of a float."""
    return _float_function("sqrt", value)


def rsqrt(value: Expr) -> Expr:
    """One divided by the square root of a float."""
    return _float_function("rsqrt", value)


def tanh(value: Expr) -> Expr:
    """The hyperbolic tangent of a float."""
    return _float_function("tanh", value)


def sigmoid(value: Expr) -> Expr:
    """1 / (1 + exp(-x)) of a float."""
    return _float_function("sigmoid", value)


def erf(value: Expr) -> Expr:
    """The error function of a float."""
    return _float_function("erf", value)


def floor(value: Expr) -> Expr:
    """A float rounded towards minus infinity."""
    return _float_function("floor", value)


def ceil(value: Expr) -> Expr:
    """A float rounded towards infinity."""
    return _float_function("ceil", value)


def _extremum_of_two(op: Literal["max", "min"], a: object, b: object) -> Expr:
    where = f"{op}imum"
    if not isinstance(a, Expr | int | float):
        raise _not_an_expression(a, where)
    if not isinstance(b, Expr | int | float):
        raise _not_an_expression(b, where)
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        raise DefinitionError("both operands are plain numbers", where=where)
    return binary(op, a, b)


def _expect_expr(value: object, where: str) -> Expr:
    if not isinstance(value, Expr):
        raise _not_an_expression(value, where)
    return value


def _not_an_expression(value: object, where: str) -> DefinitionError:
    if isinstance(value, Reduction):
        return value.misplaced_error()
    hint = "index the tensor" if isinstance(value, Tensor) else ""
    return DefinitionError(f"expected an expression, got {type(value).__name__}", where=where, hint=hint)


def _float_function(op: UnaryOp, value: object) -> Expr:
    e = _expect_expr(value, op)
    if not e.dtype.is_float:
        raise DefinitionError(f"expected a float, got {e.dtype}", where=op, hint='write cast(..., "float32")')
    return unary(op, e)
