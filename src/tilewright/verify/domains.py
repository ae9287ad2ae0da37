"""Domains: bindings stay in the domains of their variables, and accesses in their buffers."""

from collections.abc import Iterator
from functools import lru_cache

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.nodes import Expr, Var
from tilewright.loops.access import Access, accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.printer import show_stmt
from tilewright.verify.diagnostics import Diagnostic


def find_domain_errors(nest: BlockContext) -> Iterator[Diagnostic]:
    """The bindings of a block that may leave their domains, and its accesses that may leave their buffers."""
    block = nest.block
    where = f"block {block.name!r}"
    for i in block.iters:
        binding = nest.over_loops(i.var)
        if not can_prove_non_negative(binding, nest.bounds):
            yield Diagnostic(where, f"binding {i.binding} of {i.var.name!r} is not proved >= 0", nest.text)
        if not can_prove_lt(binding, i.extent, nest.bounds):
            yield Diagnostic(where, f"binding {i.binding} of {i.var.name!r} is not proved < {i.extent}", nest.text)
    domains = tuple((i.var, i.extent) for i in block.iters)
    for a, axis in _unproved_accesses(domains, accesses(block)):
        # Over the block's own domains it is not in bounds; it may be where the loops and the predicate go.
        index, size = a.indices[axis], a.buffer.shape[axis]
        known = nest.bounds.assuming(nest.over_loops(a.condition))
        bound = simplify(nest.over_loops(index), known)
        for holds, limit in (
            (can_prove_non_negative(bound, known), ">= 0"),
            (can_prove_lt(bound, size, known), f"< {size}"),
        ):
            if not holds:
                verb = "written" if a.is_write else "read"
                what = f"index {index} of buffer {a.buffer.name!r} ({verb}, dimension {axis}) is not proved {limit}"
                yield Diagnostic(where, what, show_stmt(block))


@lru_cache(maxsize=4096)
def _unproved_accesses(
    domains: tuple[tuple[Var, Expr], ...], touched: tuple[Access, ...]
) -> tuple[tuple[Access, int], ...]:
    """The accesses, with the dimension, that the domains of the iteration variables alone do not keep in bounds."""
    known = Bounds()
    for var, extent in domains:
        known = known.with_loop(var, extent)
    found: list[tuple[Access, int]] = []
    for a in touched:
        inside = known.assuming(a.condition)
        for axis, (index, size) in enumerate(zip(a.indices, a.buffer.shape, strict=True)):
            if not (can_prove_non_negative(index, inside) and can_prove_lt(index, size, inside)):
                found.append((a, axis))
    return tuple(found)
