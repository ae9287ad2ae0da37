"""Axes of a node (an attribute in old versions, an input in new ones) and helpers for shapes and indices."""

from collections.abc import Sequence

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr, const
from tilewright.ops.definition import Definition


def axes_of(d: Definition, rank: int, position: int = 1) -> tuple[int, ...] | None:
    """The node's axes, counted from the front, in the order given; None where it has none.

    Args:
        d: the node.
        rank: number of dimensions that the axes refer to.
        position: the input with the axes where the attribute `axes` is absent.

    Raises:
        ShapeError: one is out of range or occurs twice.
        UnsupportedError: they depend on data.
    """
    values = d.attr_ints("axes")
    if values is None and d.optional(position) is not None:
        values = d.known_ints(position)
    if not values:
        return None
    axes = tuple(d.axis(a, rank) for a in values)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"axes {list(values)} name a dimension twice", where=f"node {d.label}")
    return axes


def num_elements(sizes: Sequence[Expr]) -> Expr:
    """The number of elements of a shape."""
    total: Expr = const(1)
    for size in sizes:
        total = total * size
    return total


def replace_axis(index: Sequence[Expr], axis: int, value: Expr) -> tuple[Expr, ...]:
    """`index` with the entry at `axis` replaced."""
    return (*index[:axis], value, *index[axis + 1 :])


def show_shape(sizes: Sequence[Expr]) -> str:
    """The text of a shape in messages: [2, n, 3]."""
    return f"[{', '.join(map(str, sizes))}]"
