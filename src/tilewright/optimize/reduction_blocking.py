"""K-blocking of long sums: how many terms are accumulated before their partial sum is added to the total.

A sum of n floating-point terms rounds up to n times, each error relative to the partial sum so far. Blocks of about the
square root of n make about twice that root of rounding errors, so the error shrinks by that factor; longer blocks take
less time. No optimizer accumulates more than `max_accumulation_length` terms in sequence wherever a sum can be blocked.
"""

from dataclasses import dataclass
from math import isqrt, prod

from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import Binary, Const
from tilewright.loops.ir import Block, IterKind
from tilewright.tile.problem import is_reorderable

MAX_UNBLOCKED_TERMS = 256
"""Terms that may always be accumulated in sequence; other libraries do so too."""

_REDUCER_OPS = frozenset(r.op for r in Reducer)


def max_accumulation_length(terms: int) -> int:
    """The number of terms of a sum that may be accumulated in sequence.

    Blocks of c out of n terms of one sign have an error of c sqrt(n), the total of their n/c partial sums one of n
    sqrt(n/c), up to a common factor: beyond n^(2/3) terms the error of a block exceeds that of the total.
    """
    return max(MAX_UNBLOCKED_TERMS, int(round(terms ** (2 / 3), 6)))


def even_k_block(terms: int, limit: int) -> int:
    """The block size up to `limit` with the fewest blocks and the longest last block."""
    return -(-terms // -(-terms // limit))


@dataclass(frozen=True, slots=True)
class KBlockLimits:
    """Limits of the block size.

    Attributes:
        max_unblocked: sums of at most this many terms in sequence are not blocked.
        root_multiple: the block size should be this multiple of the square root of the number of terms,
        min_size, max_size: within these limits.
        slack: factor by which a block may be smaller or larger so that it divides the reduction.
    """

    max_unblocked: int
    root_multiple: int
    min_size: int
    max_size: int
    slack: int


def choose_k_block(
    node: Block, limits: KBlockLimits, lanes: int = 1, include_exact: bool = False
) -> tuple[int, int] | None:
    """(reduction axis, steps along it) of the K-blocks of a sum; None for a short or symbolic one.

    The block size divides the axis where a suitable divisor exists. Otherwise the last block of a longer sum is
    shorter, unless several lanes accumulate in parallel.

    Args:
        node: a reduction.
        limits: limits of the block size.
        lanes: partial sums that are accumulated in parallel already.
        include_exact: whether reductions without rounding are blocked as well, so that threads can share the blocks.
    """
    extents = [int(i.extent.value) if isinstance(i.extent, Const) else 0
               for i in node.iters if i.kind is IterKind.REDUCE]  # fmt: skip
    total = prod(extents)
    value = node.body.value
    rounds = isinstance(value, Binary) and value.op == "add" and value.dtype.is_float
    combines = isinstance(value, Binary) and value.op in _REDUCER_OPS and is_reorderable(node)
    if not (rounds or (include_exact and combines)) or total // lanes <= limits.max_unblocked:
        return None
    longest = max(range(len(extents)), key=lambda k: extents[k])
    other_points = total // extents[longest]
    target = lanes * max(limits.min_size, min(limits.max_size, limits.root_multiple * isqrt(total // lanes)))
    candidates = _divisors(extents[longest], max(2, -(-target // (limits.slack * other_points))),
                     min(extents[longest] - 1, limits.slack * target // other_points))  # fmt: skip
    fits = [d for d in candidates if d * other_points // lanes <= max_accumulation_length(total)
            and target <= limits.slack * d * other_points <= limits.slack**2 * target]  # fmt: skip
    if fits:
        return longest, min(fits, key=lambda d: abs(d * other_points - target))
    if lanes > 1 or total <= max_accumulation_length(total) or target < 2 * other_points:
        return None
    return longest, even_k_block(extents[longest], target // other_points)


def _divisors(n: int, low: int, high: int) -> list[int]:
    """The divisors of n from `low` to `high`, ascending; enumerated by their cofactors where these are fewer."""
    if low > high:
        return []
    cofactors = range(-(-n // high), n // low + 1)
    if len(cofactors) < high - low:
        return [n // q for q in reversed(cofactors) if n % q == 0]
    return [d for d in range(low, high + 1) if n % d == 0]
