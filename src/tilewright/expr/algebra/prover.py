"""Proofs over polynomials from what `bounds.py` knows about variables: the quick means, tried first.

The prover eliminates one variable after the other, the innermost first, replacing it by the end of its range
that makes the goal hardest. What it leaves open `elimination.py` tries to decide, but not for simplification, which
asks too often. All of this is sound, not complete: False means "not proved".

Proofs are about integers: the question is translated by those who know that its sides are exact, and atoms are opened
only where their operands are (`intervals.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import gcd

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds, ProofResult, difference, facts_of
from tilewright.expr.algebra.counterexample import has_counterexample
from tilewright.expr.algebra.elimination import is_implied, quotient_of
from tilewright.expr.algebra.intervals import (
    atom_interval,
    has_no_wrap,
    is_interpretable,
    is_positive_divisor,
    polynomial_interval,
)
from tilewright.expr.algebra.polynomial import (
    Monomial,
    Polynomial,
    add,
    divide,
    divide_by_term,
    drop_atom,
    multiply,
    polynomial,
    sort_key,
)
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.traversal import free_vars, has_loads

_MAX_STEPS = 60
"""Steps after which a proof is given up, so that hopeless goals do not cost time."""


def _split_linear(p: Polynomial, atom: Expr) -> tuple[Polynomial, Polynomial] | None:
    """p = c * atom + rest, or None when `p` is not linear in `atom`."""
    c: Polynomial = {}
    rest: Polynomial = {}
    for monomial, k in p.items():
        count = sum(1 for a in monomial if a is atom)
        if count == 0:
            rest[monomial] = k
        elif count == 1:
            without: Monomial = tuple(a for a in monomial if a is not atom)
            c[without] = c.get(without, 0) + k
        else:
            return None
    return c, rest


def _atom_bounds(atom: Expr, bounds: Bounds) -> tuple[Polynomial | None, Polynomial | None]:
    """Polynomials that bound an atom from below and above."""
    if isinstance(atom, Var):
        if atom in bounds.ranges:
            lo, hi = bounds.ranges[atom]
            return polynomial(lo), polynomial(hi)
        low = None if atom.lo is None else {(): atom.lo}
        return low, None if atom.hi is None else {(): atom.hi}
    if (
        isinstance(atom, Binary)
        and atom.op == "mod"
        and _is_provably_positive(atom.b, bounds)
        and is_interpretable(atom, bounds)
    ):
        return {}, add(polynomial(atom.b), {(): 1}, -1)
    if (
        isinstance(atom, Binary)
        and atom.op == "floordiv"
        and isinstance(atom.a, Var | Binary)
        and is_interpretable(atom, bounds)
    ):
        ends = _quotient_bounds(atom.a, atom.b, bounds)
        if ends is not None:
            return ends
    low, high = atom_interval(atom, bounds)
    return (None if low is None else {(): low}), (None if high is None else {(): high})


def _quotient_bounds(a: Expr, divisor: Expr, bounds: Bounds) -> tuple[Polynomial, Polynomial] | None:
    """Ends of a // divisor where a runs over 0 .. q*divisor - 1, as the variable of a fused loop does: 0 and q - 1."""
    if not (isinstance(a, Var) or (isinstance(a, Binary) and a.op == "floordiv")):
        return None
    if isinstance(a, Var) and a not in bounds.ranges:
        return None
    low, high = _atom_bounds(a, bounds)
    if (
        low is None
        or high is None
        or polynomial_interval(low, bounds)[0] != 0
        or not _is_provably_positive(divisor, bounds)
    ):
        return None
    quotient, rest = divide(high, polynomial(divisor))
    return ({}, add(quotient, {(): 1}, -1)) if rest == {(): -1} else None


