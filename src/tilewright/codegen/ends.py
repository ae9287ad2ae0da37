"""Loops around lanes whose last iteration alone needs masks: what holds in all iterations before it."""

from tilewright.codegen.blocks import Resolved
from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import TRUE, Expr
from tilewright.expr.simplify import simplify
from tilewright.loops.ir import Block, For, LoopKind


def lanes_of(loop: For) -> tuple[For, Block] | None:
    """The vectorized loop that a loop's body is, and the block that this one's body is; or None."""
    inner = loop.body
    if isinstance(inner, For) and inner.kind is LoopKind.VECTORIZED and isinstance(inner.body, Block):
        return inner, inner.body
    return None


def before_the_end(loop: For, lanes: For, block: Resolved, bounds: Bounds) -> tuple[Expr, ...]:
    """The conditions of a block that hold for every lane in all iterations of a loop but the last.

    Args:
        loop: a loop around lanes.
        lanes: the vectorized loop.
        block: what the lanes do.
        bounds: what is known outside the loop.
    """
    if not block.conditions:
        return ()
    known = bounds.with_loop(loop.var, loop.extent - 1).with_loop(lanes.var, lanes.extent)
    return tuple(c for c in block.conditions if simplify(c, known) is TRUE)
