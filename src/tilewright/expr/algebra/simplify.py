"""Smart constructors of expressions: constant folding, index algebra, and simplification under bounds.

Index (int64) rules: sums, products, quotients and remainders follow `division.py`; minima, maxima and comparisons fold
where the sign of the difference is proved. Under bounds, each side of a conjunction or disjunction is simplified
assuming that the other side does not decide the result, and each arm of a select assuming its condition.

Float rules keep IEEE semantics: only x*1, x/1, x-0 and literals fold.
"""

from collections.abc import Mapping

import numpy as np

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds, interval, negated_comparison
from tilewright.expr.algebra.division import floordiv, mod, recombine
from tilewright.expr.algebra.expression_order import order_key
from tilewright.expr.algebra.prover import is_trivially_non_negative, is_trivially_ordered
from tilewright.expr.dtype import DType, boolean, int64
from tilewright.expr.nodes import (
    FALSE,
    TRUE,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
)
from tilewright.expr.numpy_semantics import fold_binary, fold_cast, fold_unary
from tilewright.expr.traversal import loads
from tilewright.kernel_caches import kernel_cache


def make_binary(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds = NO_BOUNDS) -> Expr:
    """The simplified operation on two expressions of one type."""
    if bounds is NO_BOUNDS and a.dtype is int64:
        return _cached_binary(op, a, b)
    return _build_binary(op, a, b, bounds)


@kernel_cache(maxsize=1 << 15)
def _cached_binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """`_build_binary` without bounds, cached: schedules build the same indices over and over."""
    return _build_binary(op, a, b, NO_BOUNDS)


