"""Domains: bindings stay in the domains of their variables, and accesses in their buffers."""

from collections.abc import Iterator

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.nodes import Expr, Var
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.access import Access, accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.printer import show_stmt
from tilewright.verify.diagnostics import Diagnostic


def find_domain_errors(context: BlockContext) -> Iterator[Diagnostic]:
    """The bindings of a block that may leave their domains, and its accesses that may leave their buffers."""
    block = context.block
    where = f"block {block.name!r}"
    for i in block.iters:
        binding = context.over_loops(i.var)
        if not can_prove_non_negative(binding, context.bounds):
            yield Diagnostic(where, f"binding {i.binding} of {i.var.name!r} is not proved >= 0", context.text)
        if not can_prove_lt(binding, i.extent, context.bounds):
            yield Diagnostic(where, f"binding {i.binding} of {i.var.name!r} is not proved < {i.extent}", context.text)
    domains = tuple((i.var, i.extent) for i in block.iters)
    for a, axis in _unproved_accesses(domains, accesses(block)):
        # Not in bounds over the whole domain; it may be over the points that loops and predicate reach.
        index, size = a.indices[axis], a.buffer.shape[axis]
        bounds = context.bounds.assuming(context.over_loops(a.condition))
        bound = simplify(context.over_loops(index), bounds)
        for holds, limit in (
            (can_prove_non_negative(bound, bounds), ">= 0"),
            (can_prove_lt(bound, size, bounds), f"< {size}"),
        ):
            if not holds:
                verb = "written" if a.is_write else "read"
                what = f"index {index} of buffer {a.buffer.name!r} ({verb}, dimension {axis}) is not proved {limit}"
                yield Diagnostic(where, what, show_stmt(block))


@kernel_cache(maxsize=4096)
def _unproved_accesses(
    domains: tuple[tuple[Var, Expr], ...], touched: tuple[Access, ...]
) -> tuple[tuple[Access, int], ...]:
    """The accesses, with the dimension, that are not proved in bounds over the domains of the iteration variables."""
    bounds = Bounds()
    for var, extent in domains:
        bounds = bounds.with_loop(var, extent)
    unproved: list[tuple[Access, int]] = []
    for a in touched:
        inside = bounds.assuming(a.condition)
        for axis, (index, size) in enumerate(zip(a.indices, a.buffer.shape, strict=True)):
            if not (can_prove_non_negative(index, inside) and can_prove_lt(index, size, inside)):
                unproved.append((a, axis))
    return tuple(unproved)
