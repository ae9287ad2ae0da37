"""Smart constructors of expressions: folding, index algebra, and simplification under known bounds.

Index (int64) rules, for a divisor d > 0 (sizes are positive wherever an index is evaluated):
    (q*d + r) // d = q + r // d          (q*d + r) % d = r % d
    r // d = 0 and r % d = r             when 0 <= r < d is proved
    (g*y + r) // (g*c) = y // c          (g*y + r) % (g*c) = g*(y % c) + r, when 0 <= r < g is proved
    (g*y + k) // (g*c) = (y + k//g) // c (x // a) // c = x // (a*c)
    (x // d)*d + x % d = x               x - x % d = (x // d)*d
    (x // d % c)*d + x % d = x % (d*c)
    min/max/comparisons with a decided difference fold
Float rules keep IEEE semantics: only x*1, x/1, x-0 and literals fold.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import gcd

import numpy as np

from tilewright.expr import polynomial as poly
from tilewright.expr.bounds import NOTHING_KNOWN, Bounds, interval, opposite
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
from tilewright.expr.prover import evident
from tilewright.expr.scalar import fold_binary, fold_cast, fold_unary


def make_binary(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds = NOTHING_KNOWN) -> Expr:
    """The simplified operation on two expressions of one type."""
    if bounds is NOTHING_KNOWN and a.dtype is int64:
        return _remembered(op, a, b)
    return _made(op, a, b, bounds)


@lru_cache(maxsize=1 << 15)
def _remembered(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """Of which nothing is known: schedules make the same indices again and again."""
    return _made(op, a, b, NOTHING_KNOWN)


def _made(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds) -> Expr:
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
            return _recombined(poly.added(poly.polynomial(a), poly.polynomial(b)), bounds)
        case "sub":
            return _recombined(poly.added(poly.polynomial(a), poly.polynomial(b), -1), bounds)
        case "mul":
            return _recombined(poly.multiplied(poly.polynomial(a), poly.polynomial(b)), bounds)
        case "floordiv":
            return _floordiv(a, b, bounds)
        case "mod":
            return _mod(a, b, bounds)
        case "min" | "max":
            if a is b or evident(b - a, bounds):
                return a if op == "min" else b
            if evident(a - b, bounds):
                return b if op == "min" else a
            return Binary(op, *sorted((a, b), key=poly.sort_key))
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return _comparison(op, a, b, bounds)
        case _:
            return Binary(op, a, b)


def _recombined(p: poly.Polynomial, bounds: Bounds = NOTHING_KNOWN) -> Expr:
    """The expression of `p` after (x // d)*d + x % d -> x and x - (x // d)*d -> x % d."""
    for monomial, k in p.items():
        for atom in monomial:
            if isinstance(atom, Binary) and atom.op == "floordiv":
                whole = _as_whole(p, monomial, k, atom, bounds) if bounds.multiples else None
                if whole is not None:
                    return _recombined(whole, bounds)
                remainder = _as_remainder(p, monomial, k, atom)
                if remainder is not None:
                    return _recombined(remainder, bounds)
            if not (isinstance(atom, Binary) and atom.op == "mod"):
                continue
            rest = poly.without_one(monomial, atom)
            scale: poly.Polynomial = {rest: k}
            quotient = poly.polynomial(_floordiv(atom.a, atom.b, bounds))
            whole = poly.multiplied(poly.multiplied(quotient, poly.polynomial(atom.b)), scale)
            if whole and all(p.get(m) == c for m, c in whole.items()):
                return _recombined(_replace_remainder(p, monomial, k, whole, poly.polynomial(atom.a), scale), bounds)
            joined = _joined(p, monomial, k, atom)
            if joined is not None:
                return _recombined(joined, bounds)
            floor = _as_quotient(p, monomial, k, atom)
            if floor is not None:
                return _recombined(floor, bounds)
    return poly.expression(p)


def _as_whole(
    p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary, bounds: Bounds
) -> poly.Polynomial | None:
    """`p` with s*d*(x // d) replaced by s*x, where x is known to be a multiple of d; else None."""
    d = int(atom.b.value) if isinstance(atom.b, Const) else 0
    x = poly.polynomial(atom.a)
    if d <= 1 or k % d or not all(_is_multiple(m, c, d, bounds) for m, c in x.items()):
        return None
    scale: poly.Polynomial = {poly.without_one(monomial, atom): k // d}
    return poly.added(poly.added(p, {monomial: k}, -1), poly.multiplied(x, scale))


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


def _joined(p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary) -> poly.Polynomial | None:
    """`p` with s*(y // d)*d + s*(x % d) replaced by s*y and s*((y // d) % c)*d + s*(x % d) by s*(y % (d*c)), where
    x % d is y % d, perhaps under another name; else None."""
    d = atom.b
    scale: poly.Polynomial = {poly.without_one(monomial, atom): k}
    for high in dict.fromkeys(a for m in p for a in m):
        c, q = (high.b, high.a) if isinstance(high, Binary) and high.op == "mod" else (None, high)
        if not (isinstance(q, Binary) and q.op == "floordiv" and q.b is d):
            continue
        whole = poly.multiplied(poly.multiplied({(high,): 1}, poly.polynomial(d)), scale)
        if all(p.get(m) == n for m, n in whole.items()) and _is_remainder(q.a, atom):
            y = q.a if c is None else _mod(q.a, make_binary("mul", d, c), NOTHING_KNOWN)
            return _replace_remainder(p, monomial, k, whole, poly.polynomial(y), scale)
    return None


def _is_remainder(x: Expr, atom: Binary) -> bool:
    """Whether x % d is `atom`, which is y % d: x and y are equal, or differ by a multiple of d."""
    if _mod(x, atom.b, NOTHING_KNOWN) is atom:
        return True
    return _mod(make_binary("sub", x, atom.a), atom.b, NOTHING_KNOWN) is const(0)


def _as_quotient(p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary) -> poly.Polynomial | None:
    """`p` with s*x - s*(x % d) replaced by s*d*(x // d), where it has at least those terms but x's constant; else None.

    So sizes padded to a multiple of d look alike, whether they came as x + (d - x % d) or as ceil(x / d)*d.
    """
    scale: poly.Polynomial = {poly.without_one(monomial, atom): -k}
    x = poly.multiplied(poly.polynomial(atom.a), scale)
    if not any(x) or not all(0 < c <= p.get(m, 0) or p.get(m, 0) <= c < 0 for m, c in x.items() if m):
        return None
    left = poly.added(poly.added(p, {monomial: k}, -1), x, -1)
    quotient = poly.polynomial(_floordiv(atom.a, atom.b, NOTHING_KNOWN))
    return poly.added(left, poly.multiplied(poly.multiplied(quotient, poly.polynomial(atom.b)), scale))


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
    positive = divisor > 0 if divisor is not None else _counts_as_positive(b, bounds)
    coarse = _coarser(rest, pb, bounds) if positive else None
    if coarse is not None:
        y, _, d, _ = coarse
        return _recombined(poly.added(quotient, poly.polynomial(_floordiv(y, d, bounds))))
    if divisor is not None and positive:
        whole = {m: c for m, c in rest.items() if m and _is_multiple(m, c, divisor, bounds)}
        if whole and len(whole) < len(rest):
            exact, left = (_floordiv(poly.expression(p), b, bounds) for p in (whole, poly.added(rest, whole, -1)))
            return make_binary("add", poly.expression(quotient), make_binary("add", exact, left))
        inner = _reduced_quotient(rest, divisor, bounds)
    else:
        nested = _nested_quotient(rest, b, bounds) if positive else None
        inner = Binary("floordiv", remainder, b) if nested is None else nested
    return _recombined(poly.added(quotient, poly.polynomial(inner))) if quotient else inner


def _counts_as_positive(d: Expr, bounds: Bounds) -> bool:
    """Whether a divisor is known not to be negative; nothing is divided by zero."""
    low = interval(d, bounds)[0]
    return low is not None and low >= 0


def _is_multiple(m: poly.Monomial, c: int, divisor: int, bounds: Bounds) -> bool:
    """Whether c*m is known to be a multiple of a number."""
    for atom in m if bounds.multiples else ():
        c *= bounds.multiples.get(atom, 1)
    return c % divisor == 0


def _coarser(p: poly.Polynomial, d: poly.Polynomial, bounds: Bounds) -> tuple[Expr, Expr, Expr, Expr] | None:
    """y, g, c, r with p = g*y + r, d = g*c and 0 <= r < g, r not constant; None where there is no such factor g."""
    if len(d) != 1:
        return None
    ((whole, size),) = d.items()
    factors = dict.fromkeys((gcd(c, size), poly.common(m, whole)) for m, c in p.items() if m)
    for factor, part in sorted(factors, key=lambda f: (len(f[1]), f[0]), reverse=True):
        if (factor, part) in ((1, ()), (size, whole)):
            continue
        y, r = poly.divided_by_term(p, part, factor)
        if not any(r) or not y:
            continue
        g = poly.expression({part: factor})
        if _within(poly.expression(r), g, bounds):
            (c, _) = poly.divided_by_term(d, part, factor)
            return poly.expression(y), g, poly.expression(c), poly.expression(r)
    return None


def _within(r: Expr, d: Expr, bounds: Bounds) -> bool:
    return evident(r, bounds) and evident(d - r - 1, bounds)


def _reduced_quotient(rest: poly.Polynomial, divisor: int, bounds: Bounds) -> Expr:
    """rest // divisor for a positive constant, after cancelling a common factor and nested quotients."""
    factor = divisor
    for m, c in rest.items():
        if m:
            factor = gcd(factor, c)
    if factor > 1:
        rest = {m: c // factor for m, c in rest.items()}
        rest = {m: c for m, c in rest.items() if c}
        return _floordiv(poly.expression(rest), const(divisor // factor), bounds)
    nested = _nested_quotient(rest, const(divisor), bounds)
    if nested is not None:
        return nested
    return Binary("floordiv", poly.expression(rest), const(divisor))


def _nested_quotient(p: poly.Polynomial, d: Expr, bounds: Bounds) -> Expr | None:
    """(x // a + k) // d as (x + k*a) // (a*d), where `p` has that form; else None."""
    atom = next((m[0] for m, c in p.items() if len(m) == 1 and c == 1), None)
    if not (isinstance(atom, Binary) and atom.op == "floordiv") or any(m and m != (atom,) for m in p):
        return None
    if not _counts_as_positive(atom.b, bounds):
        return None
    shifted = poly.added(poly.polynomial(atom.a), poly.multiplied(poly.polynomial(atom.b), poly.constant(p.get((), 0))))
    return _floordiv(poly.expression(shifted), atom.b * d, bounds)


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
        rest = {m: c for m, c in rest.items() if not _is_multiple(m, c, divisor, bounds)}
        # Coefficients count modulo the divisor, but once changed they hide that x // d and x % d are digits of one x.
        small = {m: c if abs(c) < divisor else c % divisor for m, c in rest.items()}
        decided = _decided_remainder(small, b, bounds)
        rest = small if len(rest) == 1 else rest
    else:
        decided = _decided_remainder(rest, b, bounds)
    if decided is not None:
        return decided
    if divisor is not None:
        factor = gcd(divisor, *rest.values())
        if factor > 1:
            smaller = poly.expression({m: c // factor for m, c in rest.items()})
            return _mod(smaller, const(divisor // factor), bounds) * factor
    remainder = poly.expression(rest)
    if divisor is not None and isinstance(remainder, Binary) and remainder.op == "mod":
        outer = int(remainder.b.value) if isinstance(remainder.b, Const) else 0
        if outer > 0 and outer % divisor == 0:
            return _mod(remainder.a, b, bounds)
    return Binary("mod", remainder, b)


def _decided_remainder(p: poly.Polynomial, d: Expr, bounds: Bounds) -> Expr | None:
    """p % d where p is in 0..d-1, or where its lower digits are split off; else None."""
    remainder = poly.expression(p)
    if not p or _within(remainder, d, bounds):
        return remainder
    coarse = _coarser(p, poly.polynomial(d), bounds) if _counts_as_positive(d, bounds) else None
    if coarse is None:
        return None
    y, g, high, r = coarse
    return _mod(y, high, bounds) * g + r


def _comparison(op: BinaryOp, a: Expr, b: Expr, bounds: Bounds) -> Expr:
    match op:
        case "gt":
            return _comparison("lt", b, a, bounds)
        case "ge":
            return _comparison("le", b, a, bounds)
        case "lt":
            if evident(b - a - 1, bounds):
                return TRUE
            return FALSE if evident(a - b, bounds) else Binary("lt", a, b)
        case "le":
            if evident(b - a, bounds):
                return TRUE
            return FALSE if evident(a - b - 1, bounds) else Binary("le", a, b)
        case _:
            equal = a is b or (poly.constant_value(poly.polynomial(a - b)) == 0)
            apart = not equal and (evident(a - b - 1, bounds) or evident(b - a - 1, bounds))
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
    against = opposite(a) if op == "not" else None
    if isinstance(against, Binary):
        return make_binary(against.op, against.a, against.b)
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
    if rounding == "trunc" and not evident(x):
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
        case Binary("and" | "or" as op, a, b) if bounds is not NOTHING_KNOWN and e.dtype == boolean:
            result = _condition(op, a, b, mapping, bounds)
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


def _condition(op: BinaryOp, a: Expr, b: Expr, mapping: Mapping[Var, Expr], bounds: Bounds) -> Expr:
    """A conjunction or disjunction; each side matters only where the other one does not decide."""

    def inside(other: Expr) -> Bounds:
        return _where(other, op == "and", bounds)

    left = _rebuilt(a, mapping, bounds, {})
    right = _rebuilt(b, mapping, inside(left), {})
    return make_binary(op, _rebuilt(left, {}, inside(right), {}), right)


def _where(c: Expr, holds: bool, bounds: Bounds) -> Bounds:
    """What is known where a condition holds, or where it does not."""
    condition = c if holds else opposite(c)
    return bounds if condition is None else bounds.assuming(condition)


def _select(
    cond: Expr, a: Expr, b: Expr, mapping: Mapping[Var, Expr], bounds: Bounds, done: dict[Expr, Expr]
) -> Expr:
    test = _rebuilt(cond, mapping, bounds, done)
    if isinstance(test, Const):
        return _rebuilt(a if test.value else b, mapping, bounds, done)
    # The arms may use the condition; their results must not leak to other places.
    holds, fails = (_where(test, taken, bounds) for taken in (True, False))
    left = _rebuilt(a, mapping, holds, {} if holds is not bounds else done)
    right = _rebuilt(b, mapping, fails, {} if fails is not bounds else done)
    return left if left is right else Select(test, left, right)
