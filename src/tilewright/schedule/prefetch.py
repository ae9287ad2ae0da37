"""The primitive prefetch, which inserts software prefetches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd, prod

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import Bounds, interval
from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import Buffer, Const, Expr, Load, MemoryScope, const
from tilewright.expr.traversal import free_vars
from tilewright.loops.access import Region, accesses, regions
from tilewright.loops.ir import Block, For, Func, LoopKind, walk
from tilewright.machine.alignment import CACHE_LINE_BYTES
from tilewright.schedule.rewrite_tree import bounds_of, find_loop, with_stmt_replaced
from tilewright.verify.prefetch_safety import unsafe_reason

MAX_LINES = 16
"""Lines that one iteration prefetches at most: caches handle about as many outstanding misses."""

MAX_DISTANCE = 256
"""The largest prefetch distance in iterations; lines fetched earlier are evicted before they are read."""


def prefetch(func: Func, loop: str, buffer: str, distance: int) -> Func:
    """Prefetches what the iteration `distance` steps later accesses of a buffer.

    One prefetch per cache line of the region that an iteration accesses, row after row, `MAX_LINES` at most, and one of
    the last element of a row where it may be in a further line: rows need not begin at lines, nor need parameters. A
    symbolic size counts with its minimum. Of a run shorter than a line it is that of the last element, as neighbouring
    runs share the first one's. The last iterations prefetch for the first ones of the loop's next execution, and where
    the distance is the loop's extent, every iteration for the same one of that. Prefetches have no semantics: the last
    ones of all are of lines beyond the data.

    Legality: the loop is not vectorized; the buffer is in memory, and a block inside the loop touches it at indices
    that depend on the loop, but not on data; `1 <= distance <= MAX_DISTANCE`; addresses do not overflow.

        for i in serial(N):            for i in serial(N) prefetching A[i + 4, 0], A[i + 4, 16], A[i + 4, 31]:
            for j in serial(32):  ->       for j in serial(32):
                .. A[i, j] ..                  .. A[i, j] ..

    Known as prefetch in Halide and TVM.
    """
    node, enclosing = find_loop(func, loop)
    place = f"prefetch of {buffer!r} in loop {loop!r}"
    check_loop(node, distance, place)
    bounds = bounds_of((*enclosing, node))
    touched = touched_regions(node, check_buffer(func, buffer, place), bounds, place)
    is_aligned = any(b.name == buffer for b in func.allocs)
    hints = first_distinct((hint for r in touched for hint in cache_line_elements(r, bounds, is_aligned)), MAX_LINES)
    prefetches = [_later(h, node, enclosing, distance, bounds) for h in hints]
    check_addresses(prefetches, bounds, place)
    return with_stmt_replaced(
        func, node, replace(node, prefetches=tuple(dict.fromkeys((*node.prefetches, *prefetches))))
    )


def _later(hint: Load, node: For, enclosing: Sequence[For], distance: int, bounds: Bounds) -> Load:
    """What the iteration `distance` steps later reads in place of `hint`.

    Behind the loop's last iteration come the first ones of its next execution, for which the nearest enclosing loop
    that the element depends on has gone on. Where addresses simply continue there, as those of packed panels do,
    nothing is wrapped.
    """
    linear = {node.var: node.var + distance}
    is_moving = (loop for loop in reversed(enclosing) if loop.var in free_vars(hint) and loop.extent is not const(1))
    carrier = next(is_moving, None)
    if carrier is not None and isinstance(node.extent, Const):
        end, next_execution = {node.var: node.var + node.extent}, {carrier.var: carrier.var + 1}
        place = _position(hint)
        if simplify(substitute(place, end) - substitute(place, next_execution), bounds) is not const(0):
            step = node.var + distance
            moved = {node.var: step % node.extent, carrier.var: carrier.var + step // node.extent}
            return Load(hint.buffer, tuple(simplify(substitute(i, moved), bounds) for i in hint.indices))
    return Load(hint.buffer, tuple(substitute(i, linear) for i in hint.indices))


def _position(element: Load) -> Expr:
    """The number of an element in the row-major order of its buffer."""
    position: Expr = const(0)
    for index, size in zip(element.indices, element.buffer.shape, strict=True):
        position = position * size + index
    return position


def first_distinct(hints: Iterator[Load], limit: int) -> tuple[Load, ...]:
    """The first distinct hints, up to `limit`; the iterator is not read further."""
    distinct: dict[Load, None] = {}
    while len(distinct) < limit and (hint := next(hints, None)) is not None:
        distinct[hint] = None
    return tuple(distinct)


def check_loop(node: For, distance: int, place: str) -> None:
    """Checks that the loop's iterations run one after the other, and the distance is in range."""
    if node.kind is LoopKind.VECTORIZED:
        raise ScheduleError("the loop is vectorized: its iterations run at once", where=place)
    if not 1 <= distance <= MAX_DISTANCE:
        raise ScheduleError(f"expected a distance in 1..{MAX_DISTANCE}, got {distance}", where=place)


