"""Expand and Tile: broadcasting and repetition along dimensions."""

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.traversal import is_one
from tilewright.ops.axes import show_shape
from tilewright.ops.data_dependent import data_dependent_expand, elements_or_symbols, is_data_dependent
from tilewright.ops.definition import Definition, OpValue, broadcast_element, broadcast_shape, operator
from tilewright.ops.window import MAX_STEP


@operator("Expand")
def expand(d: Definition) -> OpValue:
    """The input broadcast with the shape in input 1.

    Raises:
        ShapeError: the shapes can't be broadcast.
    """
    x = d.input(0)
    if is_data_dependent(d, 1):
        return data_dependent_expand(d, x)
    target = d.known_elements(1)
    if any(isinstance(n, Const) and n.value < 0 for n in target):
        raise ShapeError(f"shape: expected sizes of 0 or more, got {show_shape(target)}", where=f"node {d.label}")
    sizes = broadcast_shape(d, x.shape, target)
    if len(sizes) == x.rank and all(a is b for a, b in zip(sizes, x.shape, strict=True)):
        return d.view(x, x.shape)
    return d.compute(sizes, lambda *i: broadcast_element(x, i))


@operator("Tile")
def tile(d: Definition) -> OpValue:
    """The input repeated along every dimension.

    Raises:
        ShapeError: there is not one repeat per dimension, or one is negative.
    """
    x = d.input(0)
    repeats = elements_or_symbols(d, 1) if d.opset >= 6 else _along_one_axis(d, x.rank)
    if len(repeats) != x.rank:
        raise ShapeError(f"repeats: expected {x.rank} numbers, got {len(repeats)}", where=f"node {d.label}")
    for r in repeats:
        d.require(r >= 0, f"repeats: expected numbers of at least 0, got {r}")
        if isinstance(r, Const) and r.value > MAX_STEP:
            raise ShapeError(f"repeats: expected numbers of at most {MAX_STEP}, got {r}", where=f"node {d.label}")

    def body(*i: Expr) -> Expr:
        return x[tuple(k if is_one(r) else k % n for k, r, n in zip(i, repeats, x.shape, strict=True))]

    if all(is_one(r) for r in repeats):
        return d.view(x, x.shape)
    return d.compute(tuple(n * r for n, r in zip(x.shape, repeats, strict=True)), body)


def _along_one_axis(d: Definition, rank: int) -> tuple[Expr, ...]:
    """Repeats as in opset 1: a number and an axis."""
    (count,), (axis,) = d.known_ints(1), d.known_ints(2)
    return tuple(const(count if k == d.axis(axis, rank) else 1) for k in range(rank))
