"""Loops whose last iteration alone needs masks: what holds in all iterations before it."""

from collections.abc import Iterable

from tilewright.codegen.scope import Scope
from tilewright.codegen.versions import Inner
from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import TRUE, Expr
from tilewright.expr.simplify import simplify
from tilewright.loops.ir import Block, For, LoopKind


def is_around_lanes(loop: For) -> bool:
    """Whether a loop's body is one vectorized loop around a block."""
    inner = loop.body
    return isinstance(inner, For) and inner.kind is LoopKind.VECTORIZED and isinstance(inner.body, Block)


def before_the_end(loop: For, inside: Iterable[Inner], scope: Scope) -> tuple[Expr, ...]:
    """The conditions of lanes that hold in all iterations of a loop but the last.

    Args:
        loop: a loop that is not vectorized.
        inside: the blocks in it.
        scope: what is bound outside the loop.
    """
    pairs = [(c, inner) for inner in inside for c in inner.block.conditions if c not in scope.decided]
    ended = [c for c, inner in pairs
             if _decides(loop, c, scope) and simplify(c, _but_the_last(loop, inner)) is TRUE]  # fmt: skip
    return tuple(dict.fromkeys(ended))


def _decides(loop: For, c: Expr, scope: Scope) -> bool:
    """Whether a loop and lanes decide a condition, beside what is known before the loop and loops inside it."""
    variables = scope.facts(c).variables
    return loop.var in variables and any(v in scope.vector_variables for v in variables)


def _but_the_last(loop: For, inner: Inner) -> Bounds:
    """What is known of a block in all iterations but the last."""
    return inner.bounds.with_loop(loop.var, loop.extent - 1)
