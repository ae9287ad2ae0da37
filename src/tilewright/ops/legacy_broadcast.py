"""Broadcasting before opset 7: the second operand is aligned to an axis of the first."""

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.nodes import const
from tilewright.expr.traversal import is_one
from tilewright.ops.definition import Definition, OpValue


def align_operand(d: Definition, a: OpValue, b: OpValue) -> OpValue:
    """`b` with trailing dimensions of size 1, so that NumPy broadcasting aligns it as opset 6 does.

    The attribute `axis` is the dimension of `a` that the first dimension of `b` corresponds to; without it the last
    dimensions match.

    Raises:
        ShapeError: the dimensions of `b` exceed those of `a` from that axis on.
    """
    if d.opset >= 7:
        return b
    broadcast, axis = d.attr_int("broadcast", 0), d.attr_int("axis", 0)
    if not broadcast or "axis" not in d.attributes:
        return b
    return _align_at(d, a, b, d.axis(axis, a.rank))


def align_slope(d: Definition, x: OpValue, slope: OpValue) -> OpValue:
    """PRelu's slope, reshaped to broadcast with `x`. Before opset 7 a vector of slopes has one per channel (dimension
    1 of `x`); all other slopes are returned as they are."""
    if d.opset >= 7 or slope.rank != 1 or is_one(slope.shape[0]) or x.rank < 2:
        return slope
    return _align_at(d, x, slope, 1)


def _align_at(d: Definition, a: OpValue, b: OpValue, axis: int) -> OpValue:
    trailing = a.rank - axis - b.rank
    if trailing < 0:
        what = f"axis {axis}: {pluralize(b.rank, 'dimension')} from there on exceed the rank {a.rank}"
        raise ShapeError(what, where=f"node {d.label}")
    return d.view(b, (*b.shape, *(const(1) for _ in range(trailing))))
