"""Axes on which the body dispatches by selects: `axis == 0`, `axis == 1`, ... each with another value.

Unrolled, each select is decided during code generation, and common subexpressions of the cases are computed once. The
transforms of Winograd convolutions have this form.
"""

from tilewright.expr.nodes import Binary, Const, Select, Var
from tilewright.expr.traversal import post_order
from tilewright.loops.ir import Block
from tilewright.schedule.rewrite_tree import spatial_vars

MAX_UNROLLED_CASES = 64
"""Cases that are unrolled, over all select axes of a block."""


def select_axes(node: Block) -> tuple[int, ...]:
    """Positions of the block's spatial variables that its selects compare with literals, up to `MAX_UNROLLED_CASES`
    cases."""
    tested = {v for e in post_order(node.body.value) if isinstance(e, Select) for v in _compared_vars(e)}
    axes: list[int] = []
    total = 1
    for k, var in enumerate(spatial_vars(node)):
        extent = node.iters[k].extent
        if (
            var in tested
            and isinstance(extent, Const)
            and extent.value > 1
            and total * extent.value <= MAX_UNROLLED_CASES
        ):
            total *= int(extent.value)
            axes.append(k)
    return tuple(axes)


def _compared_vars(e: Select) -> tuple[Var, ...]:
    """The variable that the condition compares with a literal."""
    c = e.cond
    if not (isinstance(c, Binary) and c.op == "eq"):
        return ()
    return tuple(x for x, y in ((c.a, c.b), (c.b, c.a)) if isinstance(x, Var) and isinstance(y, Const))
