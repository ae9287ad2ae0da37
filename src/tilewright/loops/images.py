"""Images of bindings: which points of its domain a block reaches, and whether it reaches each once.

The image of a binding is found by reading it as a number in mixed radix (`io*16 + ii`, `f // M`, `f % M`): terms in
growing order, each step no larger than what the smaller terms span. A predicate `index < bound` cuts the image, and so
does a tile that is shifted inwards, `min(io*16, N - 16) + ii`. Bindings of other forms are not understood.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.expr import polynomial as poly
from tilewright.expr.bounds import Bounds, facts_of
from tilewright.expr.intervals import exact
from tilewright.expr.nodes import Binary, Const, Expr, Var, both, conjuncts, const, free_vars, minimum
from tilewright.expr.prover import at_most, below, prove
from tilewright.loops.ir import BlockIter, IterKind
from tilewright.loops.nest import Digit, Nest, digit, exact_quotient

ONE = const(1)


class UnclearError(Exception):
    """A binding or predicate whose image is not understood; the text says which."""


@dataclass(frozen=True, slots=True)
class Image:
    """The values offset, ..., offset + size - 1; `once` where no two iterations give the same value."""

    offset: Expr
    size: Expr
    once: bool


Placed = tuple[BlockIter, Image]

Counted = tuple[Var, Expr]
"""A loop: its variable and how often it runs."""


def images_of(nest: Nest, whole: bool, fixed: int = 0) -> tuple[Placed, ...]:
    """The image of every binding of a block in question (see `Images`); together they are a box.

    Raises:
        UnclearError: one of them is not understood.
    """
    found = _images(nest.block.iters, tuple((x.var, x.extent) for x in nest.loops), nest.block.predicate, whole, fixed)
    if isinstance(found, str):
        raise UnclearError(found)
    return found


@lru_cache(maxsize=1 << 11)
def _images(
    iters: tuple[BlockIter, ...], loops: tuple[Counted, ...], predicate: Expr, whole: bool, fixed: int
) -> tuple[Placed, ...] | str:
    """The images, or why they are not understood."""
    try:
        return Images(iters, loops, predicate, Bounds.inside(loops).assuming(predicate), whole, fixed).all()
    except UnclearError as reason:
        return str(reason)


class Images:
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
        self, iters: Sequence[BlockIter], loops: Sequence[Counted], predicate: Expr, known: Bounds, whole: bool,
        fixed: int = 0,
    ) -> None:  # fmt: skip
        self.known, self.all_iters = known, iters
        self.variables = {v for v, _ in loops}
        self.kept: list[Expr] = []
        self.limits: dict[int, Expr] = {}
        self.all_or_none: set[Expr] = set()
        self.iters = tuple(i for i in iters if whole or i.kind is IterKind.REDUCE)
        driving = {v for i in self.iters for v in free_vars(i.binding)}
        self.extents: dict[Var, Expr] = dict(loops[fixed:])
        self.guards: dict[Expr, Expr] = {}
        self.used: dict[Expr, list[Digit]] = {}
        self.sizes: dict[Expr, Expr] = {}
        self.sources: dict[Var, set[Expr]] = {}
        conditions = [c for c in conjuncts(predicate) if whole or free_vars(c) & driving]
        guards: list[Expr] = []
        for c in sorted(conditions, key=lambda c: -len(free_vars(c))):  # what limits the whole before its parts
            if fixed and not any(v in self.extents for v in free_vars(c)):
                self.kept.append(c)
            elif not (fixed and self._limited(c)):
                guards.append(c)
        for c in reversed(guards):
            # What guards a part may follow from what guards the whole: io < ceil(N/16) where io*16 + ii < N.
            others = [x for x in conditions if x is not c]
            if others and prove(c, known.without_facts().assuming(both(*others))):
                conditions = others
                continue
            moving, bound = self._guard(c)
            self.guards[moving] = bound if moving not in self.guards else minimum(self.guards[moving], bound)
        self.cut: set[Expr] = set()

    @staticmethod
    def of(nest: Nest, whole: bool, fixed: int = 0) -> "Images":
        """The images of a block in its loops."""
        loops = tuple((x.var, x.extent) for x in nest.loops)
        return Images(nest.block.iters, loops, nest.block.predicate, nest.known, whole, fixed)

    def _guard(self, c: Expr) -> tuple[Expr, Expr]:
        """(moving part, bound) of a condition `moving < bound`."""
        if isinstance(c, Binary) and c.op in ("lt", "le") and c.a.dtype.name == "int64":
            difference = poly.polynomial(c.a - c.b + (0 if c.op == "lt" else -1))
            moving = {m: k for m, k in difference.items() if self._moves(m)}
            if moving and exact(c.a, self.known) and exact(c.b, self.known):
                return poly.expression(moving), poly.expression(poly.added(moving, difference, -1))
        raise UnclearError(f"predicate {c} is not of the form `index < bound`, so its iterations can't be counted")

    def _limited(self, c: Expr) -> bool:
        """Whether a condition is `binding < limit` for a limit that stands still; notes it."""
        for fact in facts_of(c):
            for place, i in enumerate(self.iters):
                limit = i.binding + fact + 1
                if place not in self.limits and not self._moves((limit,)):
                    self.limits[place] = limit
                    return True
        return False

    def _limit(self, place: int, image: Image) -> Image:
        """The image cut by the limit of its binding, where that is known to lie in it; the limit is done then."""
        known, limit = self._without_predicate(), self.limits.get(place)
        if limit is None or not at_most(limit, image.offset + image.size, known):
            return image
        if not at_most(image.offset, limit, known):
            return image
        del self.limits[place]
        return replace(image, size=limit - image.offset)

    def _moves(self, m: poly.Monomial) -> bool:
        return any(v in self.extents for a in m for v in free_vars(a))

    def all(self) -> "tuple[Placed, ...]":
        """The image of every binding in question; together they are a box, since no loop drives two of them, but for
        what is left in `limits`."""
        self._check_kinds()
        images = tuple((i, self._limit(place, self._binding(i))) for place, i in enumerate(self.iters))
        known = self._without_predicate()
        for moving, bound in self.guards.items():
            if moving not in self.cut and not below(moving, bound, known):
                # It goes without saying where it holds at all points of the domain.
                if any(below(moving, bound, known.assuming(i.binding < i.extent)) for i in self.iters):
                    continue
                raise UnclearError(f"predicate {moving} < {bound} cuts no binding, so its iterations can't be counted")
        partial = [source for source, digits in self.used.items() if not self._check_digits(source, digits)]
        if self.all_or_none & set(partial):
            raise UnclearError("not all digits of an index that may take no value are used")
        return tuple(
            (i, replace(image, once=False) if any(s in self.sources[i.var] for s in partial) else image)
            for i, image in images
        )

    def _check_kinds(self) -> None:
        iters = self.all_iters
        spatial, reduce = ({v for i in iters if i.kind is kind for v in free_vars(i.binding)} for kind in IterKind)
        for v in sorted(spatial & reduce & self.variables, key=lambda v: v.name):
            raise UnclearError(f"loop {v.name!r} drives both spatial and reduction variables")

    def _without_predicate(self) -> Bounds:
        return self.known.without_facts()

    def _binding(self, i: BlockIter) -> Image:
        before = {source: len(digits) for source, digits in self.used.items()}
        image, extent = self._sum(i.binding, f"binding {i.binding}"), i.extent
        self.sources[i.var] = {source for source, digits in self.used.items() if len(digits) != before.get(source, 0)}
        known = self._without_predicate()
        if image.once or at_most(image.offset + image.size, extent, known):
            return image
        # Overlapping tiles reach beyond the domain only where a predicate stops them: the domains are checked before.
        return Image(image.offset, minimum(image.size, extent - image.offset), image.once)

    def _sum(self, e: Expr, what: str) -> Image:
        """The image of a sum of digits, or of a tile that is shifted inwards."""
        shift = self._shift(e)
        if shift is not None:
            image, moved = self._shifted_tiles(*shift, what)
            moving = poly.expression({m: k for m, k in poly.polynomial(e).items() if self._moves(m)})
            return image if moved else replace(image, size=self._clipped(moving, image.size))
        offset, terms = self._terms(e, what)
        size, once = self._radix(self._grouped(terms), what)
        moving = poly.expression({m: k for m, k in poly.polynomial(e).items() if m not in offset})
        return Image(poly.expression(offset), self._clipped(moving, size), once)

    def _shift(self, e: Expr) -> tuple[Expr, Expr, Expr] | None:
        """(a, b, r) where `e` is min(a, b) + r and the loops move a, not b."""
        for m, k in poly.polynomial(e).items():
            if k >= 1 and len(m) == 1 and isinstance(atom := m[0], Binary) and atom.op == "min":
                for a, b in ((atom.a, atom.b), (atom.b, atom.a)):
                    if self._moves((a,)) and not self._moves((b,)):
                        return a * k, b * k, e - atom * k
        return None

    def _shifted_tiles(self, start: Expr, limit: Expr, rest: Expr, what: str) -> tuple[Image, bool]:
        """The image of min(start, limit) + rest, tiles that follow each other without gaps up to limit + rest; and
        whether `start` begins elsewhere than at 0."""
        tile = self._sum(rest, what)
        first, terms = self._terms(start, what)
        last = limit - poly.expression(first)
        if not at_most(const(0), last, self._without_predicate()):
            raise UnclearError(f"{what} starts at {limit}, which is not proved to be at least {poly.expression(first)}")
        size, _ = self._radix(self._grouped(terms, whole=True), what, tile.size)
        return Image(tile.offset + poly.expression(first), self._least(last + tile.size, size), False), bool(first)

    def _terms(self, e: Expr, what: str) -> tuple[poly.Polynomial, list[tuple[Expr, Expr, Expr]]]:
        """The part of a sum that does not move, and (step, digit, values) of the others."""
        offset: poly.Polynomial = {}
        steps: dict[Expr, poly.Polynomial] = {}
        for m, k in poly.polynomial(e).items():
            atoms = [a for a in m if any(v in self.extents for v in free_vars(a))]
            if not atoms:
                offset[m] = k
            elif len(atoms) == 1:
                rest = tuple(a for a in m if a is not atoms[0])
                steps[atoms[0]] = poly.added(steps.get(atoms[0], {}), {rest: k})
            else:
                raise UnclearError(f"{what} multiplies loop variables")
        return offset, [(poly.expression(s), *self._digit(a, what)) for a, s in steps.items()]

    def _coefficients(self, e: Expr) -> dict[Expr, Expr]:
        """What every moving atom of a sum is multiplied by; nothing where two of them are multiplied."""
        found: dict[Expr, poly.Polynomial] = {}
        for m, k in poly.polynomial(e).items():
            atoms = [a for a in m if any(v in self.extents for v in free_vars(a))]
            if len(atoms) != 1:
                return {}
            rest = tuple(a for a in m if a is not atoms[0])
            found[atoms[0]] = poly.added(found.get(atoms[0], {}), {rest: k})
        return {atom: poly.expression(p) for atom, p in found.items()}

    def _clipped(self, moving: Expr, size: Expr) -> Expr:
        bound = self.guards.get(moving)
        if bound is None:
            return size
        self.cut.add(moving)
        return self._least(bound, size)

    def _least(self, a: Expr, b: Expr) -> Expr:
        known = self._without_predicate()
        return a if at_most(a, b, known) else b if at_most(b, a, known) else minimum(a, b)

    def _digit(self, atom: Expr, what: str) -> tuple[Expr, Expr]:
        """(atom, number of values) of a digit; notes its use."""
        d = digit(atom)
        if d is None or any(v in self.extents for e in (d.lower, d.modulus) if e is not None for v in free_vars(e)):
            raise UnclearError(f"{what} is not a sum of multiples, quotients and remainders of loop variables: {atom}")
        whole = d.source is atom
        self.used.setdefault(d.source, []).append(d)
        source = self._size_of_source(d.source, what)
        if whole:
            return atom, source
        exact = exact_quotient(source, d.lower)
        values = (source - 1) // d.lower + 1 if exact is None else exact
        if d.modulus is None:
            return atom, values
        least = self._least(d.modulus, values)
        if least is not d.modulus and least is not values and exact_quotient(values, d.modulus) is not None:
            # All values or none; where none, the other digits of the source have none either.
            self.all_or_none.add(d.source)
            return atom, d.modulus
        return atom, least

    def _size_of_source(self, source: Expr, what: str) -> Expr:
        if isinstance(source, Var):
            return self._clipped(source, self.extents[source])
        if source not in self.sizes:
            image = self._sum(source, what)
            if poly.polynomial(image.offset) or not image.once:
                raise UnclearError(f"{what} takes digits of {source}, which does not count 0, 1, 2, ...")
            self.sizes[source] = image.size
        return self.sizes[source]

    def _grouped(self, terms: list[tuple[Expr, Expr, Expr]], whole: bool = False) -> list[tuple[Expr, Expr]]:
        """(step, values) of the terms, those that a guard cuts together made one; all of them only where `whole`."""
        left = list(terms)
        found: list[tuple[Expr, Expr]] = []
        for moving, bound in sorted(self.guards.items(), key=lambda g: len(poly.polynomial(g[0]))):
            parts = self._coefficients(moving)
            mine = [t for t in left if t[1] in parts]
            if not mine or len(mine) != len(parts) or (len(mine) == len(terms) and not whole):
                continue
            least = min(mine, key=lambda t: len(str(parts[t[1]])))
            scale = exact_quotient(least[0], parts[least[1]])
            if scale is None or any(scale * parts[atom] is not step for step, atom, _ in mine):
                continue
            try:
                size, once = self._radix([(parts[atom], n) for _, atom, n in mine], f"predicate on {moving}")
            except UnclearError:
                continue  # another condition may say what this one does
            if once:
                self.cut.add(moving)
                found.append((scale, self._least(bound, size)))
                left = [t for t in left if t not in mine]
        return found + [(step, n) for step, _, n in left]

    def _radix(self, terms: list[tuple[Expr, Expr]], what: str, span: Expr = ONE) -> tuple[Expr, bool]:
        """How many values from 0 the sum of step * (0 .. n-1) and of 0 .. span-1 takes, and whether each once."""
        once = True
        known = self._without_predicate()
        left = [(step, n) for step, n in terms if not (isinstance(n, Const) and n.value == 1)]
        while left:
            exact = next((t for t in left if t[0] is span), None)
            dense = (t for t in left if all(at_most(*pair, known) for pair in ((ONE, t[0]), (t[0], span), (ONE, t[1]))))
            chosen = exact or next(dense, None)
            if chosen is None:
                shown = ", ".join(str(step) for step, _ in left)
                reason = f"leaves gaps or is not a number in mixed radix: step {shown} after {span} values"
                raise UnclearError(f"{what} {reason}")
            once = once and exact is not None
            span = span * chosen[1] if exact else chosen[0] * (chosen[1] - 1) + span
            left.remove(chosen)
        return span, once

    def _check_digits(self, source: Expr, digits: Sequence[Digit]) -> bool:
        """Whether the digits that are used are all of the index; several must be independent of each other."""
        left = {d.lower: d for d in digits}
        here: Expr | None = const(1)
        while here is not None and here in left:
            modulus = left.pop(here).modulus
            here = None if modulus is None else here * modulus
        complete = here is None and not left and len(digits) == len({d.lower for d in digits})
        if complete or len(digits) == 1:
            top = max(digits, key=lambda d: d.modulus is None)
            if complete and exact_quotient(self._size_of_source(source, f"{source}"), top.lower) is None:
                shown = ", ".join(str(i.binding) for i in self.iters)
                what = f"the extent of {source} is no multiple of {top.lower}"
                raise UnclearError(f"{what}, so bindings miss combinations of values: {shown}")
            return complete
        shown = ", ".join(str(i.binding) for i in self.iters)
        raise UnclearError(f"{source} drives several bindings, so they miss combinations of values: {shown}")