def _relax_quotient(p: Polynomial, bounds: Bounds) -> Polynomial | None:
    """A polynomial whose sign decides that of `p`: one term k*m*floor(a/d) gives way to a-d+1 <= d*floor(a/d) <= a.

    Where d does not divide k, `p` is scaled by s = d / gcd(k, d) first: p is a whole number, so s*p + s - 1 >= 0
    proves p >= 0.
    """
    candidates: list[tuple[str, Monomial, Binary, int]] = []
    for monomial in p:
        for atom in monomial:
            if not (isinstance(atom, Binary) and atom.op == "floordiv" and isinstance(atom.b, Const)):
                continue
            if not is_interpretable(atom, bounds):
                continue
            d = int(atom.b.value)
            rest = drop_atom(monomial, atom)
            sign = polynomial_interval({rest: 1}, bounds)[0] if rest else 1
            if d > 0 and sign is not None and sign >= 0:
                candidates.append((sort_key(atom), monomial, atom, d))
    if not candidates:
        return None
    # A quotient of quotients goes first: what it gives way to may cancel against the inner ones.
    _, monomial, atom, d = max(candidates, key=lambda c: (len(c[0]), c[0]))
    k = p[monomial]
    rest = drop_atom(monomial, atom)
    factor = d // gcd(k, d)
    scaled = add(multiply(p, {(): factor}), {(): factor - 1} if factor > 1 else {})
    scale: Polynomial = {rest: k * factor // d}
    bound = polynomial(atom.a) if k < 0 else add(polynomial(atom.a), {(): d - 1}, -1)
    return add(add(scaled, {monomial: k * factor}, -1), multiply(scale, bound))


def _expand_remainders(p: Polynomial, bounds: Bounds) -> Polynomial:
    """`p` with x % d written as y - d*(y // d) wherever y // d occurs too, also in another remainder, so that they
    cancel; y is x or differs from it by a multiple of d."""
    atoms = {a for m in p for a in m if isinstance(a, Binary) and is_interpretable(a, bounds)}
    remainders = {a: quotient_of(a) for a in atoms if a.op == "mod"}
    quotients = [*(a for a in atoms if a.op == "floordiv"), *remainders.values()]
    for monomial, k in p.items():
        for atom in monomial:
            own = remainders.get(atom) if isinstance(atom, Binary) else None
            if not isinstance(atom, Binary) or own is None:
                continue
            # the quotient may be written with other operands, as (x // 2) // 4 is x // 8: those of the remainder count
            found = (atom.a, own) if quotients.count(own) > 1 else _congruent_quotient(atom, quotients, bounds)
            if found is not None:
                y, quotient = found
                rest = drop_atom(monomial, atom)
                value = add(polynomial(y), multiply({(quotient,): 1}, polynomial(atom.b)), -1)
                return _expand_remainders(add(add(p, {monomial: k}, -1), multiply(value, {rest: k})), bounds)
    return p


def _congruent_quotient(remainder: Binary, quotients: Sequence[Expr], bounds: Bounds) -> tuple[Expr, Expr] | None:
    """(y, y // d), another quotient than that of x % d, where x - y is a multiple of d; None where there is none."""
    for q in quotients:
        if isinstance(q, Binary) and q.b is remainder.b and q.a is not remainder.a:
            d = polynomial(q.b)
            if d and not divide(_reduce_modulo(add(polynomial(q.a), polynomial(remainder.a), -1), d, bounds), d)[1]:
                return q.a, q
    return None


def _reduce_modulo(p: Polynomial, d: Polynomial, bounds: Bounds) -> Polynomial:
    """`p` with z for every z % m where m is a multiple of d: they differ by a multiple of d."""
    for monomial, k in p.items():
        for atom in monomial:
            if not (isinstance(atom, Binary) and atom.op == "mod" and is_interpretable(atom, bounds)):
                continue
            if not divide(polynomial(atom.b), d)[1]:
                whole = multiply(polynomial(atom.a), {drop_atom(monomial, atom): k})
                return _reduce_modulo(add(add(p, {monomial: k}, -1), whole), d, bounds)
    return p


def _is_provably_positive(e: Expr, bounds: Bounds) -> bool:
    """Whether a divisor counts as positive: by its interval, or, as a product of sizes may, evidently."""
    if is_positive_divisor(e, bounds):
        return True
    return isinstance(e, Binary) and is_trivially_non_negative(e - 1 if has_loads(e) else e, bounds)


def _quotient_cases(p: Polynomial, bounds: Bounds) -> Iterator[tuple[Polynomial, Polynomial]]:
    """Pairs of polynomials that prove `p` if both are >= 0, for a divisor d > 0: from p = c*(u - a // d) + r with
    a // d <= u <=> a <= u*d + d - 1, or from p = c*(a // d - u) + r with a // d >= u <=> a >= u*d."""
    for atom in dict.fromkeys(a for m in p for a in m):
        if not (isinstance(atom, Binary) and atom.op == "floordiv" and _is_provably_positive(atom.b, bounds)):
            continue
        if not is_interpretable(atom, bounds):
            continue
        linear = _split_linear(p, atom)
        if linear is None:
            continue
        c, rest = linear
        a, d = polynomial(atom.a), polynomial(atom.b)
        low, high = polynomial_interval(c, bounds)
        if high is not None and high < 0:
            u, r = divide(rest, multiply(c, {(): -1}))
            yield r, add(add(multiply(add(u, {(): 1}), d), {(): 1}, -1), a, -1)
        elif low is not None and low > 0:
            u, r = divide(multiply(rest, {(): -1}), c)
            # c*(a // d) + rest = c*(a // d - u) - r; a constant remainder is rounded up.
            if r and r.get((), 0) > 0:
                u, r = add(u, {(): 1}), add(r, c, -1)
            yield multiply(r, {(): -1}), add(a, multiply(u, d), -1)


def _min_max_cases(p: Polynomial, bounds: Bounds) -> tuple[bool, Polynomial, Polynomial] | None:
    """`p` with one min(a, b) or max(a, b) replaced by a and by b, and whether both must be >= 0 or one suffices.

    An operation of which both cases must hold goes first, because nothing is lost by it; then the largest one.
    """
    found: list[tuple[bool, int, Polynomial, Polynomial]] = []
    for atom in dict.fromkeys(a for m in p for a in m):
        if not (isinstance(atom, Binary) and atom.op in ("min", "max")):
            continue
        linear = _split_linear(p, atom)
        if linear is None:
            continue
        c, rest = linear
        low, high = polynomial_interval(c, bounds)
        grows = low is not None and low >= 0
        every = (atom.op == "min") == grows
        values = [polynomial(x) for x in (atom.a, atom.b) if has_no_wrap(x, bounds)]
        if len(values) >= (2 if every else 1) and (grows or (high is not None and high <= 0)):
            one, other = (add(rest, multiply(c, x)) for x in (values[0], values[-1]))
            found.append((every, len(sort_key(atom)), one, other))
    if not found:
        return None
    every, _, one, other = max(found, key=lambda case: case[:2])
    return every, one, other


def _eliminate_innermost(p: Polynomial, bounds: Bounds) -> Polynomial | None:
    """`p` with its innermost loop variable at the end of its range where `p` is least; nothing is lost by that.

    None where the variable occurs inside quotients and the like, or `p` is not monotonic in it.
    """
    hidden = {v for m in p for a in m if not isinstance(a, Var) for v in free_vars(a)}
    plain = {a for m in p for a in m if isinstance(a, Var)}
    for v in reversed(tuple(bounds.ranges)):
        if v in hidden:
            return None
        if v not in plain:
            continue
        linear = _split_linear(p, v)
        if linear is None:
            return None
        c, rest = linear
        low, high = polynomial_interval(c, bounds)
        first, last = bounds.ranges[v]
        if low is not None and low >= 0:
            return add(rest, multiply(c, polynomial(first)))
        if high is not None and high <= 0:
            return add(rest, multiply(c, polynomial(last)))
        return None
    return None


def _elimination_rank(atom: Expr, position: Mapping[Expr, int]) -> tuple[float, int]:
    """Where an atom stands in the order of elimination: what moves with inner loops has ends in terms of the others."""
    if isinstance(atom, Var):
        return position.get(atom, -2), 0
    return max((position.get(v, -2) for v in free_vars(atom)), default=-2) + 0.5, len(sort_key(atom))


def _is_non_negative(p: Polynomial, bounds: Bounds, depth: int, budget: list[int]) -> bool:
    """Whether `p` is proved >= 0 in at most `depth` steps one after the other and `work[0]` in all."""
    low = polynomial_interval(p, bounds)[0]
    if low is not None and low >= 0:
        return True
    if depth == 0 or budget[0] <= 0:
        return False
    budget[0] -= 1
    eliminated = _eliminate_innermost(p, bounds)
    if eliminated is not None:
        return _is_non_negative(eliminated, bounds, depth, budget)
    atoms = {a: None for m in p for a in m}
    if any(isinstance(a, Binary) for a in atoms):
        expanded = _expand_remainders(p, bounds)
        if expanded is not p:
            return _is_non_negative(expanded, bounds, depth - 1, budget)
        if _is_non_negative_by_cases(p, bounds, depth, budget):
            return True
    # Loop variables first, the innermost before the others, then compound atoms, then symbols.
    position: dict[Expr, int] = {v: i for i, v in enumerate(bounds.ranges)}
    order = sorted(atoms, key=lambda a: _elimination_rank(a, position), reverse=True)
    for atom in order:
        linear = _split_linear(p, atom)
        if linear is None:
            continue
        c, rest = linear
        sign_low, sign_high = polynomial_interval(c, bounds)
        low_end, high_end = _atom_bounds(atom, bounds)
        if sign_low is not None and sign_low >= 0 and low_end is not None:
            return _is_non_negative(add(rest, multiply(c, low_end)), bounds, depth - 1, budget)
        if sign_high is not None and sign_high <= 0 and high_end is not None:
            return _is_non_negative(add(rest, multiply(c, high_end)), bounds, depth - 1, budget)
    return False


def _is_non_negative_by_cases(p: Polynomial, bounds: Bounds, depth: int, budget: list[int]) -> bool:
    """`_is_non_negative` by what quotients, minima and maxima in `p` mean."""
    relaxed = _relax_quotient(p, bounds)
    if relaxed is not None and _is_non_negative(relaxed, bounds, depth - 1, budget):
        return True
    for remainder, goal in _quotient_cases(p, bounds):
        if _is_non_negative(remainder, bounds, depth - 1, budget) and _is_non_negative(goal, bounds, depth - 1, budget):
            return True
    cases = _min_max_cases(p, bounds)
    if cases is None:
        return False
    every, one, other = cases
    first = _is_non_negative(one, bounds, depth - 1, budget)
    return (first and not every) or (first == every and _is_non_negative(other, bounds, depth - 1, budget))


def _is_unbounded(p: Polynomial, bounds: Bounds) -> bool:
    """Whether `p` grows without end in both directions along a variable of which nothing is known."""
    for monomial in p:
        if len(monomial) != 1 or not isinstance(monomial[0], Var):
            continue
        v = monomial[0]
        if v.lo is not None or v.hi is not None or v in bounds.ranges:
            continue
        if not any(v in free_vars(a) for m in p if m is not monomial for a in m):
            return not any(v in free_vars(f) for f in bounds.facts)
    return False


def is_trivially_non_negative(e: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether an int64 expression is proved to be >= 0 by quick means, those that simplification uses."""
    return has_no_wrap(e, bounds) and _is_trivial(e, bounds)


def is_trivially_ordered(a: Expr, b: Expr, bounds: Bounds, offset: int = 0) -> bool:
    """Whether a + apart <= b, in integers, is proved by quick means."""
    return has_no_wrap(a, bounds) and has_no_wrap(b, bounds) and _is_trivial(difference(b, a, -offset), bounds)


def _is_trivial(e: Expr, bounds: Bounds) -> bool:
    """Whether the integer that the normal form denotes is proved to be >= 0 by quick means."""
    answer = bounds.proof_cache.get(e)
    if answer is None:
        p = polynomial(e)
        if has_counterexample(p, bounds):
            bounds.proof_cache[e] = ProofResult.UNPROVED
            return False
        bounds.proof_cache[e] = (
            ProofResult.NOT_TRIVIAL
        )  # for what the proof itself may ask: whether a divisor is positive
        proved = not _is_unbounded(p, bounds) and _is_non_negative_with_facts(p, bounds, [_MAX_STEPS], 2)
        answer = bounds.proof_cache[e] = ProofResult.PROVED if proved else ProofResult.NOT_TRIVIAL
    return answer is ProofResult.PROVED


@lru_cache(maxsize=1 << 14)
def can_prove_non_negative(e: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether an int64 expression is proved to be >= 0."""
    return has_no_wrap(e, bounds) and _can_prove_integer(e, bounds)


def _can_prove_integer(e: Expr, bounds: Bounds) -> bool:
    """Whether the integer that the normal form denotes is proved to be >= 0."""
    if not _is_trivial(e, bounds) and bounds.proof_cache[e] is ProofResult.NOT_TRIVIAL:
        p = polynomial(e)
        proved = not _is_unbounded(p, bounds) and is_implied(p, bounds)
        bounds.proof_cache[e] = ProofResult.PROVED if proved else ProofResult.UNPROVED
    return bounds.proof_cache[e] is ProofResult.PROVED


def _is_non_negative_with_facts(p: Polynomial, bounds: Bounds, budget: list[int], depth: int) -> bool:
    """Whether `p` less up to two facts is proved >= 0, or what a quotient in it asks for is."""
    if _is_non_negative(p, bounds, 12, budget):
        return True
    facts = [polynomial(f) for f in bounds.facts]
    together = p
    for f in facts:
        together = next(
            (add(together, multiply(f, k), -1) for k in _cancelling_multiples(together, f, bounds)), together
        )
    if together is not p and _is_non_negative(together, bounds, 12, budget):
        return True
    cases = _min_max_cases(p, bounds) if facts and depth else None
    if cases is not None:
        every, one, other = cases
        first = _is_non_negative_with_facts(one, bounds, [_MAX_STEPS], depth - 1)
        if (first and not every) or (
            first == every and _is_non_negative_with_facts(other, bounds, [_MAX_STEPS], depth - 1)
        ):
            return True
    for f in facts:
        if any(_is_non_negative(add(p, multiply(f, k), -1), bounds, 12, budget) for k in _fact_multiples(p, f, bounds)):
            return True
    for i, f in enumerate(facts):
        for g in facts[i + 1 :]:
            if _is_non_negative(add(add(p, f, -1), g, -1), bounds, 8, budget):
                return True
    if not facts or not depth:
        return False
    return any(
        _is_non_negative(remainder, bounds, 12, budget) and _is_non_negative_with_facts(goal, bounds, budget, depth - 1)
        for remainder, goal in _quotient_cases(p, bounds)
    )


def _fact_multiples(p: Polynomial, fact: Polynomial, bounds: Bounds) -> tuple[Polynomial, ...]:
    """How many times a fact may be taken from `p`: once, or so that a term of both cancels."""
    found = list(_cancelling_multiples(p, fact, bounds))
    return tuple(found) if {(): 1} in found else ({(): 1}, *found)


def _cancelling_multiples(p: Polynomial, fact: Polynomial, bounds: Bounds) -> Iterator[Polynomial]:
    """How many times a fact must be taken from `p` so that a term of both cancels, what it bounds from above first.

    Products of sizes count as numbers: N*n - N*i - 1 less N times n - 1 - i is N - 1.
    """
    for monomial, c in sorted(fact.items(), key=lambda term: term[1] > 0):
        for term, k in p.items():
            times, _ = divide_by_term({term: k}, monomial, c) if monomial else ({}, {})
            low = polynomial_interval(times, bounds)[0] if times else None
            if low is not None and low >= 0:
                yield times


@lru_cache(maxsize=1 << 14)
def can_prove_le(a: Expr, b: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether a <= b is proved; cheaper than building the comparison first."""
    return has_no_wrap(a, bounds) and has_no_wrap(b, bounds) and _can_prove_integer(difference(b, a), bounds)


@lru_cache(maxsize=1 << 14)
def can_prove_lt(a: Expr, b: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether a < b is proved; cheaper than building the comparison first."""
    return has_no_wrap(a, bounds) and has_no_wrap(b, bounds) and _can_prove_integer(difference(b, a, -1), bounds)


def can_prove(condition: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether a bool expression is proved to hold; False means "not proved"."""
    match condition:
        case Const(value):
            return bool(value)
        case Binary("and", a, b):
            return can_prove(a, bounds) and can_prove(b, bounds)
        case Binary("or", a, b):
            return can_prove(a, bounds) or can_prove(b, bounds)
        case Binary("eq", a, b) if a.dtype.name == "int64":
            return a is b or (can_prove_le(a, b, bounds) and can_prove_le(b, a, bounds))
        case Binary("ne", a, b) if a.dtype.name == "int64":
            return can_prove_lt(a, b, bounds) or can_prove_lt(b, a, bounds)
        case _:
            facts = facts_of(condition, bounds)
            return bool(facts) and all(_can_prove_integer(f, bounds) for f in facts)
