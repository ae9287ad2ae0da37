"""Long sums in chunks: how many terms are added up before their sum is added to the total.

A chain of n float additions makes up to n roundings, each of the size of what has been added so far. Chunks of about
the square root of n make about twice that root, and so an error that many times smaller; longer chunks cost less time.
No optimizer makes chains of more than `max_accumulation_length` terms, wherever a sum can be cut.
"""

from dataclasses import dataclass
from math import isqrt, prod

from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import Binary, Const
from tilewright.loops.ir import Block, IterKind

MAX_UNBLOCKED_TERMS = 256
"""As many terms may always be added one after the other; other libraries do so too."""

_REDUCER_OPS = frozenset(r.op for r in Reducer)


def max_accumulation_length(terms: int) -> int:
    """Of how many terms of a sum one chain of additions may be, at most.

    Chains of c of n terms of one sign err by c sqrt(n), and the total of their n/c sums by n sqrt(n/c), up to a factor
    that they share: beyond n^(2/3) terms a chain errs more than the total does.
    """
    return max(MAX_UNBLOCKED_TERMS, int(round(terms ** (2 / 3), 6)))


def even_k_block(terms: int, limit: int) -> int:
    """The length of chunks of up to `most` terms, as few as possible, that leaves the last one as long as it can be."""
    return -(-terms // -(-terms // limit))


@dataclass(frozen=True, slots=True)
class KBlockLimits:
    """What decides on chunks.

    Attributes:
        longest: as many additions one after the other need no chunks.
        roots: a chunk should have this many times the square root of all additions,
        least, most: but no fewer and no more than these.
        slack: a chunk may be this many times shorter or longer, because it divides the sum.
    """

    max_unblocked: int
    root_multiple: int
    min_size: int
    max_size: int
    slack: int


def choose_k_block(
    node: Block, limits: KBlockLimits, lanes: int = 1, include_exact: bool = False
) -> tuple[int, int] | None:
    """(reduction axis, steps along it) of the chunks of a sum; None for a short or symbolic one.

    Steps divide the axis where some do that fit. Where none do the last chunk of a longer sum is shorter, unless other
    sums run beside it.

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
    combines = isinstance(value, Binary) and value.op in _REDUCER_OPS
    if not (rounds or (include_exact and combines)) or total // lanes <= limits.max_unblocked:
        return None
    axis = max(range(len(extents)), key=lambda k: extents[k])
    rest = total // extents[axis]
    wanted = lanes * max(limits.min_size, min(limits.max_size, limits.root_multiple * isqrt(total // lanes)))
    near = _divisors(extents[axis], max(2, -(-wanted // (limits.slack * rest))),
                     min(extents[axis] - 1, limits.slack * wanted // rest))  # fmt: skip
    fits = [d for d in near if d * rest // lanes <= max_accumulation_length(total)
            and wanted <= limits.slack * d * rest <= limits.slack**2 * wanted]  # fmt: skip
    if fits:
        return axis, min(fits, key=lambda d: abs(d * rest - wanted))
    if lanes > 1 or total <= max_accumulation_length(total) or wanted < 2 * rest:
        return None
    return axis, even_k_block(extents[axis], wanted // rest)


def _divisors(n: int, low: int, high: int) -> list[int]:
    """The divisors of n from `low` to `high`, rising; by what they leave of n where that is the shorter list."""
    if low > high:
        return []
    others = range(-(-n // high), n // low + 1)
    if len(others) < high - low:
        return [n // q for q in reversed(others) if n % q == 0]
    return [d for d in range(low, high + 1) if n % d == 0]


def reduction_extent(node: Block, axis: int) -> int:
    """The steps of a reduction along one of its axes, of known length."""
    return [int(i.extent.value) for i in node.iters if i.kind is IterKind.REDUCE and isinstance(i.extent, Const)][axis]
