"""Clamped indices: loads that are in bounds for all sizes.

Some indices are in bounds although the prover can't show it. They are clamped, so that every schedule of the stage
stays verifiable; where a dimension may be empty, the load is guarded by a select.
"""

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import ceildiv, conjunction, maximum, minimum, select

_SPLIT_FACTOR = 16
"""The split factor that `is_in_bounds` tries: a common vector width."""


def clamp_index(position: Expr, size: Expr) -> Expr:
    """The position clamped to 0 .. size - 1."""
    return maximum(minimum(position, size - 1), 0)


def is_in_bounds(position: Expr, size: Expr, loop: Expr, extent: Expr) -> bool:
    """Whether 0 <= position < size is proved for a loop over 0 .. extent - 1, both unsplit and split into tiles."""
    if not isinstance(loop, Var):
        return False
    outer, inner = Var("tile"), Var("place")
    index = outer * _SPLIT_FACTOR + inner
    tiled_bounds = (
        Bounds()
        .with_loop(outer, ceildiv(extent, _SPLIT_FACTOR))
        .with_loop(inner, const(_SPLIT_FACTOR))
        .assuming(index < extent)
    )
    tiled_position = substitute(position, {loop: index})
    bounds = Bounds().with_loop(loop, extent)
    return can_prove(conjunction(position >= 0, position < size), bounds) and can_prove(
        conjunction(tiled_position >= 0, tiled_position < size), tiled_bounds
    )


def zero_if_empty(value: Expr, *places: tuple[Expr, Expr]) -> Expr:
    """A value loaded at clamped (position, size) pairs; 0, without a load, where a dimension is empty at run time.

    A clamped position is out of bounds only in an empty dimension. The test compares position and size, because that is
    what the proof of the load needs.
    """
    tests = [position < size for position, size in places if not can_prove(size >= 1)]
    return select(conjunction(*tests), value, const(0, value.dtype))
