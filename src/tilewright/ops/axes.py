"""Axes of a node: from an attribute in old versions, from an input in new ones."""

from collections.abc import Sequence

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr, const
from tilewright.ops.definition import Definition


def axes_of(d: Definition, rank: int, position: int = 1) -> tuple[int, ...] | None:
    """The node's axes counted from the front, in the order given, or None where it names none.

    Args:
        d: the node.
        rank: number of dimensions that the axes count.
        position: the input that holds them where the attribute `axes` is absent.

    Raises:
        ShapeError: one is out of range or occurs twice.
        UnsupportedError: they depend on data.
    """
    listed = d.attr_ints("axes")
    if listed is None and d.optional(position) is not None:
        listed = d.known_ints(position)
    if not listed:
        return None
    axes = tuple(d.axis(a, rank) for a in listed)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"axes {list(listed)} name a dimension twice", where=f"node {d.label}")
    return axes


def num_elements(sizes: Sequence[Expr]) -> Expr:
    """The number of elements of a shape."""
    total: Expr = const(1)
    for size in sizes:
        total = total * size
    return total


def replace_axis(index: Sequence[Expr], axis: int, value: Expr) -> tuple[Expr, ...]:
    """`index` with another entry at `axis`."""
    return (*index[:axis], value, *index[axis + 1 :])


def show_shape(sizes: Sequence[Expr]) -> str:
    """A shape as it is shown in messages: [2, n, 3]."""
    return f"[{', '.join(map(str, sizes))}]"
