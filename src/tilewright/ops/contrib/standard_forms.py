"""Operators of `com.microsoft` that later became standard ones: defined by these."""

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Const, const
from tilewright.expr.operations import cast
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import inputs_of_one_type
from tilewright.ops.gather import gather_nd
from tilewright.ops.generate import arithmetic_sequence, trilu
from tilewright.ops.grid_sample import grid_sample
from tilewright.ops.pad import padded


@operator("Trilu", domain=CONTRIB)
def contrib_trilu(d: Definition) -> OpValue:
    """The upper or lower triangle from diagonal `k` on, zeros elsewhere."""
    return trilu(d)


@operator("GatherND", domain=CONTRIB)
def contrib_gather_nd(d: Definition) -> OpValue:
    """Slices of input 0 at index tuples, which are along the last dimension of the indices."""
    return gather_nd(d)


@operator("GridSample", domain=CONTRIB)
def contrib_grid_sample(d: Definition) -> OpValue:
    """X at the positions of a grid."""
    return grid_sample(d)


@operator("Pad", domain=CONTRIB)
def contrib_pad(d: Definition) -> OpValue:
    """The input with borders of the widths in input 1, filled with input 2."""
    widths = [cast(int64, n) for n in d.known_elements(1)]
    return padded(d, widths, None, 2)


@operator("Range", domain=CONTRIB)
def contrib_range(d: Definition) -> OpValue:
    """start, start + delta, ... below limit; delta is 1 where it is omitted."""
    inputs_of_one_type(d)
    start, limit = d.known_elements(0)[0], d.known_elements(1)[0]
    delta = const(1, start.dtype) if d.optional(2) is None else d.known_elements(2)[0]
    return arithmetic_sequence(d, start, limit, delta)


@operator("ExpandDims", domain=CONTRIB)
def expand_dims(d: Definition) -> OpValue:
    """The input with a new dimension of size 1 at position `axis` (input 1).

    Raises:
        ShapeError: the axis is not one number, or out of range.
    """
    x, axes = d.input(0), d.known_elements(1)
    if len(axes) != 1 or not isinstance(axes[0], Const):
        raise ShapeError(f"axis: expected one number, got {len(axes)}", where=f"node {d.label}")
    axis = int(axes[0].value)
    if not -x.rank - 1 <= axis <= x.rank:
        what = f"axis {axis} is out of range for {pluralize(x.rank + 1, 'dimension')}"
        raise ShapeError(what, where=f"node {d.label}")
    position = axis % (x.rank + 1)
    return d.view(x, (*x.shape[:position], const(1), *x.shape[position:]))
