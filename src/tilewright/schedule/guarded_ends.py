"""Ends of index ranges that follow from predicates: what an access reaches although its loops run further."""

from collections.abc import Sequence

from tilewright.expr.algebra.polynomial import Polynomial, add, polynomial
from tilewright.expr.nodes import Binary, Expr, Var
from tilewright.expr.traversal import conjuncts, free_vars


def guarded_ends_of(
    indices: Sequence[Expr], predicate: Expr, loops: Sequence[tuple[Var, Expr]]
) -> tuple[Expr | None, ...]:
    """One more than the largest value of every index where a predicate holds; None where it does not say.

    Where tiles of 3 rows are guarded as a whole, rows end with the last whole tile:

        for to in serial((n // 3 + 3) // 4):
            for ti in serial(4):
                for r in unrolled(3): .. x[to*12 + ti*3 + r] where to*4 + ti < n // 3      # ends at n // 3 * 3

    Args:
        indices: over loop variables.
        predicate: over loop variables.
        loops: the variables with their extents.
    """
    variables = dict(loops)
    limits = [
        (c.a, c.b) for c in conjuncts(predicate)
        if isinstance(c, Binary) and c.op == "lt" and not free_vars(c.b) & variables.keys()
    ]  # fmt: skip
    ends = ([_end(i, a, b, variables) for a, b in limits] for i in indices)
    return tuple(next((e for e in x if e is not None), None) for x in ends)


def _end(index: Expr, low: Expr, limit: Expr, loops: dict[Var, Expr]) -> Expr | None:
    """One more than the largest `index` where `low < limit`; None unless it is a multiple of `low` and a rest that is
    known.

    With index = g low + rest and low <= limit - 1 that is g (limit - 1) + max(rest) + 1.
    """
    of_index, of_low = polynomial(index), polynomial(low)
    variable = next((v for v in loops if (v,) in of_low), None)
    if variable is None or of_index.get((variable,), 0) <= 0 or of_index[variable,] % of_low[variable,]:
        return None
    factor = of_index[variable,] // of_low[variable,]
    rest = _max_of_sum(add(of_index, of_low, -factor), loops)
    return None if factor <= 0 or rest is None else (limit - 1) * factor + rest + 1


def _max_of_sum(p: Polynomial, loops: dict[Var, Expr]) -> Expr | int | None:
    """The largest value of a sum of loop variables, each with a coefficient of at least 0, and of what does not depend
    on loops; None for others."""
    total: Expr | int = 0
    for monomial, factor in p.items():
        if not monomial:
            total = total + factor
            continue
        (atom, *others) = monomial
        if isinstance(atom, Var) and atom in loops and not others:
            if factor < 0 or free_vars(loops[atom]) & loops.keys():
                return None
            total = (loops[atom] - 1) * factor + total
        else:
            return None
    return total