def check_buffer(func: Func, name: str, place: str) -> Buffer:
    """Checks that the buffer of this name exists and is in memory; returns it."""
    buffer = {b.name: b for b in (*func.params, *func.allocs)}.get(name)
    if buffer is None:
        raise ScheduleError(f"there is no buffer {name!r}", where=place)
    if buffer.scope is not MemoryScope.MEMORY:
        raise ScheduleError(f"it is in scope {buffer.scope}, not in memory", where=place)
    return buffer


def touched_regions(node: For, buffer: Buffer, bounds: Bounds, place: str) -> list[Region]:
    """The regions of a buffer that one iteration of the loop accesses; those that do not move with the loop are left
    out."""
    touched: dict[Region, None] = {}
    for b, inner in walk(node.body):
        if isinstance(b, Block):
            buffer_accesses = [a for a in accesses(b) if a.buffer == buffer]
            touched.update(dict.fromkeys(regions(buffer_accesses, b, inner, bounds)))
    if not touched:
        raise ScheduleError(f"no block inside accesses {buffer.name!r}", where=place)
    next_iteration = {node.var: node.var + 1}
    moving_regions = [
        r for r in touched if any(substitute(first, next_iteration) is not first for first, _ in r.ranges)
    ]
    if not moving_regions:
        raise ScheduleError(
            f"which elements of {buffer.name!r} an iteration touches does not follow from {node.var.name!r}",
            where=place,
        )
    return moving_regions


def check_addresses(hints: Sequence[Load], bounds: Bounds, place: str) -> None:
    """Checks that the addresses can be computed without reading memory and without overflow."""
    for hint in hints:
        problem = unsafe_reason(hint, bounds)
        if problem is not None:
            raise ScheduleError(f"{hint}: {problem}", where=place)


def cache_line_elements(region: Region, bounds: Bounds, is_aligned: bool) -> Iterator[Load]:
    """One element of every cache line of a region, row after row; `is_aligned` tells whether the buffer begins at a
    line."""
    line = max(1, CACHE_LINE_BYTES // region.buffer.dtype.bytes)
    starts = [first for first, _ in region.ranges]
    counts = [_min_size(simplify(last - first + 1, bounds), bounds) for first, last in region.ranges]
    inner = _first_contiguous_dim(region, counts)
    yield from _strided_elements(region.buffer, starts, counts, inner, line if is_aligned else 1)


def _min_size(size: Expr, bounds: Bounds) -> int:
    """A literal size, or the least value of a symbolic one, but at least 1."""
    if isinstance(size, Const):
        return int(size.value)
    return max(1, interval(size, bounds)[0] or 1)


def _first_contiguous_dim(region: Region, counts: Sequence[int]) -> int:
    """The first of the innermost dimensions that form a contiguous run: the dimensions after it are accessed whole."""
    k = max(0, len(counts) - 1)
    while k > 0 and region.ranges[k][0] is const(0) and region.buffer.shape[k] is const(counts[k]):
        k -= 1
    return k


def _strided_elements(
    buffer: Buffer, starts: Sequence[Expr], counts: Sequence[int], inner: int, alignment: int
) -> Iterator[Load]:
    """An element of every line in every run of dimensions `inner` and following, for every index of the dimensions
    before; the buffer begins at a multiple of `alignment` elements."""
    run, rows, step = prod(counts[inner:]), prod(counts[:inner]), max(1, CACHE_LINE_BYTES // buffer.dtype.bytes)
    for row in range(min(rows, MAX_LINES)):
        outer = _unflatten(row, counts[:inner])
        first = Load(buffer, tuple(i + k for i, k in zip(starts, (*outer, *[0] * (len(counts) - inner)), strict=True)))
        for position in _positions_in_run(run, step, gcd(alignment, *polynomial(_position(first)).values())):
            at = (*outer, *_unflatten(position, counts[inner:]))
            yield Load(buffer, tuple(i + k for i, k in zip(starts, at, strict=True)))


def _positions_in_run(run: int, step: int, alignment: int) -> list[int]:
    """Positions `step` apart in a run, and its last one where it may be in a further line, as the run begins at any
    multiple of `alignment`; the last one alone of a run shorter than a line."""
    if run < step:
        return [run - 1]
    positions = list(range(0, min(run, MAX_LINES * step), step))
    last_line = (step - alignment + run - 1) // step
    return positions if last_line == positions[-1] // step else [*positions, run - 1]


def _unflatten(position: int, counts: Sequence[int]) -> tuple[int, ...]:
    """The indices of an element of a row-major box."""
    indices: list[int] = []
    for n in reversed(counts):
        indices.append(position % n)
        position //= n
    return tuple(reversed(indices))
