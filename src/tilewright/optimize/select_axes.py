"""Axes whose values are cases: the body says `axis == 0`, `axis == 1`, ... and computes something else for each.

Written out, every case is decided while code is generated, and what the cases have in common is computed once. The
transforms of fast convolutions are written so.
"""

from tilewright.expr.nodes import Binary, Const, Select, Var
from tilewright.expr.traversal import post_order
from tilewright.loops.ir import Block
from tilewright.schedule.rewrite_tree import spatial_vars

MAX_UNROLLED_CASES = 64
"""Cases in all that are written out."""


def select_axes(node: Block) -> tuple[int, ...]:
    """Positions of a block's spatial variables that are cases, as long as they are few in all."""
    tested = {v for e in post_order(node.body.value) if isinstance(e, Select) for v in _compared_vars(e)}
    found: list[int] = []
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
            found.append(k)
    return tuple(found)


def _compared_vars(e: Select) -> tuple[Var, ...]:
    """The variable that the condition compares with a literal."""
    c = e.cond
    if not (isinstance(c, Binary) and c.op == "eq"):
        return ()
    return tuple(x for x, y in ((c.a, c.b), (c.b, c.a)) if isinstance(x, Var) and isinstance(y, Const))
