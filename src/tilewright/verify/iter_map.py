"""Images of bindings: which points of its domain a block reaches, and whether it reaches each once.

The image of a binding is found by reading it as a number in mixed radix (`io*16 + ii`, `f // M`, `f % M`): terms in
growing order, each step no larger than what the smaller terms span. A predicate `index < bound` cuts the image, and so
does a tile that is shifted inwards, `min(io*16, N - 16) + ii`. Bindings of other forms are not understood.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import Bounds, facts_of
from tilewright.expr.algebra.intervals import has_no_wrap
from tilewright.expr.algebra.prover import can_prove, can_prove_le, can_prove_lt
from tilewright.expr.nodes import Binary, Const, Expr, Var, const
from tilewright.expr.operations import conjunction, minimum
from tilewright.expr.traversal import conjuncts, free_vars
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import BlockIter, IterKind
from tilewright.verify.iter_split import IterSplit, exact_quotient, match_iter_split

_ONE = const(1)


class IterMapError(Exception):
    """A binding or predicate whose image is not understood; the text says which."""


@dataclass(frozen=True, slots=True)
class IterRange:
    """The values offset, ..., offset + size - 1; `once` where no two iterations give the same value."""

    offset: Expr
    extent: Expr
    injective: bool


RangedIter = tuple[BlockIter, IterRange]

LoopExtent = tuple[Var, Expr]
"""A loop: its variable and how often it runs."""


def iter_ranges(context: BlockContext, include_spatial: bool, num_fixed_loops: int = 0) -> tuple[RangedIter, ...]:
    """The image of every binding of a block in question (see `IterMap`); together they are a box.

    Raises:
        UnclearError: one of them is not understood.
    """
    found = _iter_ranges(
        context.block.iters,
        tuple((x.var, x.extent) for x in context.loops),
        context.block.predicate,
        include_spatial,
        num_fixed_loops,
    )
    if isinstance(found, str):
        raise IterMapError(found)
    return found


@lru_cache(maxsize=1 << 11)
def _iter_ranges(
    iters: tuple[BlockIter, ...],
    loops: tuple[LoopExtent, ...],
    predicate: Expr,
    include_spatial: bool,
    num_fixed_loops: int,
) -> tuple[RangedIter, ...] | str:
    """The images, or why they are not understood."""
    try:
        return IterMap(
            iters, loops, predicate, Bounds.from_loops(loops).assuming(predicate), include_spatial, num_fixed_loops
        ).ranges()
    except IterMapError as reason:
        return str(reason)


class IterMap:
    """The images of a block's bindings over all iterations of its loops.

    Args:
        iters, predicate: of the block.
        loops: those around it, outermost first.
        known: ranges of the loops' variables, and the predicate.
        whole: whether all its variables are in question; else the reductions.
        fixed: how many of the loops, from the outermost on, stand still. Conditions on them alone are `kept` apart, and
            so are those that limit a whole binding (`limits`, by its place).
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
        for c in sorted(conditions, key=lambda c: -len(free_vars(c))):  # what limits the whole before its parts
            if num_fixed_loops and not any(v in self.extents for v in free_vars(c)):
                self.outer_conditions.append(c)
            elif not (num_fixed_loops and self._note_limit(c)):
                guards.append(c)
        for c in reversed(guards):
            # What guards a part may follow from what guards the whole: io < ceil(N/16) where io*16 + ii < N.
            others = [x for x in conditions if x is not c]
            if others and can_prove(c, bounds.without_facts().assuming(conjunction(*others))):
                conditions = others
                continue
            moving, bound = self._parse_guard(c)
            self.guards[moving] = bound if moving not in self.guards else minimum(self.guards[moving], bound)
        self.applied_guards: set[Expr] = set()

    @staticmethod
    def of(context: BlockContext, include_spatial: bool, num_fixed_loops: int = 0) -> "IterMap":
        """The images of a block in its loops."""
        loops = tuple((x.var, x.extent) for x in context.loops)
        return IterMap(
            context.block.iters, loops, context.block.predicate, context.bounds, include_spatial, num_fixed_loops
        )

    def _parse_guard(self, c: Expr) -> tuple[Expr, Expr]:
        """(moving part, bound) of a condition `moving < bound`."""
        if isinstance(c, Binary) and c.op in ("lt", "le") and c.a.dtype.name == "int64":
            difference = poly.polynomial(c.a - c.b + (0 if c.op == "lt" else -1))
            moving = {m: k for m, k in difference.items() if self._is_variant(m)}
            if moving and has_no_wrap(c.a, self.bounds) and has_no_wrap(c.b, self.bounds):
                return poly.expression(moving), poly.expression(poly.add(moving, difference, -1))
        raise IterMapError(f"predicate {c} is not of the form `index < bound`, so its iterations can't be counted")

    def _note_limit(self, c: Expr) -> bool:
        """Whether a condition is `binding < limit` for a limit that stands still; notes it."""
        for fact in facts_of(c):
            for place, i in enumerate(self.iters):
                limit = i.binding + fact + 1
                if place not in self.limits and not self._is_variant((limit,)):
                    self.limits[place] = limit
                    return True
        return False

    def _apply_limit(self, place: int, image: IterRange) -> IterRange:
        """The image cut by the limit of its binding, where that is known to lie in it; the limit is done then."""
        bounds, limit = self._without_predicate(), self.limits.get(place)
        if limit is None or not can_prove_le(limit, image.offset + image.extent, bounds):
            return image
        if not can_prove_le(image.offset, limit, bounds):
            return image
        del self.limits[place]
        return replace(image, extent=limit - image.offset)

    def _is_variant(self, m: poly.Monomial) -> bool:
        return any(v in self.extents for a in m for v in free_vars(a))

    def ranges(self) -> "tuple[RangedIter, ...]":
        """The image of every binding in question; together they are a box, since no loop drives two of them, but for
        what is left in `limits`."""
        self._check_kinds()
        images = tuple((i, self._apply_limit(place, self._binding_range(i))) for place, i in enumerate(self.iters))
        bounds = self._without_predicate()
        for moving, bound in self.guards.items():
            if moving not in self.applied_guards and not can_prove_lt(moving, bound, bounds):
                # It goes without saying where it holds at all points of the domain.
                if any(can_prove_lt(moving, bound, bounds.assuming(i.binding < i.extent)) for i in self.iters):
                    continue
                raise IterMapError(f"predicate {moving} < {bound} cuts no binding, so its iterations can't be counted")
        partial = [source for source, digits in self.used_splits.items() if not self._is_complete(source, digits)]
        if self.all_or_none & set(partial):
            raise IterMapError("not all digits of an index that may take no value are used")
        return tuple(
            (i, replace(image, injective=False) if any(s in self.sources[i.var] for s in partial) else image)
            for i, image in images
        )

    def _check_kinds(self) -> None:
        iters = self.all_iters
        spatial, reduce = ({v for i in iters if i.kind is kind for v in free_vars(i.binding)} for kind in IterKind)
        for v in sorted(spatial & reduce & self.variables, key=lambda v: v.name):
            raise IterMapError(f"loop {v.name!r} drives both spatial and reduction variables")

    def _without_predicate(self) -> Bounds:
        return self.bounds.without_facts()

    def _binding_range(self, i: BlockIter) -> IterRange:
        before = {source: len(digits) for source, digits in self.used_splits.items()}
        image, extent = self._sum_range(i.binding, f"binding {i.binding}"), i.extent
        self.sources[i.var] = {
            source for source, digits in self.used_splits.items() if len(digits) != before.get(source, 0)
        }
        bounds = self._without_predicate()
        if image.injective or can_prove_le(image.offset + image.extent, extent, bounds):
            return image
        # Overlapping tiles reach beyond the domain only where a predicate stops them: the domains are checked before.
        return IterRange(image.offset, minimum(image.extent, extent - image.offset), image.injective)

    def _sum_range(self, e: Expr, what: str) -> IterRange:
        """The image of a sum of digits, or of a tile that is shifted inwards."""
        shift = self._match_shifted_tile(e)
        if shift is not None:
            image, moved = self._shifted_tile_range(*shift, what)
            moving = poly.expression({m: k for m, k in poly.polynomial(e).items() if self._is_variant(m)})
            return image if moved else replace(image, extent=self._clip(moving, image.extent))
        offset, terms = self._split_terms(e, what)
        size, once = self._mixed_radix_range(self._merge_guarded(terms), what)
        moving = poly.expression({m: k for m, k in poly.polynomial(e).items() if m not in offset})
        return IterRange(poly.expression(offset), self._clip(moving, size), once)

    def _match_shifted_tile(self, e: Expr) -> tuple[Expr, Expr, Expr] | None:
        """(a, b, r) where `e` is min(a, b) + r and the loops move a, not b."""
        for m, k in poly.polynomial(e).items():
            if k >= 1 and len(m) == 1 and isinstance(atom := m[0], Binary) and atom.op == "min":
                for a, b in ((atom.a, atom.b), (atom.b, atom.a)):
                    if self._is_variant((a,)) and not self._is_variant((b,)):
                        return a * k, b * k, e - atom * k
        return None

    def _shifted_tile_range(self, start: Expr, limit: Expr, rest: Expr, what: str) -> tuple[IterRange, bool]:
        """The image of min(start, limit) + rest, tiles that follow each other without gaps up to limit + rest; and
        whether `start` begins elsewhere than at 0."""
        tile = self._sum_range(rest, what)
        first, terms = self._split_terms(start, what)
        last = limit - poly.expression(first)
        if not can_prove_le(const(0), last, self._without_predicate()):
            raise IterMapError(f"{what} starts at {limit}, which is not proved to be at least {poly.expression(first)}")
        size, _ = self._mixed_radix_range(self._merge_guarded(terms, include_spatial=True), what, tile.extent)
        return IterRange(tile.offset + poly.expression(first), self._minimum(last + tile.extent, size), False), bool(
            first
        )

    def _split_terms(self, e: Expr, what: str) -> tuple[poly.Polynomial, list[tuple[Expr, Expr, Expr]]]:
        """The part of a sum that does not move, and (step, digit, values) of the others."""
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
        """What every moving atom of a sum is multiplied by; nothing where two of them are multiplied."""
        found: dict[Expr, poly.Polynomial] = {}
        for m, k in poly.polynomial(e).items():
            atoms = [a for a in m if any(v in self.extents for v in free_vars(a))]
            if len(atoms) != 1:
                return {}
            rest = tuple(a for a in m if a is not atoms[0])
            found[atoms[0]] = poly.add(found.get(atoms[0], {}), {rest: k})
        return {atom: poly.expression(p) for atom, p in found.items()}

    def _clip(self, moving: Expr, size: Expr) -> Expr:
        bound = self.guards.get(moving)
        if bound is None:
            return size
        self.applied_guards.add(moving)
        return self._minimum(bound, size)

    def _minimum(self, a: Expr, b: Expr) -> Expr:
        bounds = self._without_predicate()
        return a if can_prove_le(a, b, bounds) else b if can_prove_le(b, a, bounds) else minimum(a, b)

    def _split_values(self, atom: Expr, what: str) -> tuple[Expr, Expr]:
        """(atom, number of values) of a digit; notes its use."""
        d = match_iter_split(atom)
        if d is None or any(
            v in self.extents for e in (d.lower_factor, d.extent) if e is not None for v in free_vars(e)
        ):
            raise IterMapError(f"{what} is not a sum of multiples, quotients and remainders of loop variables: {atom}")
        include_spatial = d.source is atom
        self.used_splits.setdefault(d.source, []).append(d)
        source = self._source_extent(d.source, what)
        if include_spatial:
            return atom, source
        exact = exact_quotient(source, d.lower_factor)
        values = (source - 1) // d.lower_factor + 1 if exact is None else exact
        if d.extent is None:
            return atom, values
        least = self._minimum(d.extent, values)
        if least is not d.extent and least is not values and exact_quotient(values, d.extent) is not None:
            # All values or none; where none, the other digits of the source have none either.
            self.all_or_none.add(d.source)
            return atom, d.extent
        return atom, least

    def _source_extent(self, source: Expr, what: str) -> Expr:
        if isinstance(source, Var):
            return self._clip(source, self.extents[source])
        if source not in self.source_extents:
            image = self._sum_range(source, what)
            if poly.polynomial(image.offset) or not image.injective:
                raise IterMapError(f"{what} takes digits of {source}, which does not count 0, 1, 2, ...")
            self.source_extents[source] = image.extent
        return self.source_extents[source]

    def _merge_guarded(
        self, terms: list[tuple[Expr, Expr, Expr]], include_spatial: bool = False
    ) -> list[tuple[Expr, Expr]]:
        """(step, values) of the terms, those that a guard cuts together made one; all of them only where `whole`."""
        left = list(terms)
        found: list[tuple[Expr, Expr]] = []
        for moving, bound in sorted(self.guards.items(), key=lambda g: len(poly.polynomial(g[0]))):
            parts = self._coefficients(moving)
            mine = [t for t in left if t[1] in parts]
            if not mine or len(mine) != len(parts) or (len(mine) == len(terms) and not include_spatial):
                continue
            least = min(mine, key=lambda t: len(str(parts[t[1]])))
            scale = exact_quotient(least[0], parts[least[1]])
            if scale is None or any(scale * parts[atom] is not step for step, atom, _ in mine):
                continue
            try:
                size, once = self._mixed_radix_range(
                    [(parts[atom], n) for _, atom, n in mine], f"predicate on {moving}"
                )
            except IterMapError:
                continue  # another condition may say what this one does
            if once:
                self.applied_guards.add(moving)
                found.append((scale, self._minimum(bound, size)))
                left = [t for t in left if t not in mine]
        return found + [(step, n) for step, _, n in left]

    def _mixed_radix_range(self, terms: list[tuple[Expr, Expr]], what: str, span: Expr = _ONE) -> tuple[Expr, bool]:
        """How many values from 0 the sum of step * (0 .. n-1) and of 0 .. span-1 takes, and whether each once."""
        once = True
        bounds = self._without_predicate()
        left = [(step, n) for step, n in terms if not (isinstance(n, Const) and n.value == 1)]
        while left:
            exact = next((t for t in left if t[0] is span), None)
            dense = (
                t
                for t in left
                if all(can_prove_le(*pair, bounds) for pair in ((_ONE, t[0]), (t[0], span), (_ONE, t[1])))
            )
            chosen = exact or next(dense, None)
            if chosen is None:
                shown = ", ".join(str(step) for step, _ in left)
                reason = f"leaves gaps or is not a number in mixed radix: step {shown} after {span} values"
                raise IterMapError(f"{what} {reason}")
            once = once and exact is not None
            span = span * chosen[1] if exact else chosen[0] * (chosen[1] - 1) + span
            left.remove(chosen)
        return span, once

    def _is_complete(self, source: Expr, digits: Sequence[IterSplit]) -> bool:
        """Whether the digits that are used are all of the index; several must be independent of each other."""
        left = {d.lower_factor: d for d in digits}
        here: Expr | None = const(1)
        while here is not None and here in left:
            modulus = left.pop(here).extent
            here = None if modulus is None else here * modulus
        complete = here is None and not left and len(digits) == len({d.lower_factor for d in digits})
        if complete or len(digits) == 1:
            top = max(digits, key=lambda d: d.extent is None)
            if complete and exact_quotient(self._source_extent(source, f"{source}"), top.lower_factor) is None:
                shown = ", ".join(str(i.binding) for i in self.iters)
                what = f"the extent of {source} is no multiple of {top.lower_factor}"
                raise IterMapError(f"{what}, so bindings miss combinations of values: {shown}")
            return complete
        shown = ", ".join(str(i.binding) for i in self.iters)
        raise IterMapError(f"{source} drives several bindings, so they miss combinations of values: {shown}")
