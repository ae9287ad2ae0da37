"""Index inversion: the loop values at which a write stores a given element. Proposed here, proved by the callers.

An index of a write is inverted as a mixed-radix number: `io*16 + ii` is element e at io = e // 16, ii = e % 16. The
splits of one loop (`f // 4`, `f % 4`) are recombined; of tiles that are shifted inwards, `min(io*16, N - 16) + ii`, the
one is chosen that contains the element without its shift.
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
    """Values of unknowns that may solve equations; not proved.

    Args:
        equations: pairs of expressions; left-hand sides contain unknowns, right-hand sides do not.
        unknown: the unknowns.
        bounds: ranges of the other variables.

    Returns:
        Values of the unknowns that the equations determine.
    """
    inversion = _Inversion(unknown, bounds)
    for left, right in equations:
        inversion.solve(left, right)
    inversion.solve_splits()
    return inversion.values


@dataclass(slots=True)
class _Inversion:
    unknown: frozenset[Var]
    bounds: Bounds
    values: dict[Var, Expr] = field(default_factory=dict[Var, Expr])
    splits: dict[Expr, list[tuple[IterSplit, Expr]]] = field(default_factory=dict[Expr, "list[tuple[IterSplit, Expr]]"])

    def solve(self, left: Expr, right: Expr) -> None:
        """Chooses values for which `left` is `right`, or the largest value below."""
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
            value_of = substitute(atom, self.values)
            # A mixed-radix digit leaves the remainder; a shifted tile the distance to its actual start.
            plain = isinstance(atom, Var) or free_vars(value_of) & self.unknown
            target = target % step if plain else target - value_of * step

    def _by_descending_step(self, steps: list[tuple[Expr, Expr]]) -> list[tuple[Expr, Expr]]:
        ordered: list[tuple[Expr, Expr]] = []
        left = list(steps)
        while left:
            largest = next((s for s in left if all(can_prove_le(t[1], s[1], self.bounds) for t in left)), left[0])
            # The start of a tile comes before the offset inside of it, also where both have step 1.
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
            unknown_arms = [e for e in (atom.a, atom.b) if free_vars(e) & self.unknown]
            if len(unknown_arms) == 1:
                self.solve(unknown_arms[0], value)
            return
        split = match_iter_split(atom)
        if split is not None:
            self.splits.setdefault(split.source, []).append((split, value))

    def solve_splits(self) -> None:
        """Chooses the values of indices of which splits are known."""
        while self.splits:
            source, parts = self.splits.popitem()
            if splits_are_bijective((split.lower_factor, split.extent) for split, _ in parts):
                distinct = dict(parts)
                self.solve(source, sum((value * split.lower_factor for split, value in distinct.items()), const(0)))
            else:
                # The smallest value with this split.
                self.solve(source, sum((value * split.lower_factor for split, value in parts[:1]), const(0)))
