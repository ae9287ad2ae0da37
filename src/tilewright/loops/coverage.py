"""Coverage: the blocks that write a parameter reach every point of their domains, and reductions count each point once.

The image of a binding is found by reading it as a number in mixed radix (`io*16 + ii`, `f // M`, `f % M`): terms in
growing order, each step no larger than what the smaller terms span. A predicate `index < bound` cuts the image.
Blocks that were peeled apart (equal stores, adjacent images) are put together again. Bindings of other forms are
rejected.
Of blocks that write internal buffers only the reductions are checked: such a buffer holds what its readers need,
which may be less than the domain or some of it several times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.expr import polynomial as poly
from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import Binary, Const, Expr, Var, conjuncts, const, free_vars, minimum
from tilewright.expr.prover import at_most, below
from tilewright.expr.simplify import substitute
from tilewright.loops.interpret import accumulated
from tilewright.loops.ir import BlockIter, Func, IterKind
from tilewright.loops.nest import Digit, Finding, Nest, digit, exact_quotient
from tilewright.loops.races import keys, tells


class _UnclearError(Exception):
    """A binding or predicate whose image is not understood; the text says which."""


@dataclass(frozen=True, slots=True)
class _Image:
    """The values offset, ..., offset + size - 1; `once` where no two iterations give the same value."""

    offset: Expr
    size: Expr
    once: bool


def findings(func: Func, nests: Sequence[Nest]) -> Iterator[Finding]:
    """What is not covered, or counted twice."""
    boxes: list[_Box] = []
    for nest in nests:
        where = f"block {nest.block.name!r}"
        try:
            images = _Images(nest, nest.block.body.buffer in func.params).all()
        except _UnclearError as reason:
            yield Finding(where, str(reason), nest.shown)
            continue
        if not images:
            continue
        boxes.append((nest, images))
        yield from _counted_once(nest, images, nests)
    for group in _groups(boxes):
        yield from _uncovered(group)


class _Images:
    """The images of a block's bindings over all iterations of its loops."""

    def __init__(self, nest: Nest, whole: bool) -> None:
        self.nest = nest
        self.iters = tuple(i for i in nest.block.iters if whole or i.kind is IterKind.REDUCE)
        driving = {v for i in self.iters for v in free_vars(i.binding)}
        self.extents: dict[Var, Expr] = {loop.var: loop.extent for loop in nest.loops}
        self.guards: dict[Expr, Expr] = {}
        self.used: dict[Expr, list[Digit]] = {}
        self.sizes: dict[Expr, Expr] = {}
        self.sources: dict[Var, set[Expr]] = {}
        for c in conjuncts(nest.block.predicate):
            if not whole and not free_vars(c) & driving:
                continue
            moving, bound = self._guard(c)
            self.guards[moving] = bound if moving not in self.guards else minimum(self.guards[moving], bound)
        self.cut: set[Expr] = set()

    def _guard(self, c: Expr) -> tuple[Expr, Expr]:
        """(moving part, bound) of a condition `moving < bound`."""
        if isinstance(c, Binary) and c.op in ("lt", "le") and c.a.dtype.name == "int64":
            difference = poly.polynomial(c.a - c.b + (0 if c.op == "lt" else -1))
            moving = {m: k for m, k in difference.items() if self._moves(m)}
            if moving:
                return poly.expression(moving), poly.expression(poly.added(moving, difference, -1))
        raise _UnclearError(f"predicate {c} is not of the form `index < bound`, so its iterations can't be counted")

    def _moves(self, m: poly.Monomial) -> bool:
        return any(v in self.extents for a in m for v in free_vars(a))

    def all(self) -> "tuple[_Placed, ...]":
        """The image of every binding in question; together they are a box, since no loop drives two of them."""
        self._check_kinds()
        images = tuple((i, self._binding(i)) for i in self.iters)
        bounds = self.nest.known
        for moving, bound in self.guards.items():
            if moving not in self.cut and not below(moving, bound, self._without_predicate()):
                # A guard of a part follows from that of the whole: io < ceil(N/16) where io*16 + ii < N.
                if any(below(moving, bound, bounds.assuming(i.binding < i.extent)) for i in self.iters):
                    continue
                raise _UnclearError(f"predicate {moving} < {bound} cuts no binding, so its iterations can't be counted")
        partial = [source for source, digits in self.used.items() if not self._check_digits(source, digits)]
        return tuple(
            (i, replace(image, once=False) if any(s in self.sources[i.var] for s in partial) else image)
            for i, image in images
        )

    def _check_kinds(self) -> None:
        loops = {loop.var for loop in self.nest.loops}
        iters = self.nest.block.iters
        spatial, reduce = ({v for i in iters if i.kind is kind for v in free_vars(i.binding)} for kind in IterKind)
        for v in sorted(spatial & reduce & loops, key=lambda v: v.name):
            raise _UnclearError(f"loop {v.name!r} drives both spatial and reduction variables")

    def _without_predicate(self) -> Bounds:
        return Bounds(self.nest.known.ranges)

    def _binding(self, i: BlockIter) -> _Image:
        before = {source: len(digits) for source, digits in self.used.items()}
        image, extent = self._sum(i.binding, f"binding {i.binding}"), i.extent
        self.sources[i.var] = {source for source, digits in self.used.items() if len(digits) != before.get(source, 0)}
        known = self._without_predicate()
        if image.once or at_most(image.offset + image.size, extent, known):
            return image
        # Overlapping tiles reach beyond the domain only where a predicate stops them: the domains are checked before.
        return _Image(image.offset, minimum(image.size, extent - image.offset), image.once)

    def _sum(self, e: Expr, what: str) -> _Image:
        """The image of a sum of digits."""
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
                raise _UnclearError(f"{what} multiplies loop variables")
        terms = [(poly.expression(s), *self._digit(a, what)) for a, s in steps.items()]
        size, once = self._radix(self._grouped(terms), what)
        moving = poly.expression({m: k for m, k in poly.polynomial(e).items() if m not in offset})
        return _Image(poly.expression(offset), self._clipped(moving, size), once)

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
            raise _UnclearError(f"{what} is not a sum of multiples, quotients and remainders of loop variables: {atom}")
        whole = d.source is atom
        self.used.setdefault(d.source, []).append(d)
        source = self._size_of_source(d.source, what)
        if whole:
            return atom, source
        exact = exact_quotient(source, d.lower)
        values = (source - 1) // d.lower + 1 if exact is None else exact
        return atom, values if d.modulus is None else self._least(d.modulus, values)

    def _size_of_source(self, source: Expr, what: str) -> Expr:
        if isinstance(source, Var):
            return self._clipped(source, self.extents[source])
        if source not in self.sizes:
            image = self._sum(source, what)
            if poly.polynomial(image.offset) or not image.once:
                raise _UnclearError(f"{what} takes digits of {source}, which does not count 0, 1, 2, ...")
            self.sizes[source] = image.size
        return self.sizes[source]

    def _grouped(self, terms: list[tuple[Expr, Expr, Expr]]) -> list[tuple[Expr, Expr]]:
        """(step, values) of the terms, those that a guard cuts together made one."""
        left = list(terms)
        found: list[tuple[Expr, Expr]] = []
        for moving, bound in sorted(self.guards.items(), key=lambda g: len(poly.polynomial(g[0]))):
            parts = {m[0]: k for m, k in poly.polynomial(moving).items() if len(m) == 1}
            mine = [t for t in left if t[1] in parts]
            if not mine or len(mine) != len(poly.polynomial(moving)) or len(mine) == len(left):
                continue
            scale = exact_quotient(mine[0][0], const(parts[mine[0][1]]))
            if scale is None or any(scale * parts[atom] is not step for step, atom, _ in mine):
                continue
            size, once = self._radix([(const(parts[atom]), n) for _, atom, n in mine], f"predicate on {moving}")
            if once:
                self.cut.add(moving)
                found.append((scale, self._least(bound, size)))
                left = [t for t in left if t not in mine]
        return found + [(step, n) for step, _, n in left]

    def _radix(self, terms: list[tuple[Expr, Expr]], what: str) -> tuple[Expr, bool]:
        """How many values from 0 the sum of step * (0 .. n-1) takes, and whether each once."""
        span: Expr = const(1)
        once = True
        known = self._without_predicate()
        left = [(step, n) for step, n in terms if not (isinstance(n, Const) and n.value == 1)]
        while left:
            exact = next((t for t in left if t[0] is span), None)
            dense = (t for t in left if at_most(const(1), t[0], known) and at_most(t[0], span, known))
            chosen = exact or next(dense, None)
            if chosen is None:
                shown = ", ".join(str(step) for step, _ in left)
                reason = f"leaves gaps or is not a number in mixed radix: step {shown} after {span} values"
                raise _UnclearError(f"{what} {reason}")
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
                raise _UnclearError(f"{what}, so bindings miss combinations of values: {shown}")
            return complete
        shown = ", ".join(str(i.binding) for i in self.iters)
        raise _UnclearError(f"{source} drives several bindings, so they miss combinations of values: {shown}")


