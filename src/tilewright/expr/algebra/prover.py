"""Proofs that index expressions are non-negative or ordered, from the ranges and facts of `Bounds`.

The fast prover in this module eliminates one variable after the other, innermost first: each is replaced by the end of
its range at which the goal is least. Simplification uses it alone (`is_trivially_non_negative`), because it asks often;
the `can_prove` functions go on with Fourier-Motzkin elimination (`elimination.py`). Both are sound and incomplete:
False means "not proved". What is proved depends on the goal and the bounds alone, not on what was asked before.

Goals are polynomials over the integers, so a question is translated only where its operands do not wrap, and the
definition of an atom is used only where it is interpretable (`intervals.py`).
"""

from collections.abc import Iterator, Mapping

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds, ProofResult, difference, facts_of
from tilewright.expr.algebra.counterexample import has_counterexample
from tilewright.expr.algebra.elimination import is_implied
from tilewright.expr.algebra.goal_rewrites import (
    cancel_remainders,
    eliminate_innermost,
    min_max_cases,
    relax_quotient,
    split_linear,
)
from tilewright.expr.algebra.intervals import (
    atom_interval,
    has_no_wrap,
    is_interpretable,
    is_positive_divisor,
    polynomial_interval,
)
from tilewright.expr.algebra.polynomial import (
    Polynomial,
    add,
    divide,
    divide_by_term,
    multiply,
    polynomial,
)
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.traversal import free_vars, has_loads
from tilewright.kernel_caches import kernel_cache

_MAX_STEPS = 60
"""Steps after which a proof attempt is abandoned; bounds the time spent on goals that can't be proved."""

_MAX_EXACT_SPLITS = 2
"""Nested splits of a goal into cases that must both hold, after the first split; bounds the number of eliminations."""


def _atom_bounds(atom: Expr, bounds: Bounds) -> tuple[Polynomial | None, Polynomial | None]:
    """Lower and upper bound of an atom as polynomials, None where there is none."""
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
    """The bounds 0 and q - 1 of a // divisor where a has the range 0 .. q*divisor - 1 (a fused loop); else None."""
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
    quotient, remainder = divide(high, polynomial(divisor))
    return ({}, add(quotient, {(): 1}, -1)) if remainder == {(): -1} else None


def _is_provably_positive(e: Expr, bounds: Bounds) -> bool:
    """Whether a divisor is positive: by its interval or, for a product of sizes, by a trivial proof."""
    if is_positive_divisor(e, bounds):
        return True
    if not (isinstance(e, Binary) and bounds.proves_divisors):
        return False
    return is_trivially_non_negative(e - 1 if has_loads(e) else e, bounds.of_divisors())


def _quotient_cases(p: Polynomial, bounds: Bounds) -> Iterator[tuple[Polynomial, Polynomial]]:
    """Pairs of polynomials that prove `p` if both are >= 0, for each quotient in `p` with a divisor d > 0.

    From p = c*(u - a // d) + r with a // d <= u <=> a <= u*d + d - 1, or from p = c*(a // d - u) + r with
    a // d >= u <=> a >= u*d.
    """
    for atom in dict.fromkeys(a for m in p for a in m):
        if not (isinstance(atom, Binary) and atom.op == "floordiv" and _is_provably_positive(atom.b, bounds)):
            continue
        if not is_interpretable(atom, bounds):
            continue
        linear = split_linear(p, atom)
        if linear is None:
            continue
        c, constant_part = linear
        a, d = polynomial(atom.a), polynomial(atom.b)
        low, high = polynomial_interval(c, bounds)
        if high is not None and high < 0:
            u, r = divide(constant_part, multiply(c, {(): -1}))
            yield r, add(add(multiply(add(u, {(): 1}), d), {(): 1}, -1), a, -1)
        elif low is not None and low > 0:
            u, r = divide(multiply(constant_part, {(): -1}), c)
            # c*(a // d) + rest = c*(a // d - u) - r; a constant remainder is rounded up.
            if r and r.get((), 0) > 0:
                u, r = add(u, {(): 1}), add(r, c, -1)
            yield multiply(r, {(): -1}), add(a, multiply(u, d), -1)


def _elimination_rank(atom: Expr, position: Mapping[Expr, int]) -> tuple[float, int]:
    """Position in the elimination order: bounds of atoms of inner loops are expressions of the outer ones."""
    if isinstance(atom, Var):
        return position.get(atom, -2), 0
    return max((position.get(v, -2) for v in free_vars(atom)), default=-2) + 0.5, atom.tree_size


