"""Smart constructors of expressions: folding, index algebra, and simplification under known bounds.

Index (int64) rules, for a divisor d > 0 (sizes are positive wherever an index is evaluated):
    (q*d + r) // d = q + r // d          (q*d + r) % d = r % d
    r // d = 0 and r % d = r             when 0 <= r < d is proved
    (g*y + k) // (g*c) = (y + k//g) // c (x // a) // c = x // (a*c)
    (x // d)*d + x % d = x               min/max/comparisons with a decided difference fold
Float rules keep IEEE semantics: only x*1, x/1, x-0 and literals fold.
"""

from collections.abc import Mapping
from math import gcd

import numpy as np

from tilewright.expr import polynomial as poly
from tilewright.expr.bounds import NOTHING_KNOWN, Bounds, interval
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
    loads,
)
from tilewright.expr.prover import non_negative
from tilewright.expr.scalar import fold_binary, fold_cast, fold_unary


def make_binary(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds = NOTHING_KNOWN) -> Expr:
    """The simplified operation on two expressions of one type."""
    if isinstance(a, Const) and isinstance(b, Const):
        folded = fold_binary(op, a, b)
        if folded is not None:
            return folded
    if a.dtype == boolean:
        return _logic(op, a, b)
    if a.dtype == int64:
        return _index(op, a, b, bounds)
    return _value(op, a, b)


def _logic(op: BinaryOp, a: Expr, b: Expr) -> Expr:
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


def _value(op: BinaryOp, a: Expr, b: Expr) -> Expr:
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
    if isinstance(a, Const) and (
        (op == "mul" and a.value == 1) or (op == "add" and a.value == 0 and a.dtype.is_int)
    ):
        return b
    if op == "floordiv" and a.dtype.is_int and isinstance(b, Const) and b.value == 1:
        return a
    return Binary(op, a, b)


def _index(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds) -> Expr:
    match op:
        case "add":
            return _recombined(poly.added(poly.polynomial(a), poly.polynomial(b)))
        case "sub":
            return _recombined(poly.added(poly.polynomial(a), poly.polynomial(b), -1))
        case "mul":
            return _recombined(poly.multiplied(poly.polynomial(a), poly.polynomial(b)))
        case "floordiv":
            return _floordiv(a, b, bounds)
        case "mod":
            return _mod(a, b, bounds)
        case "min" | "max":
            if a is b or non_negative(b - a, bounds):
                return a if op == "min" else b
            if non_negative(a - b, bounds):
                return b if op == "min" else a
            return Binary(op, *sorted((a, b), key=poly.sort_key))
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return _comparison(op, a, b, bounds)
        case _:
            return Binary(op, a, b)


def _recombined(p: poly.Polynomial) -> Expr:
    """The expression of `p` after (x // d)*d + x % d -> x and x - (x // d)*d -> x % d."""
    for monomial, k in p.items():
        for atom in monomial:
            if isinstance(atom, Binary) and atom.op == "floordiv":
                remainder = _as_remainder(p, monomial, k, atom)
                if remainder is not None:
                    return _recombined(remainder)
            if not (isinstance(atom, Binary) and atom.op == "mod"):
                continue
            rest = poly.without_one(monomial, atom)
            scale: poly.Polynomial = {rest: k}
            quotient = poly.polynomial(_floordiv(atom.a, atom.b, NOTHING_KNOWN))
            whole = poly.multiplied(poly.multiplied(quotient, poly.polynomial(atom.b)), scale)
            if whole and all(p.get(m) == c for m, c in whole.items()):
                return _recombined(_replace_remainder(p, monomial, k, whole, poly.polynomial(atom.a), scale))
    return poly.expression(p)


