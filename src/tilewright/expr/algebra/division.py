"""Simplification of sums, quotients and remainders of int64 expressions.

For a divisor d > 0 (sizes are positive wherever an index is evaluated):
    (q*d + r) // d = q + r // d          (q*d + r) % d = r % d
    r // d = 0 and r % d = r             when 0 <= r < d is proved
    (g*y + r) // (g*c) = y // c          (g*y + r) % (g*c) = g*(y % c) + r, when 0 <= r < g is proved
    (g*y + k) // (g*c) = (y + k//g) // c (x // a) // c = x // (a*c)
    (x // d)*d + x % d = x               x - x % d = (x // d)*d
    (y*a + z) // (a*d) = (y + z // a) // d, tried when matching a remainder
    (x // d % c)*d + x % d = x % (d*c)
    (d*t + r) // d = t                   for the tile index t, see `factoring.tile_and_offset`
and where n % d == 0 was assumed (`Bounds.multiples`):
    (n*k + r) // d = n*k // d + r // d   (n*k + r) % d = r % d          (n // d)*d = n
The rules hold over the integers, so they apply where the operands do not wrap (`intervals.py`).
Quotient and remainder of one dividend keep it: a*119 + b is not reduced in (a*119 + b) % 28, so that it stays
recognisable beside (a*119 + b) // 28.
"""

from collections.abc import Iterator
from math import gcd

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.elimination import divisor_product
from tilewright.expr.algebra.factoring import is_in_range, split_common_factor, tile_and_offset
from tilewright.expr.algebra.intervals import has_no_wrap, is_interpretable, is_positive_divisor
from tilewright.expr.nodes import Binary, Const, Expr, const
from tilewright.expr.traversal import has_loads


def recombine(p: poly.Polynomial, bounds: Bounds = NO_BOUNDS) -> Expr:
    """The expression of `p` after (x // d)*d + x % d -> x and x - (x // d)*d -> x % d."""
    for monomial, k in p.items():
        for atom in monomial:
            if not is_interpretable(atom, bounds):
                continue
            if isinstance(atom, Binary) and atom.op == "floordiv":
                expanded = _cancel_exact_quotient(p, monomial, k, atom, bounds) if bounds.multiples else None
                if expanded is not None:
                    return recombine(expanded, bounds)
                remainder = _fold_to_remainder(p, monomial, k, atom)
                if remainder is not None:
                    return recombine(remainder, bounds)
            if not (isinstance(atom, Binary) and atom.op == "mod"):
                continue
            cofactor = poly.drop_atom(monomial, atom)
            scale: poly.Polynomial = {cofactor: k}
            for quotient in _equal_quotients(atom, bounds):
                expanded = poly.multiply(poly.multiply(poly.polynomial(quotient), poly.polynomial(atom.b)), scale)
                if expanded and all(p.get(m) == c for m, c in expanded.items()):
                    return recombine(
                        _replace_remainder(p, monomial, k, expanded, poly.polynomial(atom.a), scale), bounds
                    )
            merged = _join_digits(p, monomial, k, atom, bounds)
            if merged is not None:
                return recombine(merged, bounds)
            with_quotient = _fold_to_quotient(p, monomial, k, atom)
            if with_quotient is not None:
                return recombine(with_quotient, bounds)
    return poly.expression(p)


def _equal_quotients(atom: Binary, bounds: Bounds) -> Iterator[Expr]:
    """Forms of x // d for x % d: the simplified one, and (y*a + z) // (a*d) where x = y + z // a."""
    yield floordiv(atom.a, atom.b, bounds)
    x = poly.polynomial(atom.a)
    for m, c in x.items() if len(x) > 1 else ():
        inner = m[0] if len(m) == 1 and c == 1 else None
        if not (isinstance(inner, Binary) and inner.op == "floordiv" and is_positive_divisor(inner.b, bounds)):
            continue
        numerator_rest = poly.multiply(poly.add(x, {m: c}, -1), poly.polynomial(inner.b))
        numerator = poly.expression(poly.add(numerator_rest, poly.polynomial(inner.a)))
        divisor = divisor_product(inner.b, atom.b)
        if divisor is not None and is_interpretable(inner, bounds) and has_no_wrap(numerator, bounds):
            yield floordiv(numerator, divisor, bounds)


