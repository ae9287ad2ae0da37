"""The parts of intermediates that are read: windows may leave a border of a padded row unread."""

from tilewright.expr.algebra.bounds import Bounds, interval
from tilewright.expr.nodes import Buffer, Const, Expr, Var, const
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, Func, blocks

Span = tuple[int, int]
"""First and last value."""


def needed_points(func: Func) -> dict[str, tuple[Expr, ...]]:
    """Points of every iteration variable of which a later block reads a result, by the block's name.

    The whole extent where that is a symbol, or the indices of readers depend on data.
    """
    read: dict[Buffer, list[Span | None]] = {}
    needed: dict[str, tuple[Expr, ...]] = {}
    for b in reversed(blocks(func.body)):
        spans = {i.var: _extent_span(i.extent) for i in b.iters}
        if b.body.buffer in func.allocs:
            for index, span in zip(b.body.indices, read.get(b.body.buffer, ()), strict=False):
                if isinstance(index, Var) and index in spans:
                    spans[index] = _common(spans[index], span)
        needed[b.name] = tuple(
            i.extent if (span := spans[i.var]) is None else const(span[1] - span[0] + 1) for i in b.iters
        )
        bounds = _bounds(b, spans)
        for x in loads(b.body.value):
            if x.buffer != b.body.buffer:
                found = [_span_of(index, bounds) for index in x.indices]
                read[x.buffer] = [_union(*pair) for pair in zip(read.get(x.buffer, found), found, strict=True)]
    return needed


def _extent_span(extent: Expr) -> Span | None:
    return (0, int(extent.value) - 1) if isinstance(extent, Const) and extent.value > 0 else None


def _bounds(block: Block, spans: dict[Var, Span | None]) -> Bounds:
    bounds = Bounds.from_loops((i.var, i.extent) for i in block.iters)
    for var, span in spans.items():
        bounds = bounds if span is None else bounds.with_range(var, const(span[0]), const(span[1]))
    return bounds


def _span_of(index: Expr, bounds: Bounds) -> Span | None:
    low, high = interval(index, bounds)
    return None if low is None or high is None else (low, high)


def _common(a: Span | None, b: Span | None) -> Span | None:
    """The common part of what exists and what is read; all that exists where nothing of it is."""
    if a is None or b is None:
        return a
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else a


def _union(a: Span | None, b: Span | None) -> Span | None:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
