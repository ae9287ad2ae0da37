"""IterSplit: one digit of a fused or split index, (source // lower_factor) % extent."""

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.expr.nodes import Binary, Expr, Var, const


@dataclass(frozen=True, slots=True)
class IterSplit:
    """(source // lower_factor) % extent, or source // lower_factor where extent is None (IterSplitExpr in TVM)."""

    source: Expr
    lower_factor: Expr
    extent: Expr | None


def match_iter_split(atom: Expr) -> IterSplit | None:
    """An atom of a polynomial as a split; None for other atoms (minima, loads, products)."""
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
    """whole / part where it is proved to be an integer, else None."""
    quotient = whole // part
    return quotient if quotient * part is whole else None


def splits_are_bijective(splits: Iterable[tuple[Expr, Expr | None]]) -> bool:
    """Whether splits (lower_factor, extent) of one source determine it.

    They do if their factors are 1, e1, e1*e2, ... for extents e1, e2, ..., up to a split without extent.
    """
    extents: dict[Expr, set[Expr | None]] = {}
    for lower_factor, extent in splits:
        extents.setdefault(lower_factor, set()).add(extent)
    factors: list[Expr] = [const(1)]
    while factors:
        factor = factors.pop()
        for extent in extents.pop(factor, ()):
            if extent is None:
                return True
            factors.append(factor * extent)
    return False
