"""The primitive inline, which substitutes element-wise producers into their readers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.traversal import free_vars, replace_loads
from tilewright.loops.access import read_buffers
from tilewright.loops.ir import Block, For, Func, IterKind, blocks
from tilewright.schedule.legality import check_in_bounds, check_inputs_final, check_only_writer
from tilewright.schedule.region import check_domain
from tilewright.schedule.rewrite_tree import find_block, map_blocks, map_store, spatial_vars, with_stmt_replaced
from tilewright.verify.prefetch_safety import drop_stale_prefetches


def inline(func: Func, block: str) -> Func:
    """Substitutes an element-wise producer into all its readers; its block and its buffer disappear.

    Equation: from B[v] = f(v) follows B[e] = f(e) wherever B[e] is read. What several readers need is computed several
    times.

    Legality: the block has no reductions; it alone writes an internal buffer, at distinct plain iteration variables;
    its predicate guards tails only; somebody reads the buffer; nothing that the block reads is written between its
    place and the end of its last reader's nest; what it reads is in bounds wherever it is read now.

        for i: block P: B[i] = exp(A[i])
        for j: block Q: C[j] = B[j + 1] * 2    ->    for j: block Q: C[j] = exp(A[j + 1]) * 2

    Known as compute_inline in Halide and TVM, inline_assign in Exo.
    """
    node, enclosing = find_block(func, block)
    place = f"inline of {block!r}"
    buffer = check_inlinable(func, node, enclosing, place)
    readers = [b.name for b in blocks(func.body) if b is not node and buffer in read_buffers(b)]
    check_readers(func, node, readers, place)

    def value(load: Load) -> Expr:
        if load.buffer != buffer:
            return load
        return substitute(node.body.value, _index_map(node, load.indices))

    without_block = with_stmt_replaced(func, node, None)
    body = map_blocks(without_block.body, lambda b: _replace_block_loads(b, value) if b.name in readers else b)
    result = drop_stale_prefetches(
        replace(without_block, body=body, allocs=tuple(a for a in without_block.allocs if a != buffer))
    )
    check_in_bounds(result, readers, place)
    return result


def _index_map(node: Block, indices: tuple[Expr, ...]) -> Mapping[Var, Expr]:
    """The iteration variables at which a block writes an element."""
    return {v: i for v, i in zip(node.body.indices, indices, strict=True) if isinstance(v, Var)}


def _replace_block_loads(block: Block, value: Callable[[Load], Expr]) -> Block:
    def changed(e: Expr) -> Expr:
        return replace_loads(e, value)

    init = None if block.init is None else map_store(block.init, changed)
    return replace(block, body=map_store(block.body, changed), init=init)


def check_inlinable(func: Func, node: Block, enclosing: Sequence[For], place: str) -> Buffer:
    """The block is element-wise, alone writes an internal buffer at plain variables, and depends on no loop
    otherwise."""
    check_elementwise(node, place, "use compute_at to run it in a loop of its readers")
    buffer = node.body.buffer
    if buffer not in func.allocs:
        raise ScheduleError(f"it writes {buffer.name!r}, which is not internal", where=place)
    check_only_writer(func, node, place)
    check_plain_indices(node, place)
    check_domain(node, enclosing, place)
    return buffer


def check_elementwise(node: Block, place: str, hint: str) -> None:
    """The block has no reductions."""
    reduced = [i.var.name for i in node.iters if i.kind is IterKind.REDUCE]
    if reduced:
        raise ScheduleError(f"block {node.name!r} reduces over {reduced[0]!r}", where=place, hint=hint)
    if node.init is not None or node.body.buffer in read_buffers(node):
        what = f"block {node.name!r} accumulates into {node.body.buffer.name!r}"
        raise ScheduleError(what, where=place, hint=hint)


def check_plain_indices(node: Block, place: str) -> None:
    """The block writes at distinct plain iteration variables, and its value depends on no others."""
    indices, spatial = node.body.indices, spatial_vars(node)
    used = [v for v in spatial if v in free_vars(node.body.value)]
    if not all(i in spatial for i in indices) or len(set(indices)) != len(indices) or not set(used) <= set(indices):
        raise ScheduleError(f"block {node.name!r} does not write at its plain iteration variables", where=place)


def check_readers(func: Func, node: Block, readers: Sequence[str], place: str) -> None:
    """The block's results are read, and its inputs do not change until then."""
    if not readers:
        raise ScheduleError(f"nothing reads {node.body.buffer.name!r}", where=place)
    for name in readers:
        check_inputs_final(func, node, find_block(func, name)[0], place)
