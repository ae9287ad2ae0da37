"""Index arithmetic: int64 expressions as sums of products, split into constant, uniform and lane-varying parts.

The constant part becomes the offset of an address. The uniform part is one scalar, summed from outer to inner
variables, so that LLVM can hoist its prefix. The lane-varying part is a constant per lane or a vector. Unrolled
variables are replaced by their values here, so that no instance simplifies its indices again.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.llvm_types import I64, broadcast, constant, splat
from tilewright.codegen.subvectors import subvector_length
from tilewright.errors import InternalError
from tilewright.expr.algebra.expression_order import order_key
from tilewright.expr.algebra.intervals import Interval, polynomial_interval
from tilewright.expr.algebra.polynomial import Monomial, Polynomial, polynomial
from tilewright.expr.nodes import Expr, Var

Terms = dict[Monomial, int]


@dataclass(frozen=True, slots=True)
class IndexParts:
    """An index as the sum of its parts.

    Attributes:
        offset: the constant part.
        uniform: the part that all lanes share; None for zero.
        lanes: the lane-varying part, as constants or as a vector; None for none.
    """

    offset: int
    uniform: ir.Value | None
    lanes: tuple[int, ...] | ir.Value | None


class IndexEmitter:
    """Splits and emits int64 expressions.

    Args:
        builder: where the instructions go.
        scope: variables and cached values.
        atom: emits a factor that is no sum or product (a variable, a quotient, a load), as a scalar or vector.
    """

    def __init__(self, builder: ir.IRBuilder, scope: EmitScope, atom: Callable[[Expr], ir.Value]) -> None:
        self.builder, self.scope, self.atom = builder, scope, atom
        self._intervals: dict[frozenset[tuple[Monomial, int]], Interval] = {}

    def split_by_lane(self, e: Expr) -> IndexParts:
        """The parts of an expression."""
        return self._emit_parts(*self._partition_terms(polynomial(e)))

    def constant_part(self, e: Expr) -> int:
        """The constant part of an expression."""
        return self._partition_terms(polynomial(e))[0]

    def interval(self, e: Expr) -> Interval:
        """Lower and upper bound of an expression over all iterations of the loops that are not unrolled; None for
        unbounded.

        Loop variables are unique in a function (`verify/verifier.py`), so an expression has one range, which is cached.
        """
        offset, uniform, lanes = self._partition_terms(polynomial(e))
        terms = uniform | lanes
        key = frozenset(terms.items())
        if key not in self._intervals:
            self._intervals[key] = polynomial_interval(terms, self.scope.bounds.without_facts())
        low, high = self._intervals[key]
        return None if low is None else low + offset, None if high is None else high + offset

    def _emit_parts(self, offset: int, uniform: Terms, lanes: Terms) -> IndexParts:
        return IndexParts(
            offset, self._emit_sum(uniform) if uniform else None, self._emit_lane_terms(lanes) if lanes else None
        )

    def split_by_subvector(self, e: Expr) -> tuple[IndexParts, ...]:
        """The parts of a linear index for each contiguous subvector of lanes, where run-time terms separate them (as
        panels whose height is a symbol); otherwise the parts for all lanes together."""
        offset, uniform, lanes = self._partition_terms(polynomial(e))
        starts = self._subvector_terms(lanes)
        if len(starts) < 2:
            return (self._emit_parts(offset, uniform, lanes),)
        length = self.scope.lanes // len(starts)
        parts = [(self._emit_sum(_add_terms(uniform, terms)), first_lane) for terms, first_lane in starts]
        return tuple(
            IndexParts(offset, total, tuple(range(first_lane, first_lane + length))) for total, first_lane in parts
        )

    def _subvector_terms(self, lanes: Terms) -> list[tuple[Terms, int]]:
        """What each subvector adds to the index: run-time terms that its lanes share, and the constant of its first
        lane."""
        if not any(self.scope.fold(a, 0) is None for m in lanes for a in m):
            return []
        constant_atoms = {m: tuple(a for a in m if self.scope.is_lane_varying(a)) for m in lanes}
        if any(not self._is_constant_per_lane(a) for atoms in constant_atoms.values() for a in atoms):
            return []
        by_lane = [self._terms_in_lane(lanes, constant_atoms, lane) for lane in range(self.scope.lanes)]
        return by_lane[:: subvector_length([(frozenset(terms.items()), constant) for terms, constant in by_lane])]

    def _terms_in_lane(self, lanes: Terms, lane_atoms: dict[Monomial, Monomial], lane: int) -> tuple[Terms, int]:
        """The lane-varying terms in one lane: those with a run-time factor, and the sum of the others as a constant."""
        terms: Terms = {}
        constant = 0
        for monomial, factor in lanes.items():
            for atom in lane_atoms[monomial]:
                factor *= self._atom_in_lane(atom, lane)
            run_time_atoms = tuple(a for a in monomial if a not in lane_atoms[monomial])
            if run_time_atoms:
                terms[run_time_atoms] = terms.get(run_time_atoms, 0) + factor
            else:
                constant += factor
        return {m: f for m, f in terms.items() if f}, constant

    def _atom_in_lane(self, atom: Expr, lane: int) -> int:
        return lane if isinstance(atom, Var) else self.scope.fold(atom, lane) or 0

    def emit(self, e: Expr) -> ir.Value:
        """The value of a sum or product: a scalar, or a vector where it varies by lane."""
        parts = self.split_by_lane(e)
        b = self.builder
        scalar: ir.Value = I64(parts.offset) if parts.uniform is None else parts.uniform
        if parts.uniform is not None and parts.offset:
            scalar = b.add(scalar, I64(parts.offset), flags=self._flags(e))
        if parts.lanes is None:
            return scalar
        lanes = parts.lanes
        if isinstance(lanes, tuple):
            lanes = constant(ir.VectorType(I64, self.scope.lanes), list(lanes))
        if isinstance(scalar, ir.Constant) and scalar.constant == 0:
            return lanes
        return b.add(splat(b, scalar, self.scope.lanes), lanes, flags=self._flags(e))

    def _flags(self, e: Expr) -> tuple[str, ...]:
        # sizes and indices fit 63 bits; values from memory are arbitrary and must wrap
        return () if self.scope.dependencies(e).reads_memory else ("nsw",)

    def _partition_terms(self, p: Polynomial) -> tuple[int, Terms, Terms]:
        """The constant, the uniform terms and the lane-varying terms of a polynomial."""
        scope = self.scope
        offset = 0
        uniform: Terms = {}
        lanes: Terms = {}
        for monomial, factor in p.items():
            atoms: list[Expr] = []
            for atom in monomial:
                folded = scope.fold(atom)
                if folded is None:
                    atoms.append(atom)
                else:
                    factor *= folded
            if not atoms:
                offset += factor
            elif factor:
                terms = lanes if any(scope.is_lane_varying(a) for a in atoms) else uniform
                key = tuple(atoms)
                terms[key] = terms.get(key, 0) + factor
        return offset, uniform, lanes

    def _loop_depth(self, monomial: Monomial) -> int:
        depth = self.scope.loop_depth
        return max((depth.get(v, -1) for a in monomial for v in self.scope.dependencies(a).variables), default=-1)

    def _outermost_first(self, terms: Terms) -> list[tuple[Monomial, int]]:
        return sorted(terms.items(), key=lambda t: (self._loop_depth(t[0]), [order_key(a) for a in t[0]]))

    def _emit_sum(self, terms: Terms) -> ir.Value:
        key = frozenset(terms.items())
        cached = self.scope.lookup(key)
        if cached is not None:
            return cached
        total: ir.Value | None = None
        is_pure = is_shareable = True
        summed: tuple[tuple[Monomial, int], ...] = ()
        for monomial, factor in self._outermost_first(terms):
            if not factor:
                continue
            is_pure = is_pure and not any(self.scope.dependencies(a).reads_memory for a in monomial)
            is_shareable = is_shareable and all(self.scope.is_shareable(a) for a in monomial)
            summed = (*summed, (monomial, factor))
            # addresses near each other have their first terms in common
            prefix = self.scope.lookup(("sum", summed)) if is_pure else None
            if prefix is None:
                product = self._emit_product(monomial, factor, is_pure)
                if total is None:
                    prefix = product
                else:
                    prefix = self.builder.add(total, product, flags=("nsw",) if is_pure else ())
                if is_pure:
                    self.scope.cache(("sum", summed), prefix, is_shareable)
            total = prefix
        result = I64(0) if total is None else total
        self.scope.cache(key, result, is_shareable)
        return result

    def _emit_product(self, monomial: Monomial, factor: int, is_pure: bool) -> ir.Value:
        """The value of one term, which has atoms; without the flag of pure arithmetic after one that reads memory."""
        flags = ("nsw",) if is_pure else ()
        product: ir.Value | None = None
        atoms: Monomial = ()
        is_shareable = True
        for atom in sorted(monomial, key=lambda a: self._loop_depth((a,))):
            value = self.atom(atom)
            atoms = (*atoms, atom)
            is_shareable = is_shareable and self.scope.is_shareable(atom)
            if product is None:
                product = value
            else:
                product = self._cached_product(("product", atoms), product, value, flags, is_shareable)
        if product is None:
            raise InternalError("expected a term with variables")
        if factor == 1:
            return product
        return self._cached_product(("term", atoms, factor), product, I64(factor), flags, is_shareable)

    def _cached_product(
        self, key: Hashable, a: ir.Value, b: ir.Value, flags: tuple[str, ...], is_shareable: bool
    ) -> ir.Value:
        """`a * b`; pure products are emitted once."""
        product = self.scope.lookup(key) if flags else None
        if product is None:
            product = self.builder.mul(a, b, flags=flags)
            if flags:
                self.scope.cache(key, product, is_shareable)
        return product

    def _emit_lane_terms(self, terms: Terms) -> tuple[int, ...] | ir.Value:
        scope = self.scope
        if all(self._is_constant_per_lane(a) for m in terms for a in m):
            totals = [0] * scope.lanes
            for monomial, factor in terms.items():
                for lane in range(scope.lanes):
                    value = factor
                    for atom in monomial:
                        value *= self._atom_in_lane(atom, lane)
                    totals[lane] += value
            return tuple(totals)
        b = self.builder
        total: ir.Value | None = None
        for monomial, factor in self._outermost_first(terms):
            product: ir.Value = I64(factor)
            for atom in monomial:
                x, y = broadcast(b, product, self.atom(atom))
                product = b.mul(x, y)
            if total is not None:
                x, y = broadcast(b, total, product)
                product = b.add(x, y)
            total = product
        return splat(b, I64(0) if total is None else total, scope.lanes)

    def _is_constant_per_lane(self, atom: Expr) -> bool:
        """Whether the atom is a compile-time constant in every lane."""
        if atom is self.scope.lane:
            return True
        return self.scope.fold(atom, 0) is not None


def _add_terms(a: Terms, b: Terms) -> Terms:
    """The sum of two polynomials."""
    return {m: a.get(m, 0) + b.get(m, 0) for m in (*a, *b)}
