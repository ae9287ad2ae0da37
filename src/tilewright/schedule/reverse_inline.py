"""The primitive reverse_inline, which folds an element-wise consumer into its producer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.traversal import is_one, loads, replace_loads
from tilewright.loops.access import accesses, read_buffers
from tilewright.loops.ir import Block, For, Func, IterKind, blocks, walk
from tilewright.schedule.consumer_legality import check_covered_once, check_injective_writes
from tilewright.schedule.inline import check_elementwise, check_plain_indices
from tilewright.schedule.legality import check_in_bounds, check_no_races, check_only_writer
from tilewright.schedule.region import check_domain
from tilewright.schedule.rewrite_tree import (
    find_block,
    map_blocks,
    map_store,
    top_statement_of,
    top_statements,
    with_stmt_replaced,
)
from tilewright.verify.prefetch_safety import drop_stale_prefetches

HINT = "use reverse_compute_at to run the consumer in a loop of its producer"


def reverse_inline(func: Func, block: str) -> Func:
    """Folds an element-wise consumer into its producer, which then writes what the consumer wrote; the consumer's
    block and the buffer between the two disappear.

    The producer keeps its name and its loops. It is the block that writes last what the consumer reads.

    Equation: from B[v] = f(v) and C[g(w)] = h(B[w], w) follows C[g(v)] = h(f(v), v).

    Legality: neither block has reductions; the producer alone writes an internal buffer, at distinct plain iteration
    variables, all of it, and reaches every point of its domain once; the consumer alone reads that, every element at
    one point of its own; it alone writes its buffer, every point another element; predicates guard tails only; the
    consumer's other inputs are not written, and its buffer is not used, from the producer's nest to its own; concurrent
    loops around the producer stay independent.

        for i: block P: B[i] = A[i] * 2
        for j: block Q: C[j] = B[j] + D[j]     ->    for i: block P: C[i] = A[i] * 2 + D[i]

    Known as reverse_compute_inline in TVM.
    """
    node, enclosing = find_block(func, block)
    place = f"reverse_inline of {block!r}"
    producer, producer_loops = check_producer(func, node, place)
    old = producer.body.buffer
    check_consumer(func, node, enclosing, place)
    check_between(func, producer, node, place)
    check_domain(producer, producer_loops, place)
    where = check_one_to_one(producer, node, place)

    def folded(e: Expr) -> Expr:
        return replace_loads(substitute(e, where), lambda x: producer.body.value if x.buffer == old else x)

    without_consumer = with_stmt_replaced(func, node, None)
    folded_producer = replace(producer, body=map_store(node.body, folded))
    body = map_blocks(without_consumer.body, lambda b: folded_producer if b.name == producer.name else b)
    result = drop_stale_prefetches(
        replace(without_consumer, body=body, allocs=tuple(a for a in without_consumer.allocs if a != old))
    )
    check_in_bounds(result, [producer.name], place)
    check_covered_once(result, producer.name, place)
    check_no_races(result, None, place)
    return result


def check_producer(func: Func, node: Block, place: str) -> tuple[Block, tuple[For, ...]]:
    """Returns the last block before the consumer that writes what it reads: element-wise, the only writer of an
    internal buffer that only the consumer reads."""
    writer: tuple[Block, tuple[For, ...]] | None = None
    for s, enclosing in walk(func.body):
        if s is node:
            break
        if isinstance(s, Block) and s.body.buffer in read_buffers(node):
            writer = s, enclosing
    if writer is None:
        raise ScheduleError("nothing before it writes what it reads", where=place)
    producer, buffer = writer[0], writer[0].body.buffer
    if buffer not in func.allocs:
        raise ScheduleError(f"block {producer.name!r} writes {buffer.name!r}, which is not internal", where=place)
    check_elementwise(producer, place, HINT)
    check_only_writer(func, producer, place)
    check_plain_indices(producer, place)
    for b in blocks(func.body):
        if b is not node and buffer in read_buffers(b):
            raise ScheduleError(f"block {b.name!r} reads {buffer.name!r} too", where=place, hint=HINT)
    return writer


def check_consumer(func: Func, node: Block, enclosing: Sequence[For], place: str) -> None:
    """Checks that the block is element-wise, every point writes a different element, and it depends on no loop
    otherwise."""
    check_elementwise(node, place, "use inline to substitute its producer")
    check_injective_writes(func, node, place)
    check_domain(node, enclosing, place)


def check_between(func: Func, producer: Block, node: Block, place: str) -> None:
    """Checks that the consumer may run at the producer's place: up to its own nest, no block changes its inputs or uses
    its buffer."""
    tops = top_statements(func)
    start = next(k for k, s in enumerate(tops) if s is top_statement_of(func, producer))
    end = next(k for k, s in enumerate(tops) if s is top_statement_of(func, node))
    result = node.body.buffer
    for b in (b for top in tops[start : end + 1] for b in blocks(top)):
        if b is not node and any(a.buffer == result for a in accesses(b)):
            raise ScheduleError(f"block {b.name!r} uses {result.name!r} before it", where=place)
        if b is not node and b is not producer and b.body.buffer in read_buffers(node):
            raise ScheduleError(f"block {b.name!r} writes {b.body.buffer.name!r}, which it reads", where=place)


def check_one_to_one(producer: Block, node: Block, place: str) -> Mapping[Var, Expr]:
    """Checks that every element of the producer's buffer is read at one point of the consumer; returns the consumer's
    variables in terms of the producer's."""
    buffer = producer.body.buffer
    read = [x for x in loads(node.body.value) if x.buffer == buffer]
    index_loads = [x for i in node.body.indices for x in loads(i) if x.buffer == buffer]
    spatial = {i.var: i.extent for i in node.iters if i.kind is IterKind.SPATIAL}
    if len(read) != 1 or index_loads or len(set(read[0].indices)) != buffer.rank:
        raise ScheduleError(f"it does not read every element of {buffer.name!r} at one point", where=place, hint=HINT)
    mapping: dict[Var, Expr] = {}
    extents = {i.var: i.extent for i in producer.iters}
    for index, target, size in zip(read[0].indices, producer.body.indices, buffer.shape, strict=True):
        is_whole = isinstance(target, Var) and can_prove(extents[target].equals(size))
        if not (isinstance(index, Var) and index in spatial and is_whole and can_prove(spatial[index].equals(size))):
            what = f"it does not read {buffer.name!r}, all of it, at its plain iteration variables"
            raise ScheduleError(what, where=place, hint=HINT)
        mapping[index] = target
    for var, extent in spatial.items():
        if var not in mapping:
            if not is_one(extent):
                raise ScheduleError(f"it reads {buffer.name!r} again for every {var.name!r}", where=place, hint=HINT)
            mapping[var] = const(0)
    return mapping
