"""Fourier-Motzkin elimination: the strong, slow prover, by contradiction of linear inequalities over monomials.

To prove p >= 0, its negation -p - 1 >= 0 joins the facts and the constraints on the monomials that occur. Variables
are eliminated one after the other; every inequality is divided by the common factor of its coefficients and its
constant rounded down, as values are integers. Constraints on monomials:

    v                    its range
    q = a // d           d*q <= a <= d*q + d - 1, and d >= 1
    a % d                is a - d*q
    min(a, b)            m <= a and m <= b, and two cases: it is a, or it is b
    select(c, a, b)      two cases: c holds and it is a, or c does not hold and it is b
    m*v                  the constraints on v, times m, where m >= 0

It is sound and incomplete: limits on the size of the system end long proofs.
"""

from collections.abc import Iterator
from math import gcd

from tilewright.expr.algebra.bounds import Bounds, facts_of, negated_comparison
from tilewright.expr.algebra.intervals import (
    atom_interval,
    has_no_wrap,
    is_interpretable,
    is_positive_divisor,
    polynomial_interval,
)
from tilewright.expr.algebra.polynomial import INT64_MAX, Monomial, Polynomial, add, drop_atom, multiply, polynomial
from tilewright.expr.nodes import Binary, Const, Expr, Select, Var
from tilewright.expr.traversal import has_loads

_MAX_MONOMIALS = 30
_MAX_CONSTRAINTS = 100
_MAX_INEQUALITIES = 200
_MAX_DEGREE = 3
_MAX_CASE_SPLITS = 2
_MAX_FACTS = 16


def is_implied(goal: Polynomial, bounds: Bounds, splits_smallest: bool = False) -> bool:
    """Whether `goal` >= 0 is proved from the ranges and facts of `bounds`.

    Args:
        goal, bounds: the goal, and what holds.
        splits_smallest: whether the smallest atoms are split into cases, which larger ones depend on: sizes before
            elements; else the first ones, those of the goal before those of the facts.
    """
    facts = [polynomial(f) for f in bounds.facts[:_MAX_FACTS]]
    return _is_contradictory([add({(): -1}, goal, -1), *facts], bounds, _MAX_CASE_SPLITS, splits_smallest)


def _is_contradictory(system: list[Polynomial], bounds: Bounds, case_splits: int, splits_smallest: bool) -> bool:
    """Whether the inequalities p >= 0 have no integer solution under the constraints on their monomials."""
    system = [_expand_remainders(p, bounds) for p in system]
    system += [q for p in system for q in _multiply_by_divisors(p, bounds)]
    constraints = _collect_constraints(system, bounds)
    if _is_infeasible([*system, *constraints]):
        return True
    atoms = list(_atoms([*system, *constraints])) if case_splits else []
    if splits_smallest:
        atoms.sort(key=lambda a: a.tree_size)
    atom = next((a for a in atoms if _case_split(a, bounds)), None)
    if atom is None:
        return False
    everything = (*system, *constraints)
    return all(
        _is_contradictory(
            [*(_substitute(p, atom, value) for p in everything), *conditions], bounds, case_splits - 1, splits_smallest
        )
        for conditions, value in _case_split(atom, bounds)
    )


def _atoms(system: list[Polynomial]) -> dict[Expr, None]:
    return dict.fromkeys(a for p in system for m in p for a in m)


def _case_split(atom: Expr, bounds: Bounds) -> list[tuple[list[Polynomial], Polynomial]]:
    """(conditions >= 0, value under them) for each case of a minimum, maximum or select; empty for other atoms."""
    match atom:
        case Binary("min" | "max" as op, a, b) if is_interpretable(atom, bounds):
            x, y = polynomial(a), polynomial(b)
            y_minus_x, x_minus_y = add(y, x, -1), add(x, y, -1)
            return [([y_minus_x], x), ([x_minus_y], y)] if op == "min" else [([x_minus_y], x), ([y_minus_x], y)]
        case Select(c, a, b) if facts_of(c, bounds) and _has_no_wrap_in_arms(atom, bounds):
            negation = negated_comparison(c)
            if_true = [polynomial(f) for f in facts_of(c, bounds)]
            if_false = [] if negation is None else [polynomial(f) for f in facts_of(negation, bounds)]
            return [(if_true, polynomial(a)), (if_false, polynomial(b))]
        case _:
            return []