def _is_non_negative(p: Polynomial, bounds: Bounds, depth: int, budget: list[int]) -> bool:
    """Whether `p` >= 0 is proved by at most `depth` nested steps and `budget[0]` steps in all."""
    low = polynomial_interval(p, bounds)[0]
    if low is not None and low >= 0:
        return True
    if depth == 0 or budget[0] <= 0:
        return False
    budget[0] -= 1
    eliminated = eliminate_innermost(p, bounds)
    if eliminated is not None:
        return _is_non_negative(eliminated, bounds, depth, budget)
    atoms = {a: None for m in p for a in m}
    if any(isinstance(a, Binary) for a in atoms):
        expanded = cancel_remainders(p, bounds)
        if expanded is not p:
            return _is_non_negative(expanded, bounds, depth - 1, budget)
        if _is_non_negative_by_cases(p, bounds, depth, budget):
            return True
    # Loop variables first, the innermost before the others, then compound atoms, then symbols.
    position: dict[Expr, int] = {v: i for i, v in enumerate(bounds.ranges)}
    order = sorted(atoms, key=lambda a: _elimination_rank(a, position), reverse=True)
    for atom in order:
        linear = split_linear(p, atom)
        if linear is None:
            continue
        c, constant_part = linear
        sign_low, sign_high = polynomial_interval(c, bounds)
        low_end, high_end = _atom_bounds(atom, bounds)
        if sign_low is not None and sign_low >= 0 and low_end is not None:
            return _is_non_negative(add(constant_part, multiply(c, low_end)), bounds, depth - 1, budget)
        if sign_high is not None and sign_high <= 0 and high_end is not None:
            return _is_non_negative(add(constant_part, multiply(c, high_end)), bounds, depth - 1, budget)
    return False


def _is_non_negative_by_cases(p: Polynomial, bounds: Bounds, depth: int, budget: list[int]) -> bool:
    """Whether `p` >= 0 is proved through the definition of a quotient, a minimum or a maximum in it."""
    relaxed = relax_quotient(p, bounds)
    if relaxed is not None and _is_non_negative(relaxed, bounds, depth - 1, budget):
        return True
    for remainder, goal in _quotient_cases(p, bounds):
        if _is_non_negative(remainder, bounds, depth - 1, budget) and _is_non_negative(goal, bounds, depth - 1, budget):
            return True
    cases = min_max_cases(p, bounds)
    if cases is None:
        return False
    needs_both, first, second = cases
    if _is_non_negative(first, bounds, depth - 1, budget) != needs_both:
        return not needs_both
    return _is_non_negative(second, bounds, depth - 1, budget)


def _is_unbounded(p: Polynomial, bounds: Bounds) -> bool:
    """Whether a variable without range and facts is a linear term of `p`, which is then unbounded below."""
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
    """Whether an int64 expression >= 0 is proved by the fast prover, which simplification uses."""
    return has_no_wrap(e, bounds) and _is_trivial(e, bounds)


def is_trivially_ordered(a: Expr, b: Expr, bounds: Bounds, offset: int = 0) -> bool:
    """Whether a + offset <= b, in integers, is proved by the fast prover."""
    return has_no_wrap(a, bounds) and has_no_wrap(b, bounds) and _is_trivial(difference(b, a, -offset), bounds)


def _is_trivial(e: Expr, bounds: Bounds) -> bool:
    """Whether the integer that the normal form denotes is proved to be >= 0 by the fast prover."""
    result = bounds.proof_cache.get(e)
    if result is None:
        p = polynomial(e)
        if has_counterexample(p, bounds):
            bounds.proof_cache[e] = ProofResult.UNPROVED
            return False
        proved = not _is_unbounded(p, bounds) and _is_non_negative_with_facts(p, bounds, [_MAX_STEPS], 2)
        result = bounds.proof_cache[e] = ProofResult.TRIVIAL if proved else ProofResult.NOT_TRIVIAL
    return result is ProofResult.TRIVIAL


