"""Primitives that say where values are kept: set_scope, cache_write, clone_producer, permute, pack.

A *producer* is a block that writes an internal buffer (one of `Func.allocs`); its *consumers* are the blocks that
read it.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.buffer import Buffer, Scope
from tilewright.expr.nodes import Const, Expr, Load, Var, as_expr, ceildiv, const, loads, select
from tilewright.expr.prover import prove
from tilewright.loops.access import reads
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Stmt, Store, blocks, seq
from tilewright.schedule.legality import check_independent, check_inputs_final, check_only_writer, check_untouched
from tilewright.schedule.tree import (
    check_new_names,
    claimed,
    find_alloc,
    find_block,
    fresh,
    map_blocks,
    own_nest,
    renamed,
    spatial_vars,
    top_of,
    used_names,
    with_buffer,
    with_new_buffer,
    with_replaced,
)


def set_scope(func: Func, buffer: str, scope: Scope) -> Func:
    """Moves an internal buffer to another memory scope.

    Legality: the buffer is internal; register and stack need a literal shape; iterations of the parallel and
    vectorized loops around it stay independent (each has its own registers, each thread its own stack; memory is
    shared).
    """
    old = find_alloc(func, buffer)
    check_scope(old, scope)
    result = with_new_buffer(func, old, replace(old, scope=scope))
    check_independent(result, None, f"set_scope of {buffer!r} to {scope}")
    return result


def check_scope(buffer: Buffer, scope: Scope) -> None:
    """Only memory may hold buffers whose size is not a literal."""
    if scope is not Scope.MEMORY and not all(isinstance(n, Const) for n in buffer.shape):
        raise ScheduleError(
            f"its shape ({', '.join(map(str, buffer.shape))}) is not literal",
            where=f"set_scope of {buffer.name!r} to {scope}",
        )


def cache_write(func: Func, block: str, name: str | None = None) -> Func:
    """Lets a block write an internal buffer, which a new nest behind it copies to the old place.

    The new block is called `<block>_write`; its loops are serial over the buffer's dimensions. `compute_at` and
    `set_scope` then turn the internal buffer into accumulators.

    Legality: the block is the only writer of its buffer and writes all of it, at its plain iteration variables; no
    other block of its nest reads the buffer.

        for i: block C: C[i] += ..  ->  for i: block C: C_local[i] += ..
                                        for j: block C_write: C[j] = C_local[j]

    Known as cache_write in Halide and TVM, stage_mem in Exo.
    """
    node, around = find_block(func, block)
    old = node.body.buffer
    nest: Stmt = around[0] if around else node
    check_cacheable(func, node, nest)
    used = used_names(func)
    place = f"cache_write of {block!r}"
    if name is not None:
        check_new_names((name,), used, place)
    local = replace(old, name=claimed(name or f"{old.name}_local", used), scope=Scope.MEMORY)
    changed = map_blocks(nest, lambda b: with_buffer(b, old, local, lambda i: i) if b is node else b)
    copy = _copy_nest(claimed(f"{block}_write", used), old, local, used)
    result = with_replaced(func, nest, seq(changed, copy))
    return replace(result, allocs=(*func.allocs, local))


def check_cacheable(func: Func, node: Block, nest: Stmt) -> None:
    """The block alone writes its buffer, all of it; nothing reads the buffer before the copy behind the nest."""
    place = f"cache_write of {node.name!r}"
    buffer = node.body.buffer
    check_only_writer(func, node, place)
    check_untouched(buffer, nest, node, place)
    extents = tuple(i.extent for i in node.iters if i.kind is IterKind.SPATIAL)
    if node.body.indices != spatial_vars(node) or extents != buffer.shape:
        raise ScheduleError(f"it does not write all of {buffer.name!r} at its plain iteration variables", where=place)


def _copy_nest(name: str, target: Buffer, source: Buffer, used: set[str]) -> Stmt:
    loops: list[Var] = []
    iters: list[BlockIter] = []
    for k, extent in enumerate(target.shape):
        loops.append(Var(claimed(f"{name}_l{k}", used)))
        iters.append(BlockIter(Var(claimed(f"{name}_v{k}", used)), extent, IterKind.SPATIAL, loops[-1]))
    index = tuple(i.var for i in iters)
    body: Stmt = Block(name, tuple(iters), Store(target, index, Load(source, index)))
    return _serial_nest(list(zip(loops, target.shape, strict=True)), body)


def _serial_nest(loops: Sequence[tuple[Var, Expr]], body: Stmt) -> Stmt:
    for loop, extent in reversed(loops):
        body = For(loop, extent, LoopKind.SERIAL, body)
    return body


def clone_producer(func: Func, block: str, consumer: str) -> Func:
    """Gives one consumer a producer of its own: the nest and its buffer are copied, and the consumer reads the copy.

    Legality: the producer's nest holds only that block, the only writer of an internal buffer that the consumer reads;
    nothing that the producer reads is written between the two.

        nest P: B[..] = ..             nest P: B[..] = ..
        nest Q: .. = B[..]       ->    nest Q: .. = B[..]
        nest R: .. = B[..]             nest P_2: B_2[..] = ..
                                       nest R: .. = B_2[..]
    """
    node, around = find_block(func, block)
    reader, _ = find_block(func, consumer)
    nest = own_nest(node, around, "clone_producer")
    old = find_alloc(func, node.body.buffer.name)
    check_clone(func, node, reader)
    used = used_names(func)
    new = replace(old, name=claimed(old.name, used))
    copy = map_blocks(renamed(nest, used), lambda b: with_buffer(b, old, new, lambda i: i))
    top = top_of(func, reader)
    changed = map_blocks(top, lambda b: with_buffer(b, old, new, lambda i: i) if b is reader else b)
    result = with_replaced(func, top, seq(copy, changed))
    return replace(result, allocs=(*func.allocs, new))


def check_clone(func: Func, node: Block, reader: Block) -> None:
    """The consumer reads what the block alone writes, and the block can run again just before it."""
    place = f"clone_producer of {node.name!r} for {reader.name!r}"
    buffer = node.body.buffer
    if reader is node or buffer not in reads(reader):
        raise ScheduleError(f"the consumer does not read {buffer.name!r}", where=place)
    check_only_writer(func, node, place)
    check_inputs_final(func, node, reader, place)


def permute(func: Func, buffer: str, order: tuple[int, ...]) -> Func:
    """Stores an internal buffer with its dimensions in another order.

    Equation: B'[i_order[0], i_order[1], ...] = B[i_0, i_1, ...].

    Legality: the buffer is internal; `order` is a permutation of its dimensions.

        alloc B: float32[32, 14]       alloc B: float32[14, 32]
        B[o, x] = ..             ->    B[x, o] = ..

    Known as transform_layout in TVM, reorder_storage in Halide.
    """
    old = find_alloc(func, buffer)
    check_permutation(old, order)
    new = replace(old, shape=tuple(old.shape[k] for k in order))
    return with_new_buffer(func, old, new, lambda i: tuple(i[k] for k in order))


def check_permutation(buffer: Buffer, order: Sequence[int]) -> None:
    """The order names every dimension once."""
    if sorted(order) != list(range(buffer.rank)):
        raise ScheduleError(
            f"{list(order)} is no permutation of {buffer.rank} dimensions", where=f"permute of {buffer.name!r}"
        )


def pack(func: Func, block: str, buffer: str, dim: int, factor: int, name: str | None = None) -> Func:
    """Lets a block read an operand from a packed copy: dimension `dim` is cut into tiles of `factor`, tiles
    outermost, the inside of a tile innermost, the last tile padded with zeros. The copy is made by a new nest at the
    start of the function.

    Equation: P[x // factor, (other dims), x % factor] = B[.., x, ..], so that the lanes of a vector along x are
    contiguous.

    Legality: the buffer is a parameter that no block writes.

        block C: .. B[k, j] ..   ->   nest P: P[jo, k, ji] = select(jo*16 + ji < J, B[k, jo*16 + ji], 0)
                                      block C: .. P[j // 16, k, j % 16] ..

    Known as cache_read with transform_layout in TVM.
    """
    node, _ = find_block(func, block)
    old = check_packable(func, node, buffer, dim, factor)
    used = used_names(func)
    if name is not None:
        check_new_names((name,), used, f"pack of {buffer!r} for block {block!r}")
    rest = tuple(n for k, n in enumerate(old.shape) if k != dim)
    shape = (ceildiv(old.shape[dim], factor), *rest, as_expr(factor))
    packed = Buffer(name or fresh(f"{old.name}_packed", used), shape, old.dtype)
    used.add(packed.name)
    nest = _pack_nest(old, packed, dim, factor, used)

    def index(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (i[dim] // factor, *(n for k, n in enumerate(i) if k != dim), i[dim] % factor)

    changed = map_blocks(func.body, lambda b: with_buffer(b, old, packed, index) if b is node else b)
    return replace(func, allocs=(*func.allocs, packed), body=seq(nest, changed))


def _pack_nest(old: Buffer, packed: Buffer, dim: int, factor: int, used: set[str]) -> Stmt:
    label = claimed(f"{packed.name}_pack", used)
    loops: list[tuple[Var, Expr]] = []
    iters: list[BlockIter] = []
    for k, extent in enumerate(packed.shape):
        loop, var = Var(claimed(f"{label}_l{k}", used)), Var(claimed(f"{label}_v{k}", used))
        loops.append((loop, extent))
        iters.append(BlockIter(var, extent, IterKind.SPATIAL, loop))
    v: list[Expr] = [i.var for i in iters]
    x = v[0] * factor + v[-1]
    value: Expr = Load(old, (*v[1 : dim + 1], x, *v[dim + 1 : -1]))
    size = old.shape[dim]
    if not prove(size.equals(packed.shape[0] * factor)):
        value = select(x < size, value, const(0, old.dtype))
    return _serial_nest(loops, Block(label, tuple(iters), Store(packed, tuple(v), value)))


def check_packable(func: Func, node: Block, buffer: str, dim: int, factor: int) -> Buffer:
    """The operand is a parameter that is only read, and the dimension exists."""
    place = f"pack of {buffer!r} for block {node.name!r}"
    found = next((p for p in func.params if p.name == buffer), None)
    if found is None or not any(x.buffer == found for x in loads(node.body.value)):
        raise ScheduleError("the block does not read a parameter of that name", where=place)
    if any(b.body.buffer == found for b in blocks(func.body)):
        raise ScheduleError("it is written in the function", where=place)
    if not 0 <= dim < found.rank or factor < 1:
        raise ScheduleError(f"dimension {dim} with factor {factor} does not fit {found.rank} dimensions", where=place)
    return found
