"""Long sums in chunks: how many terms are added up before their sum is added to the total.

A chain of n float additions makes up to n roundings, each of the size of what has been added so far. Chunks of about
the square root of n make about twice that root, and so an error that many times smaller; longer chunks cost less time.
"""

from dataclasses import dataclass
from math import isqrt, prod

from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import Binary, Const
from tilewright.loops.ir import Block, IterKind

_COMBINING = frozenset(r.op for r in Reducer)


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """What decides on chunks.

    Attributes:
        longest: as many additions one after the other need no chunks.
        roots: a chunk should have this many times the square root of all additions,
        least, most: but no fewer and no more than these.
        slack: a chunk may be this many times shorter or longer, because it divides the sum.
    """

    longest: int
    roots: int
    least: int
    most: int
    slack: int


def chunk_of(node: Block, limits: ChunkLimits, lanes: int = 1, exact: bool = False) -> tuple[int, int] | None:
    """(reduction axis, steps along it) of the chunks of a sum; None for a short or symbolic one.

    Args:
        node: a reduction.
        limits: how long chunks are.
        lanes: sums that run beside each other already.
        exact: whether reductions that round nothing are cut as well, which threads can share then.
    """
    extents = [int(i.extent.value) if isinstance(i.extent, Const) else 0
               for i in node.iters if i.kind is IterKind.REDUCE]  # fmt: skip
    total = prod(extents)
    value = node.body.value
    rounds = isinstance(value, Binary) and value.op == "add" and value.dtype.is_float
    combines = isinstance(value, Binary) and value.op in _COMBINING
    if not (rounds or (exact and combines)) or total // lanes <= limits.longest:
        return None
    axis = max(range(len(extents)), key=lambda k: extents[k])
    rest = total // extents[axis]
    wanted = lanes * max(limits.least, min(limits.most, limits.roots * isqrt(total // lanes)))
    fits = [d for d in range(2, extents[axis]) if extents[axis] % d == 0
            and wanted <= limits.slack * d * rest <= limits.slack**2 * wanted]  # fmt: skip
    return (axis, min(fits, key=lambda d: abs(d * rest - wanted))) if fits else None
