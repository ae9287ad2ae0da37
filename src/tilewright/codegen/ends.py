"""Loops whose last iteration alone needs masks: what holds in all iterations before it."""

from collections.abc import Callable, Iterable

from tilewright.codegen.scope import Scope
from tilewright.codegen.versions import Inner
from tilewright.expr.nodes import TRUE, Expr
from tilewright.expr.polynomial import constant_value, polynomial
from tilewright.expr.simplify import simplify
from tilewright.loops.ir import Block, For, LoopKind


def is_around_lanes(loop: For) -> bool:
    """Whether a loop's body is one vectorized loop around a block."""
    inner = loop.body
    return isinstance(inner, For) and inner.kind is LoopKind.VECTORIZED and isinstance(inner.body, Block)


def before_the_end(
    loop: For, inside: Iterable[Inner], scope: Scope, cheap_masks: Callable[[Inner], bool]
) -> tuple[Expr, ...]:
    """The conditions that hold for every lane in all iterations of a loop but the last, where that is worth a copy of
    its body: around lanes alone always, else where masks cost and are constants in the last iteration.

    Args:
        loop: a loop that is not vectorized.
        inside: the blocks in it.
        scope: what is bound outside the loop.
        cheap_masks: whether a block costs little more under a mask than without.
    """
    short, literal = is_around_lanes(loop), constant_value(polynomial(loop.extent)) is not None
    found: list[Expr] = []
    for inner in inside:
        known = inner.bounds.with_loop(loop.var, loop.extent - 1)
        mine = [c for c in inner.block.conditions if short or _ends_here(c, loop, inner, scope)]
        ended = [c for c in mine if simplify(c, known) is TRUE]
        if ended and (short or (literal and not cheap_masks(inner))):
            found += ended
    return tuple(dict.fromkeys(found))


def _ends_here(c: Expr, loop: For, inner: Inner, scope: Scope) -> bool:
    """Whether lanes differ in a condition, and beside them a loop and what is known before it alone decide."""
    variables = scope.facts(c).variables
    moving = [v for v in variables if v not in scope.values and v not in scope.fixed and v != loop.var]
    return (
        loop.var in variables
        and any(v in scope.vector_variables for v in moving)
        and all(v in inner.expanded for v in moving)
    )
