"""Broadcasting before version 7 of the operator set: the second operand is aligned at an axis of the first."""

from tilewright.errors import ShapeError
from tilewright.expr.nodes import const
from tilewright.ops.definition import Definition, Operand, is_one


def align_operand(d: Definition, a: Operand, b: Operand) -> Operand:
    """`b` with dimensions of size 1 behind it, so that today's broadcasting puts it where version 6 does.

    The attribute `axis` says where its first dimension lies in `a`; without it the last dimensions match.

    Raises:
        ShapeError: `b` does not lie within `a` there.
    """
    if d.opset >= 7:
        return b
    broadcast, axis = d.attr_int("broadcast", 0), d.attr_int("axis", 0)
    if not broadcast or "axis" not in d.attributes:
        return b
    return _align_at(d, a, b, d.axis(axis, a.rank))


def align_slope(d: Definition, x: Operand, slope: Operand) -> Operand:
    """PRelu's slope before version 7: one for all elements, or one per channel (dimension 1 of `x`)."""
    if d.opset >= 7 or slope.rank != 1 or is_one(slope.shape[0]) or x.rank < 2:
        return slope
    return _align_at(d, x, slope, 1)


def _align_at(d: Definition, a: Operand, b: Operand, axis: int) -> Operand:
    behind = a.rank - axis - b.rank
    if behind < 0:
        what = f"axis {axis}: {b.rank} dimensions do not fit behind it into {a.rank}"
        raise ShapeError(what, where=f"node {d.label}")
    return d.view(b, (*b.shape, *(const(1) for _ in range(behind))))