def _has_no_wrap_in_arms(e: Select, bounds: Bounds) -> bool:
    """Whether each arm does not wrap where it is taken."""
    return not has_loads(e) or all(
        has_no_wrap(x, bounds.where(e.cond, taken)) for x, taken in ((e.a, True), (e.b, False))
    )


def _substitute(p: Polynomial, atom: Expr, value: Polynomial) -> Polynomial:
    """`p` with an atom replaced by its value."""
    for m, k in p.items():
        if any(a is atom for a in m):
            result = add(add(p, {m: k}, -1), multiply(value, {drop_atom(m, atom): k}))
            return _substitute(result, atom, value)
    return p


def _expand_remainders(p: Polynomial, bounds: Bounds) -> Polynomial:
    """`p` with every a % d written as a - d * (a // d)."""
    for m in p:
        for atom in m:
            if not (isinstance(atom, Binary) and atom.op == "mod" and is_positive_divisor(atom.b, bounds)):
                continue
            if is_interpretable(atom, bounds):
                value = add(polynomial(atom.a), multiply({(quotient_of(atom),): 1}, polynomial(atom.b)), -1)
                return _expand_remainders(_substitute(p, atom, value), bounds)
    return p


def _multiply_by_divisors(p: Polynomial, bounds: Bounds) -> Iterator[Polynomial]:
    """`p` times each symbolic divisor d of its quotients a // d, so that a // d <= n restricts a."""
    for atom in _atoms([p]):
        if not isinstance(atom, Binary) or atom.op != "floordiv" or isinstance(atom.b, Const):
            continue
        if is_positive_divisor(atom.b, bounds):
            yield _expand_remainders(multiply(p, polynomial(atom.b)), bounds)


def quotient_of(remainder: Binary) -> Expr:
    """x // d for x % d, with a nested (y // c) // d flattened to y // (c*d)."""
    x, d = remainder.a, remainder.b
    if isinstance(x, Binary) and x.op == "floordiv" and (product := divisor_product(x.b, d)) is not None:
        return Binary("floordiv", x.a, product)
    return Binary("floordiv", x, d)


def divisor_product(a: Expr, b: Expr) -> Expr | None:
    """a * b as a divisor; None where it depends on data or exceeds int64."""
    if has_loads(a) or has_loads(b):
        return None
    if isinstance(a, Const) and isinstance(b, Const) and abs(int(a.value) * int(b.value)) > INT64_MAX:
        return None
    return a * b


def _collect_constraints(system: list[Polynomial], bounds: Bounds) -> list[Polynomial]:
    """Constraints on the monomials of a system and, breadth first, on the monomials of those constraints."""
    constraints: list[Polynomial] = []
    seen: set[Monomial] = set()
    queue = [m for p in system for m in p if m]
    while queue:
        m = queue.pop(0)
        if m in seen:
            continue
        seen.add(m)
        if len(seen) > _MAX_MONOMIALS or len(constraints) > _MAX_CONSTRAINTS:
            break
        for p in _monomial_constraints(m, bounds, system):
            expanded = _expand_remainders(p, bounds)
            if all(len(x) <= _MAX_DEGREE for x in expanded):
                constraints.append(expanded)
                queue.extend(x for x in expanded if x and x not in seen)
    return constraints


def _monomial_constraints(m: Monomial, bounds: Bounds, system: list[Polynomial]) -> Iterator[Polynomial]:
    """Constraints (polynomials >= 0) on a monomial."""
    if len(m) == 1:
        yield from _atom_constraints(m[0], bounds)
        return
    low, high = polynomial_interval({m: 1}, bounds)
    if low is not None:
        yield add({m: 1}, {(): low}, -1)
    if high is not None:
        yield add({(): high}, {m: 1}, -1)
    for atom in dict.fromkeys(m):
        rest = drop_atom(m, atom)
        least = polynomial_interval({rest: 1}, bounds)[0]
        if least is not None and least >= 0:
            for p in (*_atom_constraints(atom, bounds), *(p for p in system if (atom,) in p)):
                yield multiply(p, {rest: 1})