@kernel_cache(maxsize=1 << 14)
def can_prove_non_negative(e: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether an int64 expression is proved to be >= 0."""
    return has_no_wrap(e, bounds) and _can_prove_integer(e, bounds)


def _can_prove_integer(e: Expr, bounds: Bounds) -> bool:
    """Whether the integer that the normal form denotes is proved to be >= 0."""
    if _is_trivial(e, bounds):
        return True
    if bounds.proof_cache[e] is ProofResult.NOT_TRIVIAL:
        p = polynomial(e)
        proved = not _is_unbounded(p, bounds) and _is_implied_in_cases(p, bounds)
        bounds.proof_cache[e] = ProofResult.PROVED if proved else ProofResult.UNPROVED
    return bounds.proof_cache[e] is ProofResult.PROVED


def _is_implied_in_cases(p: Polynomial, bounds: Bounds) -> bool:
    """Whether `p` >= 0 is proved by elimination; where there are facts, also by elimination in the cases of up to three
    minima and maxima in it, which leaves elimination's own splits to those of the facts."""
    if is_implied(p, bounds):
        return True
    if not bounds.facts:
        return False
    cases = min_max_cases(p, bounds)
    if cases is None:
        return is_implied(p, bounds, splits_smallest=True)
    needs_both, *goals = cases
    proved = (_is_implied_in_exact_cases(x, bounds, _MAX_EXACT_SPLITS) for x in goals)
    return all(proved) if needs_both else any(proved)


def _is_implied_in_exact_cases(p: Polynomial, bounds: Bounds, splits: int) -> bool:
    """Whether `p` >= 0 is proved by elimination after at most `splits` nested splits into cases that must both hold."""
    if is_implied(p, bounds, splits_smallest=True):
        return True
    cases = min_max_cases(p, bounds) if splits else None
    return cases is not None and cases[0] and all(_is_implied_in_exact_cases(x, bounds, splits - 1) for x in cases[1:])


def _is_non_negative_with_facts(p: Polynomial, bounds: Bounds, budget: list[int], depth: int) -> bool:
    """Whether `p` >= 0 is proved by subtracting multiples of up to two facts, by cases, or through a quotient in it."""
    if _is_non_negative(p, bounds, 12, budget):
        return True
    facts = [polynomial(f) for f in bounds.facts]
    reduced = p
    for f in facts:
        reduced = next((add(reduced, multiply(f, k), -1) for k in _cancelling_multiples(reduced, f, bounds)), reduced)
    if reduced is not p and _is_non_negative(reduced, bounds, 12, budget):
        return True
    cases = min_max_cases(p, bounds) if facts and depth else None
    if cases is not None:
        needs_both, first, second = cases
        is_first_proved = _is_non_negative_with_facts(first, bounds, [_MAX_STEPS], depth - 1)
        if (is_first_proved and not needs_both) or (
            is_first_proved == needs_both and _is_non_negative_with_facts(second, bounds, [_MAX_STEPS], depth - 1)
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
    """Multiples of a fact to subtract from `p`: once, and those that cancel a term."""
    multiples = list(_cancelling_multiples(p, fact, bounds))
    return tuple(multiples) if {(): 1} in multiples else ({(): 1}, *multiples)


def _cancelling_multiples(p: Polynomial, fact: Polynomial, bounds: Bounds) -> Iterator[Polynomial]:
    """Multiples of a fact that cancel a term of `p` when subtracted; terms that the fact bounds from above first.

    A multiple may be a product of sizes: N*n - N*i - 1 less N times the fact n - 1 - i is N - 1.
    """
    for monomial, c in sorted(fact.items(), key=lambda term: term[1] > 0):
        for term, k in p.items():
            multiple, _ = divide_by_term({term: k}, monomial, c) if monomial else ({}, {})
            low = polynomial_interval(multiple, bounds)[0] if multiple else None
            if low is not None and low >= 0:
                yield multiple


@kernel_cache(maxsize=1 << 14)
def can_prove_le(a: Expr, b: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether a <= b is proved; cheaper than building the comparison first."""
    return has_no_wrap(a, bounds) and has_no_wrap(b, bounds) and _can_prove_integer(difference(b, a), bounds)


@kernel_cache(maxsize=1 << 14)
def can_prove_lt(a: Expr, b: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether a < b is proved; cheaper than building the comparison first."""
    return has_no_wrap(a, bounds) and has_no_wrap(b, bounds) and _can_prove_integer(difference(b, a, -1), bounds)


def can_prove(condition: Expr, bounds: Bounds = NO_BOUNDS) -> bool:
    """Whether a bool expression is proved to be true; False means "not proved"."""
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
