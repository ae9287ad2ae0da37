"""Last-iteration peeling: conditions on lanes, and on the columns of tiles that are transposed in registers, that hold
in all iterations of a loop but the last.

`specialize.py` makes the loop and the copy of its last iteration from them.
"""

from collections.abc import Callable, Iterable, Set

from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.nodes import TRUE, Expr, Var
from tilewright.loops.ir import Block, For, IterKind, LoopKind, walk
from tilewright.lower.loop_facts import LoopFacts
from tilewright.lower.nested_blocks import NestedBlock


def may_peel(loop: For) -> bool:
    """Whether the last iteration of a loop may be peeled: of one around a vectorized loop or around a reduction always,
    otherwise where its extent is a constant, so that the masks of the peeled iteration are, too."""
    if loop.kind is LoopKind.VECTORIZED:
        return False
    inner = loop.body
    is_around_vector = isinstance(inner, For) and inner.kind is LoopKind.VECTORIZED and isinstance(inner.body, Block)
    return is_around_vector or constant_value(polynomial(loop.extent)) is not None or has_reduction_in_serial_loop(loop)


def has_reduction_in_serial_loop(loop: For) -> bool:
    """Whether a block in a serial loop inside reduces: under masks, accumulators and factors exceed the registers."""
    return any(
        any(i.kind is IterKind.REDUCE for i in s.iters) and any(x.kind is LoopKind.SERIAL for x in loops)
        for s, loops in walk(loop.body)
        if isinstance(s, Block)
    )


def conditions_before_last_iteration(
    loop: For, nested_blocks: Iterable[NestedBlock], facts: LoopFacts, columns: Callable[[NestedBlock], Set[Var]]
) -> tuple[Expr, ...]:
    """The conditions on lanes and columns that hold in all iterations of a loop but the last.

    Args:
        loop: a loop that is not vectorized.
        nested_blocks: the blocks in it.
        facts: what is known there.
        columns: the variables of the unrolled loops of a block whose iterations read columns.
    """
    edge_conditions: dict[Expr, None] = {}
    for nested in nested_blocks:
        bounds = nested.bounds.with_loop(loop.var, loop.extent - 1)
        tile_variables = {*columns(nested), *nested.lanes}
        for c in nested.block.conditions:
            variables = facts.dependencies(c).variables
            is_edge = loop.var in variables and not variables.isdisjoint(tile_variables)
            if c not in facts.true_conditions and is_edge and simplify(c, bounds) is TRUE:
                edge_conditions.setdefault(c)
    return tuple(edge_conditions)