def _atom_constraints(atom: Expr, bounds: Bounds) -> Iterator[Polynomial]:
    itself: Polynomial = {(atom,): 1}
    match atom:
        case Var() if atom in bounds.ranges:
            low, high = bounds.ranges[atom]
            yield add(itself, polynomial(low), -1)
            yield add(polynomial(high), itself, -1)
            return
        case Binary("floordiv", a, b) if is_positive_divisor(b, bounds) and is_interpretable(atom, bounds):
            d = polynomial(b)
            remainder = add(polynomial(a), multiply(d, itself), -1)
            yield remainder
            yield add(add(d, {(): 1}, -1), remainder, -1)
            yield add(d, {(): 1}, -1)
        case Binary("min" | "max" as op, a, b):
            sign = 1 if op == "min" else -1
            for x in (e for e in (a, b) if has_no_wrap(e, bounds)):
                difference = add(polynomial(x), itself, -1)
                yield multiply(difference, {(): sign})
        case _:
            pass
    low, high = atom_interval(atom, bounds)
    if low is not None:
        yield add(itself, {(): low}, -1)
    if high is not None:
        yield add({(): high}, itself, -1)


Row = tuple[tuple[tuple[int, int], ...], int]
"""An inequality: (number of the variable, coefficient) in order, and the constant."""


def _is_infeasible(system: list[Polynomial]) -> bool:
    """Whether eliminating all variables leaves a contradiction."""
    numbers: dict[Monomial, int] = {}
    rows: dict[tuple[tuple[int, int], ...], int] = {}
    for p in system:
        terms = {numbers.setdefault(m, len(numbers)): c for m, c in p.items() if m}
        if not _add_row(rows, terms, p.get((), 0)):
            return True
    while rows:
        variable = _cheapest_variable(rows)
        if variable is None:
            return False
        lower_bounds: list[tuple[dict[int, int], int]] = []
        upper_bounds: list[tuple[dict[int, int], int]] = []
        unrelated: dict[tuple[tuple[int, int], ...], int] = {}
        for t, c in rows.items():
            terms = dict(t)
            if variable not in terms:
                unrelated[t] = c
            else:
                (lower_bounds if terms[variable] > 0 else upper_bounds).append((terms, c))
        rows = unrelated
        for lower, c in lower_bounds:
            for upper, d in upper_bounds:
                k, j = lower[variable], -upper[variable]
                g = gcd(k, j)
                terms = {n: x * (j // g) for n, x in lower.items()}
                for n, x in upper.items():
                    terms[n] = terms.get(n, 0) + x * (k // g)
                if not _add_row(rows, terms, c * (j // g) + d * (k // g)):
                    return True
        if len(rows) > _MAX_INEQUALITIES:
            return False
    return False


def _add_row(rows: dict[tuple[tuple[int, int], ...], int], terms: dict[int, int], constant: int) -> bool:
    """Adds an inequality, keeping the strongest of those with equal terms; False where it can't hold."""
    nonzero = sorted((n, k) for n, k in terms.items() if k)
    if not nonzero:
        return constant >= 0
    factor = gcd(*(k for _, k in nonzero))
    key = tuple((n, k // factor) for n, k in nonzero)
    bound = constant // factor
    if key not in rows or bound < rows[key]:
        rows[key] = bound
    opposite = rows.get(tuple((n, -k) for n, k in key))
    return opposite is None or opposite + rows[key] >= 0


def _cheapest_variable(rows: dict[tuple[tuple[int, int], ...], int]) -> int | None:
    """The variable whose elimination adds the fewest inequalities."""
    ups: dict[int, int] = {}
    downs: dict[int, int] = {}
    for terms in rows:
        for n, k in terms:
            side = ups if k > 0 else downs
            side[n] = side.get(n, 0) + 1
    costs = {n: ups.get(n, 0) * downs.get(n, 0) - ups.get(n, 0) - downs.get(n, 0) for n in {**ups, **downs}}
    return min(costs, key=lambda n: (costs[n], n), default=None)