def _build_binary(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        folded = fold_binary(op, a, b)
        if folded is not None:
            return folded
    if a.dtype == boolean:
        return _simplify_logic(op, a, b)
    if a.dtype == int64:
        return _simplify_index(op, a, b, bounds)
    return _simplify_value(op, a, b)


def _simplify_logic(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    if op == "and":
        if a is FALSE or b is FALSE:
            return FALSE
        if a is TRUE or a is b:
            return b
        if b is TRUE:
            return a
    elif op == "or":
        if a is TRUE or b is TRUE:
            return TRUE
        if a is FALSE or a is b:
            return b
        if b is FALSE:
            return a
    elif op == "eq" and a is b:
        return TRUE
    return Binary(op, a, b)


def _simplify_value(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    if isinstance(b, Const):
        if op in ("mul", "div") and b.value == 1:
            return a
        if op == "sub" and b.value == 0 and not (a.dtype.is_float and np.signbit(b.value)):
            return a
        if op == "pow" and b.value == 1:
            return a
        if op == "pow" and b.value == 2:
            return make_binary("mul", a, a)
        if a.dtype.is_int and op == "add" and b.value == 0:
            return a
    if isinstance(a, Const) and ((op == "mul" and a.value == 1) or (op == "add" and a.value == 0 and a.dtype.is_int)):
        return b
    if op == "floordiv" and a.dtype.is_int and isinstance(b, Const) and b.value == 1:
        return a
    return Binary(op, a, b)


def _simplify_index(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds) -> Expr:
    match op:
        case "add":
            return recombine(poly.wrap_to_int64(poly.add(poly.polynomial(a), poly.polynomial(b))), bounds)
        case "sub":
            return recombine(poly.wrap_to_int64(poly.add(poly.polynomial(a), poly.polynomial(b), -1)), bounds)
        case "mul":
            return recombine(poly.wrap_to_int64(poly.multiply(poly.polynomial(a), poly.polynomial(b))), bounds)
        case "floordiv":
            return floordiv(a, b, bounds)
        case "mod":
            return mod(a, b, bounds)
        case "min" | "max":
            if a is b or is_trivially_ordered(a, b, bounds):
                return a if op == "min" else b
            if is_trivially_ordered(b, a, bounds):
                return b if op == "min" else a
            return Binary(op, *sorted((a, b), key=order_key))
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return _simplify_comparison(op, a, b, bounds)
        case _:
            return Binary(op, a, b)


def _simplify_comparison(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds) -> Expr:
    match op:
        case "gt":
            return _simplify_comparison("lt", b, a, bounds)
        case "ge":
            return _simplify_comparison("le", b, a, bounds)
        case "lt":
            if is_trivially_ordered(a, b, bounds, 1):
                return TRUE
            return FALSE if a is b or is_trivially_ordered(b, a, bounds) else Binary("lt", a, b)
        case "le":
            if a is b or is_trivially_ordered(a, b, bounds):
                return TRUE
            return FALSE if is_trivially_ordered(b, a, bounds, 1) else Binary("le", a, b)
        case _:
            is_equal = a is b or (poly.constant_value(poly.polynomial(a - b)) == 0)
            is_unequal = not is_equal and (
                is_trivially_ordered(b, a, bounds, 1) or is_trivially_ordered(a, b, bounds, 1)
            )
            if is_equal or is_unequal:
                return TRUE if is_equal == (op == "eq") else FALSE
            return Binary(op, *sorted((a, b), key=order_key))


def make_unary(op: UnaryOp, a: Expr) -> Expr:
    """The simplified operation on one expression."""
    if isinstance(a, Const):
        folded = fold_unary(op, a)
        if folded is not None:
            return folded
    if op == "not" and isinstance(a, Unary) and a.op == "not":
        return a.a
    negation = negated_comparison(a) if op == "not" else None
    if isinstance(negation, Binary):
        return make_binary(negation.op, negation.a, negation.b)
    if op == "neg" and a.dtype == int64:
        return make_binary("sub", const(0), a)
    if a.dtype.is_int and op in ("floor", "ceil", "round", "trunc"):
        return a
    return Unary(op, a)


def make_cast(dtype: DType, a: Expr) -> Expr:
    """The simplified conversion; sizes computed in floating point become integer expressions again."""
    if a.dtype == dtype:
        return a
    if isinstance(a, Const):
        return fold_cast(dtype, a)
    if dtype == int64:
        integer = _integer_from_float(a)
        if integer is not None:
            return integer
        # An index narrowed to 32 bits and widened again is unchanged where it fits.
        if isinstance(a, Cast) and a.dtype.is_int and a.a.dtype == int64 and a.dtype.bits == 32 and _is_in_int32(a.a):
            return a.a
    return Cast(dtype, a)


def _is_in_int32(e: Expr) -> bool:
    low, high = interval(e)
    return low is not None and high is not None and low >= -(1 << 31) and high < 1 << 31


def _integer_from_float(a: Expr) -> Expr | None:
    """int(round(float(x) * c)) as an integer expression of x, where c or 1/c is an integer; exact below 2**24."""
    rounding = "trunc"
    if isinstance(a, Unary) and a.op in ("floor", "ceil", "trunc", "round"):
        rounding, a = a.op, a.a
    source, scale = a, 1.0
    if isinstance(a, Binary) and a.op in ("mul", "div"):
        if isinstance(a.b, Const):
            factor = float(a.b.value)
            source, scale = a.a, factor if a.op == "mul" else 1.0 / factor if factor else 0.0
        elif isinstance(a.a, Const) and a.op == "mul":
            source, scale = a.b, float(a.a.value)
    if not (isinstance(source, Cast) and source.dtype.is_float and source.a.dtype == int64) or loads(source.a):
        return None
    x = source.a
    if scale == 0 or not np.isfinite(scale):
        return None
    if scale == int(scale):
        return x * int(scale)
    inverse = 1.0 / scale
    if inverse != int(inverse) or inverse < 0 or rounding == "round":
        return None
    if rounding == "trunc" and not is_trivially_non_negative(x):
        return None
    return (x + (int(inverse) - 1)) // int(inverse) if rounding == "ceil" else x // int(inverse)


def simplify(e: Expr, bounds: Bounds) -> Expr:
    """`e` simplified under bounds of its variables."""
    return _cached_rebuild(e, (), bounds)


def substitute(e: Expr, mapping: Mapping[Var, Expr], bounds: Bounds = NO_BOUNDS) -> Expr:
    """`e` with variables replaced, simplified under `bounds`."""
    if isinstance(e, Var):
        return mapping.get(e, e)
    return _cached_rebuild(e, tuple(mapping.items()), bounds) if mapping else e


@kernel_cache(maxsize=1 << 14)
def _cached_rebuild(e: Expr, mapping: tuple[tuple[Var, Expr], ...], bounds: Bounds) -> Expr:
    """`_rebuild`, cached: every step of a schedule rebuilds the same indices over the same loops."""
    return _rebuild(e, dict(mapping), bounds, {})


def _rebuild(e: Expr, mapping: Mapping[Var, Expr], bounds: Bounds, memo: dict[Expr, Expr]) -> Expr:
    cached = memo.get(e)
    if cached is not None:
        return cached
    match e:
        case Var():
            result = mapping.get(e, e)
        case Const():
            result = e
        case Binary("and" | "or" as op, a, b) if bounds is not NO_BOUNDS and e.dtype == boolean:
            result = _rebuild_condition(op, a, b, mapping, bounds)
        case Binary(op, a, b):
            result = make_binary(op, _rebuild(a, mapping, bounds, memo), _rebuild(b, mapping, bounds, memo), bounds)
        case Select(cond, a, b):
            result = _rebuild_select(cond, a, b, mapping, bounds, memo)
        case Load(buffer, indices):
            result = Load(buffer, tuple(_rebuild(i, mapping, bounds, memo) for i in indices))
        case _:
            result = e.rebuild(tuple(_rebuild(c, mapping, bounds, memo) for c in e.children()))
    memo[e] = result
    return result


def _rebuild_condition(op: BinaryOp, a: Expr, b: Expr, mapping: Mapping[Var, Expr], bounds: Bounds) -> Expr:
    """A conjunction or disjunction; each side is simplified for the case that the other does not decide the result."""

    def bounds_given(other: Expr) -> Bounds:
        return bounds.where(other, op == "and")

    left = _rebuild(a, mapping, bounds, {})
    right = _rebuild(b, mapping, bounds_given(left), {})
    return make_binary(op, _rebuild(left, {}, bounds_given(right), {}), right)


def _rebuild_select(
    cond: Expr, a: Expr, b: Expr, mapping: Mapping[Var, Expr], bounds: Bounds, memo: dict[Expr, Expr]
) -> Expr:
    test = _rebuild(cond, mapping, bounds, memo)
    if isinstance(test, Const):
        return _rebuild(a if test.value else b, mapping, bounds, memo)
    # Each arm is simplified under the condition, so its results must not enter the memo of other places.
    true_bounds, false_bounds = (bounds.where(test, taken) for taken in (True, False))
    if_true = _rebuild(a, mapping, true_bounds, {} if true_bounds is not bounds else memo)
    if_false = _rebuild(b, mapping, false_bounds, {} if false_bounds is not bounds else memo)
    return if_true if if_true is if_false else Select(test, if_true, if_false)
