"""Primitives on the storage of values: set_scope, clone_producer, pad_storage.

A *producer* is a block that writes an internal buffer (one of `Func.allocs`); its *consumers* are the blocks that read
it.
"""

from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Const, MemoryScope
from tilewright.expr.operations import ceildiv
from tilewright.loops.access import read_buffers
from tilewright.loops.ir import Block, Func, seq
from tilewright.loops.redirect_accesses import redirect_accesses
from tilewright.schedule.legality import check_inputs_final, check_no_races, check_only_writer
from tilewright.schedule.rewrite_tree import (
    check_new_names,
    claim_name,
    copy_with_fresh_names,
    exclusive_nest,
    find_alloc,
    find_block,
    map_blocks,
    top_statement_of,
    used_names,
    with_buffer_replaced,
    with_stmt_replaced,
)


def set_scope(func: Func, buffer: str, scope: MemoryScope) -> Func:
    """Moves an internal buffer to another memory scope.

    Legality: the buffer is internal; register needs a literal shape; iterations of the parallel and vectorized loops
    around it stay independent (each thread has its own registers and stack; memory is shared).

    Buffers that exceed the stack are in the workspace, with a slice for each thread (`loops/private_memory.py`).
    """
    old = find_alloc(func, buffer)
    check_scope(old, scope)
    result = with_buffer_replaced(func, old, replace(old, scope=scope))
    place = f"set_scope of {buffer!r} to {scope}"
    check_no_races(result, None, place)
    return result


def check_scope(buffer: Buffer, scope: MemoryScope) -> None:
    """Checks that a buffer in registers has a literal shape."""
    if scope is MemoryScope.REGISTER and not all(isinstance(n, Const) for n in buffer.shape):
        raise ScheduleError(
            f"its shape ({', '.join(map(str, buffer.shape))}) is not literal",
            where=f"set_scope of {buffer.name!r} to {scope}",
            hint="use 'stack', which takes any size, or `split` the loops of its size and compute it per tile",
        )


def clone_producer(func: Func, block: str, consumer: str, names: tuple[str, str] | None = None) -> Func:
    """Gives one consumer its own producer: the nest and its buffer are copied, and the consumer reads the copy.

    Args:
        names: of the new block and of the new buffer, which may be the same; fresh ones without it.

    Legality: the producer's nest holds only that block, the only writer of an internal buffer that the consumer reads;
    nothing that the producer reads is written between the two.

        nest P: B[..] = ..             nest P: B[..] = ..
        nest Q: .. = B[..]       ->    nest Q: .. = B[..]
        nest R: .. = B[..]             nest P_2: B_2[..] = ..
                                       nest R: .. = B_2[..]
    """
    node, enclosing = find_block(func, block)
    reader, _ = find_block(func, consumer)
    nest = exclusive_nest(node, enclosing, "clone_producer")
    old = find_alloc(func, node.body.buffer.name)
    check_clone(func, node, reader)
    used = used_names(func)
    for name in names or ():
        check_new_names((name,), used, f"clone_producer of {block!r} for {consumer!r}")
    used.update(names or ())
    new = replace(old, name=names[1] if names else claim_name(old.name, used))
    copy = map_blocks(copy_with_fresh_names(nest, used), lambda b: redirect_accesses(b, old, new, lambda i: i))
    copy = map_blocks(copy, lambda b: replace(b, name=names[0] if names else b.name))
    top = top_statement_of(func, reader)
    redirected = map_blocks(top, lambda b: redirect_accesses(b, old, new, lambda i: i) if b is reader else b)
    result = with_stmt_replaced(func, top, seq(copy, redirected))
    return replace(result, allocs=(*func.allocs, new))


def check_clone(func: Func, node: Block, reader: Block) -> None:
    """Checks that the consumer reads a buffer that the block alone writes, and the block can run again just before
    it."""
    place = f"clone_producer of {node.name!r} for {reader.name!r}"
    buffer = node.body.buffer
    if reader is node or buffer not in read_buffers(reader):
        raise ScheduleError(f"the consumer does not read {buffer.name!r}", where=place)
    check_only_writer(func, node, place)
    check_inputs_final(func, node, reader, place)


def pad_storage(func: Func, buffer: str, dim: int, multiple: int = 1, extra: int = 0) -> Func:
    """Pads a dimension of an internal buffer beyond its data, which moves the elements after it.

    Rows at a distance of a large power of two map to few cache sets; one more line per row spreads them over all sets.

    Equation: N_dim becomes ceil(N_dim / multiple) * multiple + extra; indices stay.

    Legality: the buffer is internal and has that dimension; `multiple >= 1`, `extra >= 0`, and one of them has
    an effect. Primitives that replace a buffer (`compute_at`) drop the padding, so it comes last.

        alloc B: float32[64, 1024]          alloc B: float32[64, 1040]      # dim 1, extra 16
        .. B[i, j] ..                ->     .. B[i, j] ..

    Known as storage_align in TVM, align_storage in Halide.
    """
    old = find_alloc(func, buffer)
    check_padding(old, dim, multiple, extra)
    size = ceildiv(old.shape[dim], multiple) * multiple + extra
    return with_buffer_replaced(func, old, replace(old, shape=(*old.shape[:dim], size, *old.shape[dim + 1 :])))


def check_padding(buffer: Buffer, dim: int, multiple: int, extra: int) -> None:
    """Checks that the dimension exists and does not shrink."""
    place = f"pad_storage of {buffer.name!r}"
    if not 0 <= dim < buffer.rank:
        raise ScheduleError(f"expected a dimension in 0..{buffer.rank - 1}, got {dim}", where=place)
    if multiple < 1 or extra < 0 or (multiple, extra) == (1, 0):
        raise ScheduleError(
            f"expected a multiple of at least 2 or extra elements, got multiple {multiple} and {extra} extra",
            where=place,
        )
