"""Semantics of every operation on NumPy scalars and arrays; used by constant folding and by evaluation."""

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np

from tilewright.expr.dtype import DType, boolean, dtype_of
from tilewright.expr.nodes import BinaryOp, Const, UnaryOp, const

Array = Any
"""A NumPy array or scalar."""

_erf = np.vectorize(erf, otypes=[np.float64])


def _cast_like(like: Array, value: Array) -> Array:
    return np.asarray(value).astype(np.asarray(like).dtype, copy=False)[()]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, np.zeros((), np.asarray(x).dtype))


def _divide(a: Array, b: Array) -> Array:
    if np.asarray(a).dtype.kind not in "iu":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient < 0) & (quotient * b != a))  # towards zero


def _in_float64(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`function` evaluated in float64 and rounded once: the reference is correctly rounded as far as float64 allows."""

    def call(x: Array) -> Array:
        x = np.asarray(x)
        return function(x.astype(np.float64)).astype(x.dtype)[()]

    return call


_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "not": np.logical_not, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf,
    "sqrt": np.sqrt, "rsqrt": _in_float64(lambda x: 1 / np.sqrt(x)), "reciprocal": np.reciprocal,
    "exp": _in_float64(np.exp), "log": _in_float64(np.log), "tanh": _in_float64(np.tanh),
    "sigmoid": _in_float64(_sigmoid),
    "erf": _in_float64(_erf), "sin": _in_float64(np.sin), "cos": _in_float64(np.cos), "tan": _in_float64(np.tan),
    "asin": _in_float64(np.arcsin),
    "acos": _in_float64(np.arccos), "atan": _in_float64(np.arctan), "sinh": _in_float64(np.sinh),
    "cosh": _in_float64(np.cosh),
    "asinh": _in_float64(np.arcsinh), "acosh": _in_float64(np.arccosh), "atanh": _in_float64(np.arctanh),
    "softplus": _in_float64(_softplus), "log1p": _in_float64(np.log1p), "expm1": _in_float64(np.expm1),
}  # fmt: skip

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "floordiv": np.floor_divide, "mod": np.mod,
    "fmod": np.fmod, "min": np.minimum, "max": np.maximum, "pow": np.power, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
_LOGIC: dict[str, tuple[Callable[[Array, Array], Array], Callable[[Array, Array], Array]]] = {
    "and": (np.logical_and, np.bitwise_and),
    "or": (np.logical_or, np.bitwise_or),
    "xor": (np.logical_xor, np.bitwise_xor),
}


def apply_unary(op: UnaryOp, a: Array) -> Array:
    """The operation on an array or NumPy scalar; the result has the type that the expression has."""
    with np.errstate(all="ignore"):
        if op == "not" and np.asarray(a).dtype != np.bool_:
            return np.bitwise_not(a)
        return _UNARY[op](a)


def apply_binary(op: BinaryOp, a: Array, b: Array) -> Array:
    """The operation on two arrays or NumPy scalars of one type, broadcast."""
    with np.errstate(all="ignore"):
        return compute_binary(op, a, b)


def compute_binary(op: BinaryOp, a: Array, b: Array) -> Array:
    """As `apply_binary`, for callers that let NumPy ignore all floating-point errors (`np.errstate`)."""
    if op in _LOGIC:
        logical, bitwise = _LOGIC[op]
        return logical(a, b) if np.asarray(a).dtype == np.bool_ else bitwise(a, b)
    result = _BINARY[op](a, b)
    dtype = getattr(a, "dtype", None)
    if dtype is not None and getattr(result, "dtype", None) is dtype:
        return result
    return result if np.asarray(result).dtype == np.bool_ else _cast_like(a, result)


def apply_cast(dtype: DType, a: Array) -> Array:
    """Conversion: float to integer truncates, saturates and maps NaN to 0; to bool means != 0."""
    with np.errstate(all="ignore"):
        value = np.asarray(a)
        if not (dtype.is_int and dtype_of(value.dtype).is_float):
            return value.astype(dtype.numpy)
        limits, as_float64 = np.iinfo(dtype.numpy), value.astype(np.float64)
        # INT64_MAX is not a float64, so values that reach the power of two above it are handled separately.
        is_above, is_below = as_float64 >= float(limits.max), as_float64 <= float(limits.min)
        in_range = np.where(is_above | is_below | np.isnan(as_float64), 0.0, as_float64).astype(dtype.numpy)
        return np.where(is_above, limits.max, np.where(is_below, limits.min, in_range)).astype(dtype.numpy)


def _make_literal(dtype: DType, value: Array) -> Const:
    return const(np.asarray(value).item(), dtype)


def fold_unary(op: UnaryOp, a: Const) -> Const | None:
    """The resulting literal, or None where an integer result would be rounded."""
    if a.dtype.is_int and op in ("reciprocal", "sqrt", "exp", "log"):
        return None
    value = np.asarray(a.value).astype(a.dtype.numpy)
    return _make_literal(boolean if op in ("isnan", "isinf") else a.dtype, apply_unary(op, value))


def fold_binary(op: BinaryOp, a: Const, b: Const) -> Const | None:
    """The resulting literal, or None for an integer division by zero or a negative integer power."""
    if a.dtype.is_int and op in ("div", "floordiv", "mod", "fmod") and b.value == 0:
        return None
    if a.dtype.is_int and op == "pow" and b.value < 0:
        return None
    if a.dtype.name == "int64" and op in ("add", "sub", "mul", "floordiv", "mod"):
        x, y = int(a.value), int(b.value)
        sum_or_product = {"add": x + y, "sub": x - y, "mul": x * y}.get(op)
        return const(sum_or_product if sum_or_product is not None else x // y if op == "floordiv" else x % y)
    x, y = (np.asarray(v.value).astype(v.dtype.numpy) for v in (a, b))
    result = apply_binary(op, x, y)
    return _make_literal(boolean if np.asarray(result).dtype == np.bool_ else a.dtype, result)


def apply_integer(op: str, x: int, y: int) -> int | None:
    """An int64 operation on unbounded integers; division by 0 gives 0.

    None for operations that depend on the width, and for unknown names.
    """
    match op:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "floordiv":
            return x // y if y else 0
        case "mod":
            return x % y if y else 0
        case "min":
            return min(x, y)
        case "max":
            return max(x, y)
        case "and":
            return x & y
        case "or":
            return x | y
        case "xor":
            return x ^ y
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return int({"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[op])
        case _:
            return None


def fold_cast(dtype: DType, a: Const) -> Const:
    """The converted literal."""
    if a.dtype.is_float and dtype.is_int:
        return _make_literal(dtype, apply_cast(dtype, np.asarray(a.value).astype(a.dtype.numpy)))
    return const(a.value, dtype) if dtype.kind != "b" else const(a.value != 0, dtype)
