"""Where an operand is stored: its load followed through views, copies and scaling to what was computed.

Heads are split and moved by different Reshapes and Transposes; what is left is the same element of the same tensor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.computation import Axis, View
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, Load, Var, const
from tilewright.expr.traversal import free_vars, has_loads, is_one
from tilewright.graph.canonicalize.def_use import DefUse
from tilewright.graph.canonicalize.literal_factors import ONE, Factor, combined, literal_factor

_MAX_STEPS = 32


@dataclass(frozen=True, slots=True)
class StoredElement:
    """The element of a computed tensor, an input or a constant that a load reads.

    Attributes:
        buffer: the tensor.
        indices: of the element, over the axes of the reading computation.
        factor: what the element is multiplied by.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    factor: Factor = ONE


def stored_element(
    x: Load, axes: Sequence[Axis], uses: DefUse, factor: Factor = ONE, until_plain: bool = False
) -> StoredElement:
    """The element that a load reads, through views, copies and multiplications by literals.

    Args:
        x: the load.
        axes: all axes of the computation that it belongs to.
        uses: of the program.
        factor: what the load is multiplied by.
        until_plain: follow multiplications only until the factor is 1.
    """
    bounds = Bounds()
    for a in axes:
        bounds = bounds.with_loop(a.var, a.extent)
    found = StoredElement(x.buffer, x.indices, factor)
    for _ in range(_MAX_STEPS):
        view = uses.view(found.buffer)
        source = _through_view(view, found, bounds) if view is not None else _through_copy(found, uses, bounds)
        if source is None or (until_plain and found.factor.value == 1 and source.factor.value != 1):
            break
        found = source
    return found


def _through_copy(x: StoredElement, uses: DefUse, bounds: Bounds) -> StoredElement | None:
    """The element that a copy, perhaps scaled by a literal, was made of."""
    c = uses.elementwise(x.buffer)
    if c is None:
        return None
    body, factor = c.body, ONE
    while (inner := literal_factor(body)) is not None:
        body, factor = inner[0], combined(factor, inner[1])
    if not isinstance(body, Load) or any(has_loads(i) for i in body.indices):
        return None
    place = dict(zip((a.var for a in c.axes), x.indices, strict=True))
    indices = tuple(simplify(substitute(i, place), bounds) for i in body.indices)
    return StoredElement(body.buffer, indices, combined(x.factor, factor))


def _through_view(view: View, x: StoredElement, bounds: Bounds) -> StoredElement | None:
    """The element of the source of a view; None where sizes do not tell how dimensions correspond."""
    groups = list(_matching_groups(view.output.shape, view.source.shape))
    if not groups:
        return None
    indices: list[Expr] = []
    for shown, stored in groups:
        place = _linear([x.indices[k] for k in shown], [view.output.shape[k] for k in shown])
        sizes = [view.source.shape[k] for k in stored]
        parts: list[Expr] = []
        for size in reversed(sizes[1:]):
            parts.append(simplify(place % size, bounds))
            place = simplify(place // size, bounds)
        indices += [place, *reversed(parts)] if sizes else []
    return StoredElement(view.source, tuple(indices), x.factor)


def _linear(indices: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    place: Expr = const(0)
    for i, n in zip(indices, sizes, strict=True):
        place = place * n + i
    return place


def _matching_groups(a: Sequence[Expr], b: Sequence[Expr]) -> Iterator[tuple[list[int], list[int]]]:
    """Groups of adjacent dimensions of two shapes with equal products; none where there are no such groups."""
    result: list[tuple[list[int], list[int]]] = []
    i, j = 0, 0
    while i < len(a) or j < len(b):
        left, right = [i] if i < len(a) else [], [j] if j < len(b) else []
        i, j = i + len(left), j + len(right)
        while _product(a, left) is not _product(b, right):
            if i < len(a) and (j == len(b) or _is_smaller(_product(a, left), _product(b, right))):
                left.append(i)
                i += 1
            elif j < len(b):
                right.append(j)
                j += 1
            else:
                return
        result.append((left, right))
    yield from result


def _product(shape: Sequence[Expr], dims: Sequence[int]) -> Expr:
    total: Expr = const(1)
    for k in dims:
        total = total * shape[k]
    return total


def _is_smaller(a: Expr, b: Expr) -> bool:
    """Whether one product is the smaller one: by value, or as it lacks symbols or has smaller steps."""
    if isinstance(a, Const) and isinstance(b, Const):
        return a.value < b.value
    symbols = free_vars(a), free_vars(b)
    if symbols[0] != symbols[1]:
        return symbols[0] < symbols[1]
    steps = [max((abs(s) for s in polynomial(e).values()), default=0) for e in (a, b)]
    return steps[0] < steps[1]


Places = tuple[tuple[Expr, Expr], ...]
"""Indices with the sizes of their dimensions."""


def split_places(index: Expr, size: Expr, extents: Mapping[Var, Expr]) -> Places:
    """An index such as h * 64 + k + 768 of a dimension of 2304 as places (1, h, k) in dimensions (3, 12, 64).

    Args:
        index: of the dimension.
        size: of the dimension.
        extents: of the axes.

    Returns:
        Places whose sizes have the product `size`, row-major; the index itself where it does not walk such dimensions.
    """
    terms = dict(polynomial(index))
    first = int(terms.pop((), 0))
    walked: list[tuple[int, Expr, Expr]] = []
    for monomial, step in terms.items():
        atom = monomial[0]
        extent = extents.get(atom) if isinstance(atom, Var) else _quotient_extent(atom, extents)
        if len(monomial) != 1 or extent is None or step < 1:
            return ((index, size),)
        walked.append((step, atom, extent))
    walked.sort(key=lambda w: -w[0])
    inner: Expr = const(1)
    for step, _, extent in reversed(walked):
        if inner is not const(step):
            return ((index, size),)
        inner = inner * extent
    places = tuple((atom, extent) for _, atom, extent in walked)
    if inner is size:
        return places if first == 0 and len(places) > 1 else ((index, size),)
    if not isinstance(inner, Const) or not isinstance(size, Const) or size.value % inner.value or first % inner.value:
        return ((index, size),)
    return ((const(first // int(inner.value)), size // inner), *places)


def _quotient_extent(e: Expr, extents: Mapping[Var, Expr]) -> Expr | None:
    """The extent of h // group."""
    if isinstance(e, Binary) and e.op == "floordiv" and isinstance(e.a, Var) and isinstance(e.b, Const):
        extent = extents.get(e.a)
        return None if extent is None else extent // e.b
    return None


def role_order(indices: Sequence[Expr], sizes: Sequence[Expr], roles: Mapping[Var, int]) -> list[int] | None:
    """The role of the axis that each dimension walks, without dimensions of one place; None where a dimension does not
    walk one axis alone."""
    order: list[int] = []
    for i, n in zip(indices, sizes, strict=True):
        used = free_vars(i) & roles.keys()
        if is_one(n) or not used:
            continue
        if len(used) > 1:
            return None
        order.append(roles[next(iter(used))])
    return order
