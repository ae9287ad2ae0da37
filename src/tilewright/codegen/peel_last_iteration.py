"""Last-iteration peeling: conditions on lanes that hold in all iterations of a loop but the last.

`function_emitter.py` writes the loop and the copy of its last iteration from them.
"""

from collections.abc import Iterable

from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.unswitch import NestedBlock
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.nodes import TRUE, Expr
from tilewright.loops.ir import Block, For, LoopKind


def is_around_vector_loop(loop: For) -> bool:
    """Whether the body of a loop is a single vectorized loop around a block."""
    inner = loop.body
    return isinstance(inner, For) and inner.kind is LoopKind.VECTORIZED and isinstance(inner.body, Block)


def conditions_before_last_iteration(
    loop: For, nested_blocks: Iterable[NestedBlock], scope: EmitScope
) -> tuple[Expr, ...]:
    """The conditions on lanes that hold in all iterations of a loop but the last.

    Args:
        loop: a loop that is not vectorized.
        nested_blocks: the blocks in it.
        scope: variables bound outside the loop.
    """
    edge_conditions: dict[Expr, None] = {}
    for nested in list(nested_blocks):
        bounds = _bounds_before_last_iteration(loop, nested)
        for c in nested.block.conditions:
            if c not in scope.true_conditions and _is_edge_condition(loop, c, scope) and simplify(c, bounds) is TRUE:
                edge_conditions.setdefault(c)
    return tuple(edge_conditions)


def _is_edge_condition(loop: For, c: Expr, scope: EmitScope) -> bool:
    """Whether a condition depends on the loop and on lanes."""
    variables = scope.dependencies(c).variables
    return loop.var in variables and any(v in scope.vector_variables for v in variables)


def _bounds_before_last_iteration(loop: For, nested: NestedBlock) -> Bounds:
    """The bounds of a nested block in all iterations but the last."""
    return nested.bounds.with_loop(loop.var, loop.extent - 1)