def _cancel_exact_quotient(
    p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary, bounds: Bounds
) -> poly.Polynomial | None:
    """`p` with s*d*(x // d) replaced by s*x where x is known to be a multiple of d; else None."""
    d = int(atom.b.value) if isinstance(atom.b, Const) else 0
    x = poly.polynomial(atom.a)
    if d <= 1 or k % d or not all(_is_multiple(m, c, d, bounds) for m, c in x.items()):
        return None
    scale: poly.Polynomial = {poly.drop_atom(monomial, atom): k // d}
    return poly.add(poly.add(p, {monomial: k}, -1), poly.multiply(x, scale))


def _fold_to_remainder(p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary) -> poly.Polynomial | None:
    """`p` with s*x - s*d*(x // d) replaced by s*(x % d) where it has all those terms; else None."""
    d = atom.b.value if isinstance(atom.b, Const) else 0
    if d <= 1 or k % int(d):
        return None
    cofactor = poly.drop_atom(monomial, atom)
    scale: poly.Polynomial = {cofactor: -k // int(d)}
    x = poly.multiply(poly.polynomial(atom.a), scale)
    if any(p.get(m) != c for m, c in x.items()):
        return None
    others = poly.add(poly.add(p, {monomial: k}, -1), x, -1)
    return poly.add(others, poly.multiply(poly.polynomial(mod(atom.a, atom.b, NO_BOUNDS)), scale))


def _join_digits(
    p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary, bounds: Bounds
) -> poly.Polynomial | None:
    """`p` with two digits of one number merged, where x % d equals y % d; else None.

    s*(y // d)*d + s*(x % d) becomes s*y, and s*((y // d) % c)*d + s*(x % d) becomes s*(y % (d*c)).
    """
    d = atom.b
    scale: poly.Polynomial = {poly.drop_atom(monomial, atom): k}
    for high in dict.fromkeys(a for m in p for a in m):
        c, q = (high.b, high.a) if isinstance(high, Binary) and high.op == "mod" else (None, high)
        if not (isinstance(q, Binary) and q.op == "floordiv" and q.b is d and is_interpretable(q, bounds)):
            continue
        modulus = d if c is None else divisor_product(d, c)
        if modulus is None:
            continue
        product = poly.multiply(poly.multiply({(high,): 1}, poly.polynomial(d)), scale)
        if all(p.get(m) == n for m, n in product.items()) and _is_remainder(q.a, atom):
            y = q.a if c is None else mod(q.a, modulus, NO_BOUNDS)
            return _replace_remainder(p, monomial, k, product, poly.polynomial(y), scale)
    return None


def _is_remainder(x: Expr, atom: Binary) -> bool:
    """Whether x % d is `atom`, which is y % d: x and y are equal, or differ by a multiple of d."""
    if mod(x, atom.b, NO_BOUNDS) is atom:
        return True
    return mod(x - atom.a, atom.b, NO_BOUNDS) is const(0)


def _fold_to_quotient(p: poly.Polynomial, monomial: poly.Monomial, k: int, atom: Binary) -> poly.Polynomial | None:
    """`p` with s*x - s*(x % d) replaced by s*d*(x // d) where it has those terms (x's constant aside); else None.

    Sizes padded to a multiple of d thus get one form, whether written x + (d - x % d) or ceil(x / d)*d.
    """
    scale: poly.Polynomial = {poly.drop_atom(monomial, atom): -k}
    x = poly.multiply(poly.polynomial(atom.a), scale)
    if not any(x) or not all(0 < c <= p.get(m, 0) or p.get(m, 0) <= c < 0 for m, c in x.items() if m):
        return None
    others = poly.add(poly.add(p, {monomial: k}, -1), x, -1)
    quotient = poly.polynomial(floordiv(atom.a, atom.b, NO_BOUNDS))
    return poly.add(others, poly.multiply(poly.multiply(quotient, poly.polynomial(atom.b)), scale))


def _replace_remainder(
    p: poly.Polynomial,
    monomial: poly.Monomial,
    k: int,
    product: poly.Polynomial,
    x: poly.Polynomial,
    s: poly.Polynomial,
) -> poly.Polynomial:
    """p - s*(x % d) - s*(x // d)*d + s*x."""
    p = poly.add(p, {monomial: k}, -1)
    p = poly.add(p, product, -1)
    return poly.add(p, poly.multiply(x, s))


def floordiv(a: Expr, b: Expr, bounds: Bounds) -> Expr:
    """The simplified quotient, rounded down."""
    pa, pb = poly.polynomial(a), poly.polynomial(b)
    divisor = poly.constant_value(pb)
    if divisor == 0:
        return Binary("floordiv", a, b)
    if divisor == 1:
        return a
    if not _can_divide(a, b, bounds):
        return Binary("floordiv", a, b)
    if a is b:
        return const(1)
    quotient, remainder = poly.divide(pa, pb)
    if (divisor is None and (len(remainder) > len(pa) or not quotient)) or (divisor is not None and divisor < 0):
        quotient, remainder = {}, pa
    remainder_expr = poly.expression(remainder)
    if not has_no_wrap(remainder_expr, bounds):
        quotient, remainder, remainder_expr = {}, pa, a
    if not remainder or is_in_range(remainder_expr, b, bounds):
        return poly.expression(quotient)
    if divisor is not None and divisor > 0:
        reduced = _reduce_coefficients(remainder, divisor)
        reduced_expr = poly.expression(reduced)
        # The same decision as in `mod`, so that both are digits of one number.
        can_reduce = reduced != remainder and (not has_loads(a) or has_no_wrap(reduced_expr, bounds))
        if can_reduce and is_in_range(reduced_expr, b, bounds):
            multiples = {m: c // divisor for m, c in poly.add(remainder, reduced, -1).items()}
            return poly.expression(poly.add(quotient, multiples))
    if divisor is not None and bounds.facts and is_in_range(remainder_expr - b, b, bounds):
        return poly.expression(quotient) + 1  # hidden by the constant term of the remainder, in [0, d)
    positive = divisor > 0 if divisor is not None else is_positive_divisor(b, bounds)
    factors = split_common_factor(remainder, pb, bounds) if positive else None
    if factors is not None:
        y, _, d, _ = factors
        return recombine(poly.add(quotient, poly.polynomial(floordiv(y, d, bounds))))
    tiled = tile_and_offset(pa, pb, bounds) if positive else None
    if tiled is not None:
        return tiled[0]
    if divisor is not None and positive:
        multiples = {m: c for m, c in remainder.items() if m and _is_multiple(m, c, divisor, bounds)}
        summands = [poly.expression(p) for p in (multiples, poly.add(remainder, multiples, -1))]
        if multiples and len(multiples) < len(remainder) and all(has_no_wrap(p, bounds) for p in summands):
            exact_quotient, others = (floordiv(p, b, bounds) for p in summands)
            return poly.expression(quotient) + (exact_quotient + others)
        inner_quotient = _cancel_quotient_factor(remainder, divisor, bounds)
    else:
        flattened = _flatten_nested_quotient(remainder, b, bounds) if positive else None
        inner_quotient = Binary("floordiv", remainder_expr, b) if flattened is None else flattened
    return recombine(poly.add(quotient, poly.polynomial(inner_quotient))) if quotient else inner_quotient


def _reduce_coefficients(p: poly.Polynomial, divisor: int) -> poly.Polynomial:
    """A polynomial congruent to `p` modulo the divisor, with coefficients below it in magnitude."""
    reduced = {m: c if abs(c) < divisor else c % divisor for m, c in p.items()}
    return {m: c for m, c in reduced.items() if c}


def _can_divide(a: Expr, b: Expr, bounds: Bounds) -> bool:
    """Whether the rules apply: dividend and divisor do not wrap, and a data-dependent divisor is positive."""
    return has_no_wrap(a, bounds) and (not has_loads(b) or is_positive_divisor(b, bounds))


def _is_multiple(m: poly.Monomial, c: int, divisor: int, bounds: Bounds) -> bool:
    """Whether c*m is known to be a multiple of `divisor`."""
    for atom in m if bounds.multiples else ():
        c *= bounds.multiples.get(atom, 1)
    return c % divisor == 0


def _cancel_quotient_factor(dividend: poly.Polynomial, divisor: int, bounds: Bounds) -> Expr:
    """dividend // divisor for a positive constant, with common factors cancelled and nested quotients flattened."""
    factor = divisor
    for m, c in dividend.items():
        if m:
            factor = gcd(factor, c)
    if factor > 1:
        dividend = {m: c // factor for m, c in dividend.items()}
        dividend = {m: c for m, c in dividend.items() if c}
        return floordiv(poly.expression(dividend), const(divisor // factor), bounds)
    flattened = _flatten_nested_quotient(dividend, const(divisor), bounds)
    if flattened is not None:
        return flattened
    return Binary("floordiv", poly.expression(dividend), const(divisor))


def _flatten_nested_quotient(p: poly.Polynomial, d: Expr, bounds: Bounds) -> Expr | None:
    """(x // a + k) // d as (x + k*a) // (a*d) where `p` is x // a + k; else None."""
    atom = next((m[0] for m, c in p.items() if len(m) == 1 and c == 1), None)
    if not (isinstance(atom, Binary) and atom.op == "floordiv") or any(m and m != (atom,) for m in p):
        return None
    divisor = divisor_product(atom.b, d)
    if divisor is None or not is_positive_divisor(atom.b, bounds):
        return None
    if not p.get((), 0):
        return floordiv(atom.a, divisor, bounds)
    shifted = poly.add(poly.polynomial(atom.a), poly.multiply(poly.polynomial(atom.b), poly.constant(p.get((), 0))))
    numerator = poly.expression(shifted)
    if not (has_no_wrap(atom.a, bounds) and has_no_wrap(numerator, bounds)):
        return None
    return floordiv(numerator, divisor, bounds)


def mod(a: Expr, b: Expr, bounds: Bounds) -> Expr:
    """The simplified remainder of `floordiv`."""
    pa, pb = poly.polynomial(a), poly.polynomial(b)
    divisor = poly.constant_value(pb)
    if divisor is not None and divisor <= 0:
        return Binary("mod", a, b)
    if divisor == 1:
        return const(0)
    if not _can_divide(a, b, bounds):
        return Binary("mod", a, b)
    if a is b:
        return const(0)
    quotient, remainder = poly.divide(pa, pb)
    if divisor is None and (len(remainder) > len(pa) or not quotient):
        remainder = pa
    if divisor is not None:
        remainder = {m: c for m, c in remainder.items() if not _is_multiple(m, c, divisor, bounds)}
        # Reduced coefficients would hide that x // d and x % d are digits of one x: several terms keep theirs.
        reduced = _reduce_coefficients(remainder, divisor)
        if has_loads(a) and not all(has_no_wrap(poly.expression(p), bounds) for p in (remainder, reduced)):
            return Binary("mod", a, b)
        resolved = _resolve_remainder(reduced, b, bounds)
        remainder = reduced if len(remainder) == 1 else remainder
    else:
        remainder = remainder if has_no_wrap(poly.expression(remainder), bounds) else pa
        resolved = _resolve_remainder(remainder, b, bounds)
    if resolved is not None:
        return resolved
    tiled = tile_and_offset(pa, pb, bounds) if divisor is not None or is_positive_divisor(b, bounds) else None
    if tiled is not None:
        return tiled[1]
    if divisor is not None:
        factor = gcd(divisor, *remainder.values())
        if factor > 1:
            quotient_part = poly.expression({m: c // factor for m, c in remainder.items()})
            return mod(quotient_part, const(divisor // factor), bounds) * factor
    remainder_expr = poly.expression(remainder)
    if divisor is not None and isinstance(remainder_expr, Binary) and remainder_expr.op == "mod":
        inner_divisor = int(remainder_expr.b.value) if isinstance(remainder_expr.b, Const) else 0
        if inner_divisor > 0 and inner_divisor % divisor == 0:
            return mod(remainder_expr.a, b, bounds)
    return Binary("mod", remainder_expr, b)


def _resolve_remainder(p: poly.Polynomial, d: Expr, bounds: Bounds) -> Expr | None:
    """p % d where p is in 0 .. d - 1 or a common factor can be split off; else None."""
    remainder = poly.expression(p)
    if not p or is_in_range(remainder, d, bounds):
        return remainder
    if not is_positive_divisor(d, bounds):
        return None
    factors = split_common_factor(p, poly.polynomial(d), bounds)
    if factors is None:
        return None
    y, g, c, r = factors
    return mod(y, c, bounds) * g + r
