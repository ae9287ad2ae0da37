"""Iteration maps: the range of every binding of a block over its loops, and whether it is injective.

A binding is analysed as a mixed-radix number (`io*16 + ii`, `f // M`, `f % M`): its terms are taken in increasing order
of their steps, no step may exceed the span of the smaller terms. A predicate `index < bound` clips the range, and so
does a tile that is shifted inwards, `min(io*16, N - 16) + ii`. Other bindings are rejected with an `IterMapError`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import Bounds, facts_of
from tilewright.expr.algebra.intervals import has_no_wrap
from tilewright.expr.algebra.prover import can_prove, can_prove_le, can_prove_lt
from tilewright.expr.nodes import Binary, Expr, Var, const
from tilewright.expr.operations import conjunction, minimum
from tilewright.expr.traversal import conjuncts, free_vars, is_one
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import BlockIter, IterKind
from tilewright.verify.iter_split import IterSplit, exact_quotient, match_iter_split

_ONE = const(1)


class IterMapError(Exception):
    """A binding or predicate that cannot be analysed; the text says which and why."""


@dataclass(frozen=True, slots=True)
class IterRange:
    """The values offset, ..., offset + extent - 1; `injective` where no two iterations have the same value."""

    offset: Expr
    extent: Expr
    injective: bool


RangedIter = tuple[BlockIter, IterRange]
"""An iteration variable and the range of its binding."""

LoopExtent = tuple[Var, Expr]
"""The variable and the extent of a loop."""


def iter_ranges(context: BlockContext, include_spatial: bool, num_fixed_loops: int = 0) -> tuple[RangedIter, ...]:
    """The ranges of a block's bindings, which together are a box; the arguments are those of `IterMap`.

    Raises:
        IterMapError: a binding or the predicate cannot be analysed.
    """
    ranges = _iter_ranges(
        context.block.iters,
        tuple((x.var, x.extent) for x in context.loops),
        context.block.predicate,
        include_spatial,
        num_fixed_loops,
    )
    if isinstance(ranges, str):
        raise IterMapError(ranges)
    return ranges


@kernel_cache(maxsize=1 << 11)
def _iter_ranges(
    iters: tuple[BlockIter, ...],
    loops: tuple[LoopExtent, ...],
    predicate: Expr,
    include_spatial: bool,
    num_fixed_loops: int,
) -> tuple[RangedIter, ...] | str:
    """The ranges, or why they cannot be analysed."""
    try:
        return IterMap(
            iters, loops, predicate, Bounds.from_loops(loops).assuming(predicate), include_spatial, num_fixed_loops
        ).ranges()
    except IterMapError as error:
        return str(error)


class IterMap:
    """The analysis of a block's bindings over the iterations of its loops.

    Args:
        iters, predicate: of the block.
        loops: the enclosing loops, outermost first.
        bounds: ranges of the loop variables, and the predicate.
        include_spatial: whether all bindings are analysed; else those of reductions.
        num_fixed_loops: how many of the outermost loops are at one fixed iteration. Conditions on these alone become
            `outer_conditions`; conditions `binding < limit` with a fixed limit become `limits`, by the binding's
            position.
    """

    def __init__(
        self,
        iters: Sequence[BlockIter],
        loops: Sequence[LoopExtent],
        predicate: Expr,
        bounds: Bounds,
        include_spatial: bool,
        num_fixed_loops: int = 0,
    ) -> None:
        self.bounds, self.all_iters = bounds, iters
        self.variables = {v for v, _ in loops}
        self.outer_conditions: list[Expr] = []
        self.limits: dict[int, Expr] = {}
        self.all_or_none: set[Expr] = set()
        self.iters = tuple(i for i in iters if include_spatial or i.kind is IterKind.REDUCE)
        driving = {v for i in self.iters for v in free_vars(i.binding)}
        self.extents: dict[Var, Expr] = dict(loops[num_fixed_loops:])
        self.guards: dict[Expr, Expr] = {}
        self.used_splits: dict[Expr, list[IterSplit]] = {}
        self.source_extents: dict[Expr, Expr] = {}
        self.sources: dict[Var, set[Expr]] = {}
        conditions = [c for c in conjuncts(predicate) if include_spatial or free_vars(c) & driving]
        guards: list[Expr] = []
        for c in sorted(conditions, key=lambda c: -len(free_vars(c))):  # conditions on a whole binding before its parts
            if num_fixed_loops and not any(v in self.extents for v in free_vars(c)):
                self.outer_conditions.append(c)
            elif not (num_fixed_loops and self._note_limit(c)):
                guards.append(c)
        for c in reversed(guards):
            # A guard of one part may be implied by the guard of the whole: io < ceil(N/16) by io*16 + ii < N.
            others = [x for x in conditions if x is not c]
            if others and can_prove(c, bounds.without_facts().assuming(conjunction(*others))):
                conditions = others
                continue
            variant, bound = self._parse_guard(c)
            self.guards[variant] = bound if variant not in self.guards else minimum(self.guards[variant], bound)
        self.applied_guards: set[Expr] = set()

    @staticmethod
    def of(context: BlockContext, include_spatial: bool, num_fixed_loops: int = 0) -> "IterMap":
        """The iteration map of a block in its loops."""
        loops = tuple((x.var, x.extent) for x in context.loops)
        return IterMap(
            context.block.iters, loops, context.block.predicate, context.bounds, include_spatial, num_fixed_loops
        )

    def _parse_guard(self, c: Expr) -> tuple[Expr, Expr]:
        """(variant part, bound) of a condition `variant < bound`.

        Raises:
            IterMapError: it has another form, or may wrap.
        """
        if isinstance(c, Binary) and c.op in ("lt", "le") and c.a.dtype.name == "int64":
            difference = poly.polynomial(c.a - c.b + (0 if c.op == "lt" else -1))
            variant = {m: k for m, k in difference.items() if self._is_variant(m)}
            if variant and has_no_wrap(c.a, self.bounds) and has_no_wrap(c.b, self.bounds):
                return poly.expression(variant), poly.expression(poly.add(variant, difference, -1))
        raise IterMapError(f"predicate {c} is not of the form `index < bound`, so its iterations can't be counted")

    def _note_limit(self, c: Expr) -> bool:
        """Whether a condition is `binding < limit` with a loop-invariant limit; records it in `limits`."""
        for fact in facts_of(c):
            for position, i in enumerate(self.iters):
                limit = i.binding + fact + 1
                if position not in self.limits and not self._is_variant((limit,)):
                    self.limits[position] = limit
                    return True
        return False

    def _apply_limit(self, position: int, iter_range: IterRange) -> IterRange:
        """The range clipped by the limit of its binding, which is dropped, if it is proved to lie in the range."""
        bounds, limit = self._without_predicate(), self.limits.get(position)
        if limit is None or not can_prove_le(limit, iter_range.offset + iter_range.extent, bounds):
            return iter_range
        if not can_prove_le(iter_range.offset, limit, bounds):
            return iter_range
        del self.limits[position]
        return replace(iter_range, extent=limit - iter_range.offset)

    def _is_variant(self, m: poly.Monomial) -> bool:
        return any(v in self.extents for a in m for v in free_vars(a))

    def ranges(self) -> "tuple[RangedIter, ...]":
        """The ranges of the bindings. They are a box, as no loop drives two bindings, but for what remains in `limits`.

        Raises:
            IterMapError: a binding or the predicate cannot be analysed.
        """
        self._check_kinds()
        ranges = tuple(
            (i, self._apply_limit(position, self._binding_range(i))) for position, i in enumerate(self.iters)
        )
        bounds = self._without_predicate()
        for variant, bound in self.guards.items():
            if variant not in self.applied_guards and not can_prove_lt(variant, bound, bounds):
                # It is redundant where it holds at all points of the domain.
                if any(can_prove_lt(variant, bound, bounds.assuming(i.binding < i.extent)) for i in self.iters):
                    continue
                raise IterMapError(
                    f"predicate {variant} < {bound} clips no binding, so its iterations can't be counted"
                )
        partial = [source for source, splits in self.used_splits.items() if not self._is_complete(source, splits)]
        if self.all_or_none & set(partial):
            raise IterMapError("not all splits of an index that may be empty are used")
        return tuple(
            (i, replace(iter_range, injective=False) if any(s in self.sources[i.var] for s in partial) else iter_range)
            for i, iter_range in ranges
        )

    def _check_kinds(self) -> None:
        iters = self.all_iters
        spatial, reduce = ({v for i in iters if i.kind is kind for v in free_vars(i.binding)} for kind in IterKind)
        for v in sorted(spatial & reduce & self.variables, key=lambda v: v.name):
            raise IterMapError(f"loop {v.name!r} drives both spatial and reduction variables")

    def _without_predicate(self) -> Bounds:
        return self.bounds.without_facts()

    def _binding_range(self, i: BlockIter) -> IterRange:
        before = {source: len(splits) for source, splits in self.used_splits.items()}
        iter_range, extent = self._sum_range(i.binding, f"binding {i.binding}"), i.extent
        self.sources[i.var] = {
            source for source, splits in self.used_splits.items() if len(splits) != before.get(source, 0)
        }
        bounds = self._without_predicate()
        if iter_range.injective or can_prove_le(iter_range.offset + iter_range.extent, extent, bounds):
            return iter_range
        # Overlapping tiles exceed the domain only where a predicate excludes it: domains were checked before.
        return IterRange(
            iter_range.offset, minimum(iter_range.extent, extent - iter_range.offset), iter_range.injective
        )

    def _sum_range(self, e: Expr, what: str) -> IterRange:
        """The range of a sum of splits, or of a tile that is shifted inwards; `what` names it in errors."""
        shift = self._match_shifted_tile(e)
        if shift is not None:
            iter_range, has_offset = self._shifted_tile_range(*shift, what)
            variant = poly.expression({m: k for m, k in poly.polynomial(e).items() if self._is_variant(m)})
            return iter_range if has_offset else replace(iter_range, extent=self._clip(variant, iter_range.extent))
        offset, terms = self._split_terms(e, what)
        extent, injective = self._mixed_radix_range(self._merge_guarded(terms), what)
        variant = poly.expression({m: k for m, k in poly.polynomial(e).items() if m not in offset})
        return IterRange(poly.expression(offset), self._clip(variant, extent), injective)

    def _match_shifted_tile(self, e: Expr) -> tuple[Expr, Expr, Expr] | None:
        """(a, b, r) where `e` is min(a, b) + r, a varies with the loops and b does not."""
        for m, k in poly.polynomial(e).items():
            if k >= 1 and len(m) == 1 and isinstance(atom := m[0], Binary) and atom.op == "min":
                for a, b in ((atom.a, atom.b), (atom.b, atom.a)):
                    if self._is_variant((a,)) and not self._is_variant((b,)):
                        return a * k, b * k, e - atom * k
        return None

    def _shifted_tile_range(self, start: Expr, limit: Expr, rest: Expr, what: str) -> tuple[IterRange, bool]:
        """The range of min(start, limit) + rest, contiguous tiles; and whether `start` has an offset."""
        tile = self._sum_range(rest, what)
        offset, terms = self._split_terms(start, what)
        first = poly.expression(offset)
        last = limit - first
        if not can_prove_le(const(0), last, self._without_predicate()):
            raise IterMapError(f"{what} starts at {limit}, which is not proved to be at least {first}")
        extent, _ = self._mixed_radix_range(self._merge_guarded(terms, allow_all=True), what, tile.extent)
        return IterRange(tile.offset + first, self._minimum(last + tile.extent, extent), False), bool(offset)

    def _split_terms(self, e: Expr, what: str) -> tuple[poly.Polynomial, list[tuple[Expr, Expr, Expr]]]:
        """The loop-invariant part of a sum, and (step, split, number of values) of the other terms."""
        offset: poly.Polynomial = {}
        steps: dict[Expr, poly.Polynomial] = {}
        for m, k in poly.polynomial(e).items():
            atoms = [a for a in m if any(v in self.extents for v in free_vars(a))]
            if not atoms:
                offset[m] = k
            elif len(atoms) == 1:
                rest = tuple(a for a in m if a is not atoms[0])
                steps[atoms[0]] = poly.add(steps.get(atoms[0], {}), {rest: k})
            else:
                raise IterMapError(f"{what} multiplies loop variables")
        return offset, [(poly.expression(s), *self._split_values(a, what)) for a, s in steps.items()]

    def _coefficients(self, e: Expr) -> dict[Expr, Expr]:
        """The coefficients of the loop-variant atoms of a sum; empty where two of them are multiplied."""
        coefficients: dict[Expr, poly.Polynomial] = {}
        for m, k in poly.polynomial(e).items():
            atoms = [a for a in m if any(v in self.extents for v in free_vars(a))]
            if len(atoms) != 1:
                return {}
            rest = tuple(a for a in m if a is not atoms[0])
            coefficients[atoms[0]] = poly.add(coefficients.get(atoms[0], {}), {rest: k})
        return {atom: poly.expression(p) for atom, p in coefficients.items()}

    def _clip(self, variant: Expr, extent: Expr) -> Expr:
        """The extent of an index, clipped by the guard on it if there is one."""
        bound = self.guards.get(variant)
        if bound is None:
            return extent
        self.applied_guards.add(variant)
        return self._minimum(bound, extent)

    def _minimum(self, a: Expr, b: Expr) -> Expr:
        bounds = self._without_predicate()
        return a if can_prove_le(a, b, bounds) else b if can_prove_le(b, a, bounds) else minimum(a, b)

    def _split_values(self, atom: Expr, what: str) -> tuple[Expr, Expr]:
        """(atom, number of its values) of a split, which is recorded in `used_splits`."""
        split = match_iter_split(atom)
        if split is None or any(
            v in self.extents for e in (split.lower_factor, split.extent) if e is not None for v in free_vars(e)
        ):
            raise IterMapError(f"{what} is not a sum of multiples, quotients and remainders of loop variables: {atom}")
        self.used_splits.setdefault(split.source, []).append(split)
        source_extent = self._source_extent(split.source, what)
        if split.source is atom:
            return atom, source_extent
        exact = exact_quotient(source_extent, split.lower_factor)
        values = (source_extent - 1) // split.lower_factor + 1 if exact is None else exact
        if split.extent is None:
            return atom, values
        count = self._minimum(split.extent, values)
        if count is not split.extent and count is not values and exact_quotient(values, split.extent) is not None:
            # All values or none; where none, the other splits of the source have none either.
            self.all_or_none.add(split.source)
            return atom, split.extent
        return atom, count

    def _source_extent(self, source: Expr, what: str) -> Expr:
        if isinstance(source, Var):
            return self._clip(source, self.extents[source])
        if source not in self.source_extents:
            iter_range = self._sum_range(source, what)
            if poly.polynomial(iter_range.offset) or not iter_range.injective:
                raise IterMapError(f"{what} splits {source}, whose values are not 0, 1, 2, ...")
            self.source_extents[source] = iter_range.extent
        return self.source_extents[source]

    def _merge_guarded(self, terms: list[tuple[Expr, Expr, Expr]], allow_all: bool = False) -> list[tuple[Expr, Expr]]:
        """(step, number of values) of the terms, those under one guard merged; all of them only if `allow_all`."""
        remaining = list(terms)
        merged: list[tuple[Expr, Expr]] = []
        for variant, bound in sorted(self.guards.items(), key=lambda g: len(poly.polynomial(g[0]))):
            coefficients = self._coefficients(variant)
            guarded = [t for t in remaining if t[1] in coefficients]
            if not guarded or len(guarded) != len(coefficients) or (len(guarded) == len(terms) and not allow_all):
                continue
            simplest = min(guarded, key=lambda t: coefficients[t[1]].tree_size)
            scale = exact_quotient(simplest[0], coefficients[simplest[1]])
            if scale is None or any(scale * coefficients[atom] is not step for step, atom, _ in guarded):
                continue
            try:
                extent, injective = self._mixed_radix_range(
                    [(coefficients[atom], n) for _, atom, n in guarded], f"predicate on {variant}"
                )
            except IterMapError:
                continue  # another condition may imply this one
            if injective:
                self.applied_guards.add(variant)
                merged.append((scale, self._minimum(bound, extent)))
                remaining = [t for t in remaining if t not in guarded]
        return merged + [(step, n) for step, _, n in remaining]

    def _mixed_radix_range(self, terms: list[tuple[Expr, Expr]], what: str, span: Expr = _ONE) -> tuple[Expr, bool]:
        """The extent of the sum of all step * (0 .. n-1) and of 0 .. span-1, and whether the sum is injective.

        Raises:
            IterMapError: the values have gaps.
        """
        injective = True
        bounds = self._without_predicate()
        remaining = [(step, n) for step, n in terms if not is_one(n)]
        while remaining:
            exact = next((t for t in remaining if t[0] is span), None)
            dense = (
                t
                for t in remaining
                if all(can_prove_le(*pair, bounds) for pair in ((_ONE, t[0]), (t[0], span), (_ONE, t[1])))
            )
            term = exact or next(dense, None)
            if term is None:
                steps = ", ".join(str(step) for step, _ in remaining)
                problem = f"leaves gaps or is not a number in mixed radix: step {steps} after {span} values"
                raise IterMapError(f"{what} {problem}")
            injective = injective and exact is not None
            span = span * term[1] if exact else term[0] * (term[1] - 1) + span
            remaining.remove(term)
        return span, injective

    def _is_complete(self, source: Expr, splits: Sequence[IterSplit]) -> bool:
        """Whether the splits of an index determine it.

        Raises:
            IterMapError: several splits do not, so that bindings miss combinations of their values.
        """
        by_factor = {split.lower_factor: split for split in splits}
        factor: Expr | None = const(1)
        while factor is not None and factor in by_factor:
            extent = by_factor.pop(factor).extent
            factor = None if extent is None else factor * extent
        complete = factor is None and not by_factor and len(splits) == len({split.lower_factor for split in splits})
        if complete or len(splits) == 1:
            top = max(splits, key=lambda split: split.extent is None)
            if complete and exact_quotient(self._source_extent(source, f"{source}"), top.lower_factor) is None:
                shown = ", ".join(str(i.binding) for i in self.iters)
                what = f"the extent of {source} is no multiple of {top.lower_factor}"
                raise IterMapError(f"{what}, so bindings miss combinations of values: {shown}")
            return complete
        shown = ", ".join(str(i.binding) for i in self.iters)
        raise IterMapError(f"{source} drives several bindings, so they miss combinations of values: {shown}")
