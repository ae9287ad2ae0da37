"""Accesses of a block: the elements it reads and writes, under which conditions, and their regions.

Regions are derived, never stored, so they cannot disagree with the block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import TRUE, Binary, Buffer, Const, Expr, Load, Select, Unary, Var, const
from tilewright.expr.operations import binary, conjunction
from tilewright.expr.traversal import free_vars
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.ir import Block, For, Store

_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


@dataclass(frozen=True, slots=True)
class Access:
    """One element that a block reads or writes.

    Attributes:
        buffer: the buffer.
        indices: over the block's iteration variables (and loop variables and symbols).
        condition: the path condition through lazy selects, which holds where the access happens; same variables.
        is_write: whether the element is written.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    condition: Expr
    is_write: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A box in a buffer: inclusive first and last index per dimension; contains every access, may be larger."""

    buffer: Buffer
    ranges: tuple[tuple[Expr, Expr], ...]


def accesses(block: Block) -> tuple[Access, ...]:
    """The accesses of the body, then of the init; of each the reads, inner ones first, then the write."""
    return _accesses(block.body) + (() if block.init is None else _accesses(block.init))


@kernel_cache(maxsize=4096)
def _accesses(store: Store) -> tuple[Access, ...]:
    reads: dict[Access, None] = {}
    for index in store.indices:
        reads.update(dict.fromkeys(_reads(index, TRUE)))
    reads.update(dict.fromkeys(_reads(store.value, TRUE)))
    return (*reads, Access(store.buffer, store.indices, TRUE, True))


def _reads(e: Expr, condition: Expr) -> Iterator[Access]:
    match e:
        case Load(buffer, indices):
            for i in indices:
                yield from _reads(i, condition)
            yield Access(buffer, indices, condition, False)
        case Select(cond, a, b):
            yield from _reads(cond, condition)
            yield from _reads(a, conjunction(condition, cond))
            yield from _reads(b, conjunction(condition, negation(cond)))
        case _:
            for child in e.children():
                yield from _reads(child, condition)


def negation(condition: Expr) -> Expr:
    """The negation of a condition; True (nothing is known) where it can't be expressed with comparisons."""
    match condition:
        case Const(value):
            return const(not value, condition.dtype)
        case Binary("eq" | "ne" | "lt" | "le" | "gt" | "ge" as op, a, b) if a.dtype.is_int:
            return binary(_NEGATED[op], a, b)  # pyright: ignore[reportArgumentType] - the table holds comparisons
        case Binary("or", a, b):
            return conjunction(negation(a), negation(b))
        case Unary("not", a):
            return a
        case _:
            return TRUE


def read_buffers(block: Block) -> tuple[Buffer, ...]:
    """The buffers that the block reads, in the order of first use."""
    return tuple(dict.fromkeys(a.buffer for a in accesses(block) if not a.is_write))


def written_buffers(block: Block) -> tuple[Buffer, ...]:
    """The buffer that the block writes."""
    return (block.body.buffer,)


def regions(touching: Sequence[Access], block: Block, inner: Sequence[For], bounds: Bounds) -> tuple[Region, ...]:
    """The regions of accesses over all iterations of inner loops, in terms of symbols and outer loops.

    Args:
        touching: accesses of `block`.
        block: the block, whose bindings are substituted.
        inner: the inner loops, outermost first.
        bounds: ranges of the outer variables.

    Returns:
        One region per access, without duplicates. Where an index is not proved monotonic in the inner loops, the
        region spans the whole dimension.
    """
    bindings = {i.var: i.binding for i in block.iters}
    loops = tuple((loop.var, loop.extent) for loop in inner)
    inside = bounds
    for var, extent in loops:
        inside = inside.with_loop(var, extent)
    result: dict[Region, None] = {}
    for a in touching:
        ranges = tuple(
            _index_range(substitute(i, bindings, inside), n, loops, inside)
            for i, n in zip(a.indices, a.buffer.shape, strict=True)
        )
        result[Region(a.buffer, ranges)] = None
    return tuple(result)


@kernel_cache(maxsize=1 << 12)
def _index_range(index: Expr, size: Expr, inner: tuple[tuple[Var, Expr], ...], inside: Bounds) -> tuple[Expr, Expr]:
    """The first and last value of an index over inner loops; the whole dimension where it is not proved monotonic."""
    low = high = index
    for var, extent in reversed(inner):
        last = extent - 1
        ends: list[Expr] = []
        for e, is_low in ((low, True), (high, False)):
            direction = _monotonicity(e, var, inside)
            if direction is None:
                return const(0), size - 1
            ends.append(substitute(e, {var: const(0) if (direction > 0) == is_low else last}, inside))
        low, high = ends
    return low, high


def _monotonicity(e: Expr, var: Var, bounds: Bounds) -> int | None:
    """1 where `e` is proved non-decreasing in `var`, -1 where non-increasing, None where neither is proved."""
    if var not in free_vars(e):
        return 1
    if any(isinstance(child, Load) for child in (e, *e.children())):
        return None
    step = substitute(e, {var: var + 1}) - e
    return 1 if can_prove_non_negative(step, bounds) else -1 if can_prove_non_negative(-step, bounds) else None
