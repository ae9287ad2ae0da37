"""Reads that stay inside a tensor whatever its sizes are.

A definition knows more about its indices than the prover can always show. Where a read is not proved to lie inside, it
is limited to the tensor, so that every schedule of the stage stays provable; where a dimension may have no elements,
the read is behind a test.
"""

from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import Expr, Var, both, ceildiv, const, maximum, minimum, select
from tilewright.expr.prover import prove
from tilewright.expr.simplify import substitute

_TILE = 16
"""The factor of the loop split that `stays_inside` tries: a plain vector width."""


def limited(position: Expr, size: Expr) -> Expr:
    """The position, or the nearest one of a dimension of `size` elements."""
    return maximum(minimum(position, size - 1), 0)


def stays_inside(position: Expr, size: Expr, loop: Expr, extent: Expr) -> bool:
    """Whether 0 <= position < size is proved for a loop over 0 .. extent - 1, as it is and split into tiles."""
    if not isinstance(loop, Var):
        return False
    outer, inner = Var("tile"), Var("place")
    place = outer * _TILE + inner
    tiled = Bounds().with_loop(outer, ceildiv(extent, _TILE)).with_loop(inner, const(_TILE)).assuming(place < extent)
    split = substitute(position, {loop: place})
    whole = Bounds().with_loop(loop, extent)
    return prove(both(position >= 0, position < size), whole) and prove(both(split >= 0, split < size), tiled)


def guarded(value: Expr, *places: tuple[Expr, Expr]) -> Expr:
    """A value that is read at the given (position, size)s; 0, with no read, where a dimension turns out to be empty.

    The positions are `limited`, so only a dimension without elements does not have them. The test compares them, which
    says directly what a proof of the read needs.
    """
    tests = [position < size for position, size in places if not prove(size >= 1)]
    return select(both(*tests), value, const(0, value.dtype))
