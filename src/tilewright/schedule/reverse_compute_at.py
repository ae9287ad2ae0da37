"""The primitive reverse_compute_at, which fuses consumers into producers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Var
from tilewright.loops.access import accesses
from tilewright.loops.ir import Block, For, Func, blocks, seq
from tilewright.schedule.consumer_legality import check_consumer, check_covered_once, check_inputs_complete
from tilewright.schedule.legality import check_accumulated_once, check_no_races
from tilewright.schedule.region import Span, check_domain, over_region, region
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    exclusive_nest,
    find_block,
    find_loop,
    nest_loops,
    spatial_vars,
    used_names,
    with_stmt_replaced,
)


def reverse_compute_at(func: Func, block: str, loop: str, names: tuple[str, ...] | None = None) -> Func:
    """Moves a consumer to the end of a loop of its producers, computing there what one iteration makes possible.

    Equation: iteration x of the loop writes the box [start(x), start(x) + size) of each producer's buffer B; where the
    consumer reads B at its spatial variable v, it runs for start(x) <= v < start(x) + size. Its other spatial loops and
    its reductions stay whole; all are serial. Buffers keep their shapes; `store_at` shrinks them.

    Args:
        names: of the block's new loops, outermost first: the spatial ones, then the reductions. Without it they are
            called `<variable>_t`.

    Legality: the consumer's nest holds only that block and comes after that of the loop; it alone writes its buffer,
    its spatial variables are indices of what it writes, and nobody else uses that before; it reads a buffer that the
    loop writes at a plain spatial variable; all elements that it reads are final there: the loop writes them in one
    iteration only (so reductions of the producers lie inside of it), and nothing writes them later; it reaches every
    point of its domain once; concurrent loops around the new place stay independent.

        for i:                                   for i:
            for k: block P: B[i] += A[i, k]          for k: block P: B[i] += A[i, k]
        for j: block Q: C[j] = f(B[j])     ->        block Q(v = i): C[v] = f(B[v])

    Known as reverse_compute_at in TVM, fuse in Exo.
    """
    node, enclosing = find_block(func, block)
    target, outer = find_loop(func, loop)
    loops = (*outer, target)
    place = f"reverse_compute_at of {block!r} in loop {loop!r}"
    check_consumer(func, node, target, place)
    nest = exclusive_nest(node, enclosing, "reverse_compute_at")
    check_domain(node, enclosing, place)
    spans = check_spans(func, node, loops, place)
    moved, new_loops, _ = over_region(node, spans, bounds_of(loops), used_names(func), names, place)
    body = seq(target.body, nest_loops(new_loops, moved))
    result = with_stmt_replaced(with_stmt_replaced(func, nest, None), target, replace(target, body=body))
    check_inputs_complete(result, block, [x.var.name for x in loops], (), place)
    check_covered_once(result, block, place)
    check_accumulated_once(result, [moved], place)
    check_no_races(result, None, place)
    return result


def check_spans(func: Func, node: Block, loops: Sequence[For], place: str) -> Mapping[Var, Span]:
    """The part of the consumer's domain that one iteration of the last of `loops` completes, per spatial variable that
    indexes what the loop writes; several such buffers agree."""
    written = {b.body.buffer for b in blocks(loops[-1])}
    spans: dict[Var, Span] = {}
    spatial = spatial_vars(node)
    for a in accesses(node):
        if a.is_write or a.buffer not in written or not any(i in spatial for i in a.indices):
            continue
        for index, span in zip(a.indices, region(func, a.buffer, loops, place, writes_only=True), strict=True):
            if isinstance(index, Var) and index in spatial and spans.setdefault(index, span) != span:
                other = spans[index]
                what = (
                    f"{index.name!r} would start at {other.start} with {other.size} values, "
                    f"but for {a.buffer.name!r} at {span.start} with {span.size}"
                )
                raise ScheduleError(what, where=place)
    if not spans:
        names = ", ".join(sorted(repr(b.name) for b in written))
        what = f"it reads nothing that the loop writes ({names}) at its plain spatial variables"
        raise ScheduleError(what, where=place)
    return spans
