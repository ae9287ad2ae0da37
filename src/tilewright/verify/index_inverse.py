"""Witnesses: for what values of its loops a write stores a given element. Guessed here, proved by who asks.

An index of a write is read as a number in mixed radix: `io*16 + ii` is element e at io = e // 16, ii = e % 16. Digits
of one loop (`f // 4`, `f % 4`) are put together, and a tile that is shifted inwards, `min(io*16, N - 16) + ii`, is the
one that has the element in its plain place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_le
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Expr, Var, const
from tilewright.expr.traversal import free_vars
from tilewright.verify.iter_split import IterSplit, match_iter_split, splits_are_bijective


def invert_indices(
    equations: Sequence[tuple[Expr, Expr]], unknown: frozenset[Var], bounds: Bounds
) -> Mapping[Var, Expr]:
    """Values of unknowns at which equations may hold: a guess.

    Args:
        equations: pairs of expressions; those on the left are over unknowns and others, those on the right over others.
        unknown: the variables in question.
        known: what is known about the others.

    Returns:
        Values of some of the unknowns; of none of those that the equations don't tell.
    """
    search = _Inversion(unknown, bounds)
    for left, right in equations:
        search.solve(left, right)
    search.solve_splits()
    return search.values


@dataclass(slots=True)
class _Inversion:
    unknown: frozenset[Var]
    bounds: Bounds
    values: dict[Var, Expr] = field(default_factory=dict[Var, Expr])
    splits: dict[Expr, list[tuple[IterSplit, Expr]]] = field(default_factory=dict[Expr, "list[tuple[IterSplit, Expr]]"])

    def solve(self, left: Expr, right: Expr) -> None:
        """Chooses values so that `left` becomes `right`, or the largest that is below."""
        steps: dict[Expr, poly.Polynomial] = {}
        rest: poly.Polynomial = {}
        for monomial, k in poly.polynomial(substitute(left, self.values)).items():
            atoms = [a for a in monomial if free_vars(a) & self.unknown]
            if len(atoms) > 1:
                return
            if atoms:
                factor = poly.drop_atom(monomial, atoms[0])
                steps[atoms[0]] = poly.add(steps.get(atoms[0], {}), {factor: k})
            else:
                rest[monomial] = k
        target = right - poly.expression(rest)
        for atom, step in self._by_descending_step([(a, poly.expression(p)) for a, p in steps.items()]):
            self._assign(atom, target // step)
            placed = substitute(atom, self.values)
            # A plain number in mixed radix leaves a remainder, a tile that was shifted what it leaves.
            plain = isinstance(atom, Var) or free_vars(placed) & self.unknown
            target = target % step if plain else target - placed * step

    def _by_descending_step(self, steps: list[tuple[Expr, Expr]]) -> list[tuple[Expr, Expr]]:
        ordered: list[tuple[Expr, Expr]] = []
        left = list(steps)
        while left:
            largest = next((s for s in left if all(can_prove_le(t[1], s[1], self.bounds) for t in left)), left[0])
            # What moves a tile comes before what counts inside of it, also where both have step 1.
            equal = [s for s in left if s[1] is largest[1]]
            largest = next((s for s in equal if not isinstance(s[0], Var)), largest)
            ordered.append(largest)
            left.remove(largest)
        return ordered

    def _assign(self, atom: Expr, value: Expr) -> None:
        if isinstance(atom, Var):
            self.values[atom] = value
            return
        if isinstance(atom, Binary) and atom.op == "min":
            moving = [e for e in (atom.a, atom.b) if free_vars(e) & self.unknown]
            if len(moving) == 1:
                self.solve(moving[0], value)
            return
        d = match_iter_split(atom)
        if d is not None:
            self.splits.setdefault(d.source, []).append((d, value))

    def solve_splits(self) -> None:
        """Chooses the values of what several digits were found of."""
        while self.splits:
            source, parts = self.splits.popitem()
            if splits_are_bijective((d.lower_factor, d.extent) for d, _ in parts):
                distinct = dict(parts)
                self.solve(source, sum((value * d.lower_factor for d, value in distinct.items()), const(0)))
            else:
                # Of the values that have this digit, the smallest.
                self.solve(source, sum((value * d.lower_factor for d, value in parts[:1]), const(0)))
