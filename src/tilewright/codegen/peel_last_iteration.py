"""Last-iteration peeling: conditions on lanes, and on the columns of tiles that are transposed in registers, that hold
in all iterations of a loop but the last.

`function_emitter.py` writes the loop and the copy of its last iteration from them.
"""

from collections.abc import Callable, Iterable, Set

from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.unswitch import NestedBlock
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.nodes import TRUE, Expr, Var
from tilewright.loops.ir import Block, For, LoopKind


def is_around_vector_loop(loop: For) -> bool:
    """Whether the body of a loop is a single vectorized loop around a block."""
    inner = loop.body
    return isinstance(inner, For) and inner.kind is LoopKind.VECTORIZED and isinstance(inner.body, Block)


def conditions_before_last_iteration(
    loop: For, nested_blocks: Iterable[NestedBlock], scope: EmitScope, columns: Callable[[NestedBlock], Set[Var]]
) -> tuple[Expr, ...]:
    """The conditions on lanes and columns that hold in all iterations of a loop but the last.

    Args:
        loop: a loop that is not vectorized.
        nested_blocks: the blocks in it.
        scope: variables bound outside the loop.
        columns: the variables of the unrolled loops of a block whose iterations read columns.
    """
    edge_conditions: dict[Expr, None] = {}
    for nested in list(nested_blocks):
        bounds = _bounds_before_last_iteration(loop, nested)
        tile_variables = scope.vector_variables | columns(nested)
        for c in nested.block.conditions:
            is_edge = loop.var in scope.dependencies(c).variables and scope.dependencies(c).variables & tile_variables
            if c not in scope.true_conditions and is_edge and simplify(c, bounds) is TRUE:
                edge_conditions.setdefault(c)
    return tuple(edge_conditions)


def _bounds_before_last_iteration(loop: For, nested: NestedBlock) -> Bounds:
    """The bounds of a nested block in all iterations but the last."""
    return nested.bounds.with_loop(loop.var, loop.extent - 1)