def _counted_once(nest: Nest, images: Sequence["_Placed"], nests: Sequence[Nest]) -> Iterator[Finding]:
    """Whether an accumulating block adds every point of its reduction once to every element."""
    block = nest.block
    if accumulated(block.body) is None:
        return
    where = f"block {block.name!r}"
    reduced = {v for i in block.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
    for i, image in images:
        if i.kind is IterKind.REDUCE and not image.once:
            what = f"binding {i.binding} of {i.var.name!r} takes values twice: they count twice"
            yield Finding(where, what, nest.shown)
    positions = [k for k, loop in enumerate(nest.loops) if loop.var in reduced]
    first = min(positions, default=len(nest.loops))
    free = first
    if block.init is None:
        free = _shared_with_init(nest, nests)
        if free > first:
            yield Finding(where, f"{block.body.buffer.name!r} is initialised again inside the reduction", nest.shown)
            return
    indices = tuple(nest.bound(i) for i in block.body.indices)
    for k, loop in enumerate(nest.loops):
        if k < free or loop.var in reduced or (isinstance(loop.extent, Const) and loop.extent.value == 1):
            continue
        moving = {x.var for x in nest.loops[k:] if x.var not in reduced}
        if not tells(keys(indices, loop, moving, nest.known)):
            what = f"iterations of loop {loop.var.name!r} count the same points into one element"
            yield Finding(where, f"{what} of {block.body.buffer.name!r}", nest.shown)


def _shared_with_init(nest: Nest, nests: Sequence[Nest]) -> int:
    """How many loops the block shares with the one before it that gave its buffer a first value."""
    buffer = nest.block.body.buffer
    best = 0
    for other in nests:
        if other is nest:
            break
        gives = other.block.init is not None or accumulated(other.block.body) is None
        if gives and other.block.body.buffer == buffer:
            pairs = zip(nest.loops, other.loops, strict=False)
            best = next((k for k, (a, b) in enumerate(pairs) if a is not b), min(len(nest.loops), len(other.loops)))
    return best


_Placed = tuple[BlockIter, _Image]
_Box = tuple[Nest, tuple[_Placed, ...]]


def _groups(boxes: Sequence[_Box]) -> list[list[_Box]]:
    """Blocks that may be parts of one: the same store over the same domain, up to the names of variables."""
    found: dict[object, list[_Box]] = {}
    for nest, images in boxes:
        names: dict[Var, Expr] = {i.var: Var(f"#{k}") for k, i in enumerate(nest.block.iters)}
        loops = {loop.var for loop in nest.loops}
        body = nest.block.body
        # Indices relative to loops differ between parts; the others tell whether it is one computation.
        indices = tuple(i for i in (substitute(i, names) for i in body.indices) if not free_vars(i) & loops)
        key = (body.buffer, indices, tuple((i.kind, i.extent) for i, _ in images), accumulated(body) is None)
        found.setdefault(key, []).append((nest, images))
    return list(found.values())


def _uncovered(group: Sequence[_Box]) -> Iterator[Finding]:
    left = [(nest, images) for nest, images in group if not _covers(images)]
    while True:
        pairs = ((a, b, _joined(a[1], b[1])) for a in left for b in left if a is not b)
        found = next(((a, b, joined) for a, b, joined in pairs if joined is not None), None)
        if found is None:
            break
        left = [p for p in left if p is not found[0] and p is not found[1]] + [(found[0][0], found[2])]
    for nest, images in left:
        for i, image in images:
            if not _full(image, i.extent):
                low, high = image.offset, image.offset + image.size - 1
                what = f"binding {i.binding} of {i.var.name!r} covers {low}..{high}, expected 0..{i.extent - 1}"
                yield Finding(f"block {nest.block.name!r}", what, nest.shown)


def _covers(images: Sequence[_Placed]) -> bool:
    return all(_full(image, i.extent) for i, image in images)


def _full(image: _Image, extent: Expr) -> bool:
    return at_most(image.offset, const(0)) and at_most(extent, image.offset + image.size)


def _joined(a: Sequence[_Placed], b: Sequence[_Placed]) -> tuple[_Placed, ...] | None:
    """One box out of two that are adjacent in one dimension and equal in the others."""
    pairs = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True)]
    differ = [k for k, (x, y) in enumerate(pairs) if (x.offset, x.size) != (y.offset, y.size)]
    if len(differ) != 1:
        return None
    k = differ[0]
    x, y = pairs[k]
    if x.offset + x.size is not y.offset:
        return None
    joined = _Image(x.offset, x.size + y.size, x.once and y.once)
    return (*a[:k], (a[k][0], joined), *a[k + 1 :])