def _as_remainder(p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary) -> poly.Polynomial | None:
    """`p` with s*x - s*d*(x // d) replaced by s*(x % d), where all those terms are in it; else None."""
    d = atom.b.value if isinstance(atom.b, Const) else 0
    if d <= 1 or k % int(d):
        return None
    rest = poly.without_one(monomial, atom)
    scale: poly.Polynomial = {rest: -k // int(d)}
    x = poly.multiplied(poly.polynomial(atom.a), scale)
    if any(p.get(m) != c for m, c in x.items()):
        return None
    left = poly.added(poly.added(p, {monomial: k}, -1), x, -1)
    return poly.added(left, poly.multiplied(poly.polynomial(_mod(atom.a, atom.b, NOTHING_KNOWN)), scale))


def _replace_remainder(
    p: poly.Polynomial, monomial: poly.Monomial, k: int, whole: poly.Polynomial, x: poly.Polynomial, s: poly.Polynomial
) -> poly.Polynomial:
    """p - s*(x % d) - s*(x // d)*d + s*x."""
    p = poly.added(p, {monomial: k}, -1)
    p = poly.added(p, whole, -1)
    return poly.added(p, poly.multiplied(x, s))


def _floordiv(a: Expr, b: Expr, bounds: Bounds) -> Expr:
    pa, pb = poly.polynomial(a), poly.polynomial(b)
    divisor = poly.constant_value(pb)
    if divisor == 0:
        return Binary("floordiv", a, b)
    if divisor == 1:
        return a
    if a is b:
        return const(1)
    quotient, rest = poly.divided(pa, pb)
    if (divisor is None and (len(rest) > len(pa) or not quotient)) or (divisor is not None and divisor < 0):
        quotient, rest = {}, pa
    remainder = poly.expression(rest)
    if not rest or _within(remainder, b, bounds):
        return poly.expression(quotient)
    inner: Expr = _reduced_quotient(rest, divisor, bounds) if divisor is not None and divisor > 0 else (
        Binary("floordiv", remainder, b)
    )
    return _recombined(poly.added(quotient, poly.polynomial(inner))) if quotient else inner


def _within(r: Expr, d: Expr, bounds: Bounds) -> bool:
    return non_negative(r, bounds) and non_negative(d - r - 1, bounds)


def _reduced_quotient(rest: poly.Polynomial, divisor: int, bounds: Bounds) -> Expr:
    """rest // divisor for a positive constant, after cancelling a common factor and nested quotients."""
    offset = rest.get((), 0)
    factor = divisor
    for m, c in rest.items():
        if m:
            factor = gcd(factor, c)
    if factor > 1:
        rest = {m: c // factor for m, c in rest.items()}
        rest = {m: c for m, c in rest.items() if c}
        return _floordiv(poly.expression(rest), const(divisor // factor), bounds)
    terms = [m for m in rest if m]
    if len(terms) == 1 and len(terms[0]) == 1 and rest[terms[0]] == 1:
        atom = terms[0][0]
        if isinstance(atom, Binary) and atom.op == "floordiv" and isinstance(atom.b, Const) and atom.b.value > 0:
            inner = int(atom.b.value)
            shifted = poly.expression(poly.added(poly.polynomial(atom.a), poly.constant(offset * inner)))
            return _floordiv(shifted, const(inner * divisor), bounds)
    return Binary("floordiv", poly.expression(rest), const(divisor))


def _mod(a: Expr, b: Expr, bounds: Bounds) -> Expr:
    pa, pb = poly.polynomial(a), poly.polynomial(b)
    divisor = poly.constant_value(pb)
    if divisor is not None and divisor <= 0:
        return Binary("mod", a, b)
    if divisor == 1 or a is b:
        return const(0)
    quotient, rest = poly.divided(pa, pb)
    if divisor is None and (len(rest) > len(pa) or not quotient):
        rest = pa
    if divisor is not None:
        # Coefficients count modulo the divisor; the one nearer to zero keeps the range small.
        rest = {m: c if abs(c) < divisor else c % divisor for m, c in rest.items()}
        rest = {m: c for m, c in rest.items() if c}
    remainder = poly.expression(rest)
    if not rest or _within(remainder, b, bounds):
        return remainder
    if divisor is not None:
        factor = divisor
        for c in rest.values():
            factor = gcd(factor, c)
        if factor > 1:
            smaller = poly.expression({m: c // factor for m, c in rest.items()})
            return _mod(smaller, const(divisor // factor), bounds) * factor
        if isinstance(remainder, Binary) and remainder.op == "mod" and isinstance(remainder.b, Const):
            outer = int(remainder.b.value)
            if outer > 0 and outer % divisor == 0:
                return _mod(remainder.a, b, bounds)
    return Binary("mod", remainder, b)


def _comparison(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds) -> Expr:
    match op:
        case "gt":
            return _comparison("lt", b, a, bounds)
        case "ge":
            return _comparison("le", b, a, bounds)
        case "lt":
            if non_negative(b - a - 1, bounds):
                return TRUE
            return FALSE if non_negative(a - b, bounds) else Binary("lt", a, b)
        case "le":
            if non_negative(b - a, bounds):
                return TRUE
            return FALSE if non_negative(a - b - 1, bounds) else Binary("le", a, b)
        case _:
            equal = a is b or (poly.constant_value(poly.polynomial(a - b)) == 0)
            apart = not equal and (non_negative(a - b - 1, bounds) or non_negative(b - a - 1, bounds))
            if equal or apart:
                return TRUE if equal == (op == "eq") else FALSE
            return Binary(op, *sorted((a, b), key=poly.sort_key))


def make_unary(op: UnaryOp, a: Expr) -> Expr:
    """The simplified operation on one expression."""
    if isinstance(a, Const):
        folded = fold_unary(op, a)
        if folded is not None:
            return folded
    if op == "not" and isinstance(a, Unary) and a.op == "not":
        return a.a
    if op == "neg" and a.dtype == int64:
        return make_binary("sub", const(0), a)
    if a.dtype.is_int and op in ("floor", "ceil", "round", "trunc"):
        return a
    return Unary(op, a)


def make_cast(dtype: DType, a: Expr) -> Expr:
    """The simplified conversion; sizes that went through floating point come back as integer expressions."""
    if a.dtype == dtype:
        return a
    if isinstance(a, Const):
        return fold_cast(dtype, a)
    if dtype == int64:
        whole = _integer_of_float(a)
        if whole is not None:
            return whole
        # A narrower integer made from an index and widened again is the index (sizes fit 31 bits).
        if isinstance(a, Cast) and a.dtype.is_int and a.a.dtype == int64 and a.dtype.bits == 32 and _fits32(a.a):
            return a.a
    return Cast(dtype, a)


def _fits32(e: Expr) -> bool:
    low, high = interval(e)
    return low is not None and high is not None and low >= -(1 << 31) and high < 1 << 31


def _integer_of_float(a: Expr) -> Expr | None:
    """int(round(float(x) * c)) for an integer x, where c or 1/c is whole: exact below 2**24, as sizes are."""
    rounding = "trunc"
    if isinstance(a, Unary) and a.op in ("floor", "ceil", "trunc", "round"):
        rounding, a = a.op, a.a
    top, scale = a, 1.0
    if isinstance(a, Binary) and a.op in ("mul", "div"):
        if isinstance(a.b, Const):
            by = float(a.b.value)
            top, scale = a.a, by if a.op == "mul" else 1.0 / by if by else 0.0
        elif isinstance(a.a, Const) and a.op == "mul":
            top, scale = a.b, float(a.a.value)
    if not (isinstance(top, Cast) and top.dtype.is_float and top.a.dtype == int64) or loads(top.a):
        return None
    x = top.a
    if scale == 0 or not np.isfinite(scale):
        return None
    if scale == int(scale):
        return x * int(scale)
    inverse = 1.0 / scale
    if inverse != int(inverse) or inverse < 0 or rounding == "round":
        return None
    if rounding == "trunc" and not non_negative(x):
        return None
    return (x + (int(inverse) - 1)) // int(inverse) if rounding == "ceil" else x // int(inverse)


def simplify(e: Expr, bounds: Bounds) -> Expr:
    """`e` simplified with what is known about its variables."""
    return _rebuilt(e, {}, bounds, {})


def substitute(e: Expr, mapping: Mapping[Var, Expr], bounds: Bounds = NOTHING_KNOWN) -> Expr:
    """`e` with variables replaced, simplified."""
    return _rebuilt(e, mapping, bounds, {}) if mapping else e


def _rebuilt(e: Expr, mapping: Mapping[Var, Expr], bounds: Bounds, done: dict[Expr, Expr]) -> Expr:
    known = done.get(e)
    if known is not None:
        return known
    match e:
        case Var():
            result = mapping.get(e, e)
        case Const():
            result = e
        case Binary(op, a, b):
            result = make_binary(op, _rebuilt(a, mapping, bounds, done), _rebuilt(b, mapping, bounds, done), bounds)
        case Select(cond, a, b):
            result = _select(cond, a, b, mapping, bounds, done)
        case Load(buffer, indices):
            result = Load(buffer, tuple(_rebuilt(i, mapping, bounds, done) for i in indices))
        case _:
            result = e.rebuild(tuple(_rebuilt(c, mapping, bounds, done) for c in e.children()))
    done[e] = result
    return result


def _select(
    cond: Expr, a: Expr, b: Expr, mapping: Mapping[Var, Expr], bounds: Bounds, done: dict[Expr, Expr]
) -> Expr:
    test = _rebuilt(cond, mapping, bounds, done)
    if isinstance(test, Const):
        return _rebuilt(a if test.value else b, mapping, bounds, done)
    # The taken arm may use the condition; its results must not leak to other places.
    inside = bounds.assuming(test)
    left = _rebuilt(a, mapping, inside, {} if inside is not bounds else done)
    right = _rebuilt(b, mapping, bounds, done)
    return left if left is right else Select(test, left, right)
