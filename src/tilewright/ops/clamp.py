"""Reads that stay inside a tensor whatever its sizes are.

A definition knows more about its indices than the prover can always show. Where a read is not proved to lie inside, it
is limited to the tensor, so that every schedule of the stage stays provable; where a dimension may have no elements,
the read is behind a test.
"""

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import ceildiv, conjunction, maximum, minimum, select

_SPLIT_FACTOR = 16
"""The factor of the loop split that `is_in_bounds` tries: a plain vector width."""


def clamp_index(position: Expr, size: Expr) -> Expr:
    """The position, or the nearest one of a dimension of `size` elements."""
    return maximum(minimum(position, size - 1), 0)


def is_in_bounds(position: Expr, size: Expr, loop: Expr, extent: Expr) -> bool:
    """Whether 0 <= position < size is proved for a loop over 0 .. extent - 1, as it is and split into tiles."""
    if not isinstance(loop, Var):
        return False
    outer, inner = Var("tile"), Var("place")
    place = outer * _SPLIT_FACTOR + inner
    tiled = (
        Bounds()
        .with_loop(outer, ceildiv(extent, _SPLIT_FACTOR))
        .with_loop(inner, const(_SPLIT_FACTOR))
        .assuming(place < extent)
    )
    split = substitute(position, {loop: place})
    whole = Bounds().with_loop(loop, extent)
    return can_prove(conjunction(position >= 0, position < size), whole) and can_prove(
        conjunction(split >= 0, split < size), tiled
    )


def zero_if_empty(value: Expr, *places: tuple[Expr, Expr]) -> Expr:
    """A value that is read at the given (position, size)s; 0, with no read, where a dimension turns out to be empty.

    The positions are `limited`, so only a dimension without elements does not have them. The test compares them, which
    says directly what a proof of the read needs.
    """
    tests = [position < size for position, size in places if not can_prove(size >= 1)]
    return select(conjunction(*tests), value, const(0, value.dtype))
