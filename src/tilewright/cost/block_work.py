"""Work of a block: how often it runs, and whether it is a contraction."""

from collections.abc import Iterable
from functools import reduce
from operator import mul

from tilewright.expr.nodes import Expr, Load, const
from tilewright.loops.ir import Block, IterKind


def iteration_count(block: Block) -> Expr:
    """The number of points of a block's iteration domain."""
    return reduce(mul, (i.extent for i in block.iters), const(1))


def is_contraction(block: Block, nodes: Iterable[Expr]) -> bool:
    """Whether a block sums products of elements: a reduction whose value has at least two loads from other buffers.

    Args:
        block: the block.
        nodes: the distinct nodes of its value (`operation_cost.computed_nodes`).
    """
    is_reduction = any(i.kind is IterKind.REDUCE for i in block.iters)
    return is_reduction and sum(isinstance(e, Load) and e.buffer != block.body.buffer for e in nodes) > 1
