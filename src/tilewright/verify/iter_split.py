"""IterSplit: one digit of a fused or split index, (source // lower_factor) % extent."""

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.expr.nodes import Binary, Expr, Var, const


@dataclass(frozen=True, slots=True)
class IterSplit:
    """(source // lower) % modulus, or source // lower where modulus is None: one digit of a fused or split index."""

    source: Expr
    lower_factor: Expr
    extent: Expr | None


def match_iter_split(atom: Expr) -> IterSplit | None:
    """The digit that an atom of a polynomial is; None for other atoms (minima, loads, products)."""
    match atom:
        case Var():
            return IterSplit(atom, const(1), None)
        case Binary("floordiv" | "mod" as op, a, b):
            nested = isinstance(a, Binary) and a.op in ("floordiv", "mod")
            inner = (match_iter_split(a) if nested else None) or IterSplit(a, const(1), None)
            rest = None if inner.extent is None else exact_quotient(inner.extent, b)
            if inner.extent is not None and rest is None:
                return None
            if op == "mod":
                return IterSplit(inner.source, inner.lower_factor, b)
            return IterSplit(inner.source, inner.lower_factor * b, rest)
        case _:
            return None


def exact_quotient(whole: Expr, part: Expr) -> Expr | None:
    """whole / part where that is known to be an integer."""
    quotient = whole // part
    return quotient if quotient * part is whole else None


def splits_are_bijective(splits: Iterable[tuple[Expr, Expr | None]]) -> bool:
    """Whether digits (lower, modulus) of one source are all of it: 1, m1, m1*m2, ... up to one without modulus."""
    left: dict[Expr, set[Expr | None]] = {}
    for lower, modulus in splits:
        left.setdefault(lower, set()).add(modulus)
    reached: list[Expr] = [const(1)]
    while reached:
        for modulus in left.pop(here := reached.pop(), ()):
            if modulus is None:
                return True
            reached.append(here * modulus)
    return False
