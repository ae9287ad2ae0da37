"""Primitives that redirect a block to a copy of a buffer: cache_read, cache_write, pack."""

from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import TRUE, Buffer, Expr, Load, MemoryScope, const
from tilewright.expr.operations import select
from tilewright.layout.layout import Layout
from tilewright.loops.access import read_buffers
from tilewright.loops.ir import Block, Func, IterKind, Stmt, Store, blocks, seq
from tilewright.loops.redirect_accesses import redirect_accesses
from tilewright.schedule.legality import accessing_blocks, check_in_bounds, check_only_writer, check_untouched
from tilewright.schedule.rewrite_tree import (
    check_new_names,
    claim_name,
    find_block,
    fresh_name,
    map_blocks,
    nest_loops,
    spatial_vars,
    top_statement_of,
    used_names,
    with_stmt_replaced,
)
from tilewright.schedule.staging import set_scope
from tilewright.schedule.transform_layout import (
    LayoutChange,
    check_layout,
    domain_bounds,
    physical_loops,
    rewrite_block_accesses,
)
from tilewright.schedule.transform_layout import transform_layout as relayout


def cache_read(
    func: Func,
    block: str,
    buffer: str,
    name: str | None = None,
    scope: MemoryScope = MemoryScope.MEMORY,
    layout: Layout | None = None,
) -> Func:
    """Redirects a block to a copy of an operand, which a new nest fills before the block's nest.

    The new block is called `<name>_read`; its loops are serial over the copy's dimensions. `compute_at` then moves it
    into the loops of the block, so that a tile is copied where it is used.

    Args:
        buffer: a parameter or an internal buffer that the block reads.
        name: of the copy; `<buffer>_copy` where none is given.
        scope: where the copy is kept.
        layout: how the copy is stored; what the layout pads is 0. Row by row where none is given.

    Equation: B_copy[S(i_0, ..)] = B[i_0, ..], where S is the layout's map from logical to physical indices.

    Legality: no block of the block's nest writes the operand; the scope and the layout suit the copy (see `set_scope`
    and `transform_layout`).

                                             for x, y: block B_copy_read: B_copy[x, y] = B[x, y]
        for i, j: block C: .. B[k, j] ..  -> for i, j: block C: .. B_copy[k, j] ..

    Known as cache_read in TVM, in in Halide, stage_mem in Exo.
    """
    place = f"cache_read of {buffer!r} for block {block!r}"
    old = check_readable(func, block, buffer, place)
    copied = choose_name(func, name, f"{buffer}_copy", place)
    return _insert_copy(
        func, block, old, OperandCopy(copied, f"{copied}_read", layout or Layout.of(old.shape), scope, place)
    )


def pack(func: Func, block: str, buffer: str, dim: int, factor: int, name: str | None = None) -> Func:
    """Redirects a block to a packed copy of an operand: dimension `dim` is cut into tiles of `factor`, tiles outermost,
    the inside of a tile innermost, the last tile padded with zeros.

    This is `cache_read` with the layout pad, split, reorder.

    Equation: P[x // factor, (other dims), x % factor] = B[.., x, ..], so that the lanes of a vector along x are
    contiguous.

    Legality: that of `cache_read`; the dimension exists, `factor >= 1`.

                                      nest P: P[jo, k, ji] = select(jo*16 + ji < J, B[k, jo*16 + ji], 0)
        block C: .. B[k, j] ..   ->   block C: .. P[j // 16, k, j % 16] ..

    Known as cache_read with transform_layout in TVM.
    """
    place = f"pack of {buffer!r} for block {block!r}"
    old = check_readable(func, block, buffer, place)
    layout = packed_layout(old, dim, factor, place)
    packed = choose_name(func, name, f"{buffer}_packed", place)
    return _insert_copy(func, block, old, OperandCopy(packed, f"{packed}_pack", layout, MemoryScope.MEMORY, place))


def packed_layout(buffer: Buffer, dim: int, factor: int, place: str) -> Layout:
    """The layout of packed operands."""
    if not 0 <= dim < buffer.rank or factor < 1:
        raise ScheduleError(f"dimension {dim} with factor {factor} does not fit {buffer.rank} dimensions", where=place)
    split_layout = Layout.of(buffer.shape).pad_to(dim, factor).split(dim, (None, factor))
    other_dims = [k for k in range(buffer.rank + 1) if k not in (dim, dim + 1)]
    return split_layout.reorder((dim, *other_dims, dim + 1))


@dataclass(frozen=True, slots=True)
class OperandCopy:
    """A copy of an operand to be inserted.

    Attributes:
        name: of the buffer.
        block_name: of the block that fills it; prefix of its loops and variables.
        layout: of the buffer.
        scope: of the buffer.
        place: location in error messages.
    """

    name: str
    block_name: str
    layout: Layout
    scope: MemoryScope
    place: str


def choose_name(func: Func, name: str | None, default: str, place: str) -> str:
    """The given name, which must be unused, or a fresh one after the default."""
    used = used_names(func)
    if name is None:
        return fresh_name(default, used)
    check_new_names((name,), used, place)
    return name


def _insert_copy(func: Func, block: str, old: Buffer, spec: OperandCopy) -> Func:
    """The function whose block reads a copy, which is filled before the block's nest."""
    node, enclosing = find_block(func, block)
    check_layout(old, spec.layout, spec.place)
    copy = Buffer(spec.name, spec.layout.physical_shape, old.dtype)
    used = {*used_names(func), copy.name}
    nest = _copy_nest(claim_name(spec.block_name, used), old, copy, spec.layout, used)
    change = LayoutChange(old, copy, spec.layout)
    top = top_statement_of(func, node)
    redirected = map_blocks(top, lambda b: rewrite_block_accesses(b, enclosing, change) if b is node else b)
    result = replace(with_stmt_replaced(func, top, seq(nest, redirected)), allocs=(*func.allocs, copy))
    check_in_bounds(result, accessing_blocks(result, copy), spec.place)
    return result if spec.scope is MemoryScope.MEMORY else set_scope(result, copy.name, spec.scope)


def check_readable(func: Func, block: str, buffer: str, place: str) -> Buffer:
    """Checks that nothing in the block's nest writes the buffer of this name, which the block reads; returns the
    buffer."""
    node, _ = find_block(func, block)
    operand = next((b for b in read_buffers(node) if b.name == buffer), None)
    if operand is None or operand == node.body.buffer:
        names = ", ".join(repr(b.name) for b in read_buffers(node) if b != node.body.buffer) or "none"
        raise ScheduleError("the block has no operand of that name", where=place, hint=f"its operands: {names}")
    for b in blocks(top_statement_of(func, node)):
        if b.body.buffer == operand:
            raise ScheduleError(f"block {b.name!r} writes it in the same nest", where=place)
    return operand


def _copy_nest(name: str, source: Buffer, target: Buffer, layout: Layout, used: set[str]) -> Stmt:
    """A nest that copies a buffer into its layout, in the order of the copy's elements; padding is 0."""
    numbers = range(target.rank)
    plain = Layout.of(target.shape)
    loops, iters = physical_loops(plain, [f"{name}_l{k}" for k in numbers], [f"{name}_v{k}" for k in numbers], used)
    place = tuple(i.var for i in iters)
    logical, exists = layout.backward(place, domain_bounds(iters))
    value: Expr = Load(source, logical)
    if exists is not TRUE:
        value = select(exists, value, const(0, source.dtype))
    return nest_loops(loops, Block(name, tuple(iters), Store(target, place, value)))


def cache_write(
    func: Func,
    block: str,
    name: str | None = None,
    scope: MemoryScope = MemoryScope.MEMORY,
    layout: Layout | None = None,
) -> Func:
    """Redirects a block to write an internal buffer, which a new nest after it copies to the old buffer.

    The new block is called `<block>_write`; its loops are serial over the buffer's dimensions. `compute_at` and
    `set_scope` then turn the internal buffer into accumulators.

    Args:
        name: of the internal buffer; `<buffer>_local` where none is given.
        scope: where the internal buffer is kept.
        layout: how it is stored, see `transform_layout`; like the old buffer where none is given.

    Equation: C[i_0, ..] = C_local[S(i_0, ..)], where S is the layout's map from logical to physical indices.

    Legality: the block is the only writer of its buffer and writes all of it, at its plain iteration variables; no
    other block of its nest reads the buffer; the scope and the layout suit the internal buffer (see `set_scope` and
    `transform_layout`).

        for i: block C: C[i] += ..  ->  for i: block C: C_local[i] += ..
                                        for j: block C_write: C[j] = C_local[j]

    Known as cache_write in TVM, stage_mem in Exo.
    """
    node, enclosing = find_block(func, block)
    old = node.body.buffer
    nest: Stmt = enclosing[0] if enclosing else node
    check_cacheable(func, node, nest)
    local_name = choose_name(func, name, f"{old.name}_local", f"cache_write of {block!r}")
    local = replace(old, name=local_name, scope=MemoryScope.MEMORY)
    used = {*used_names(func), local_name}
    redirected = map_blocks(nest, lambda b: redirect_accesses(b, old, local, lambda i: i) if b is node else b)
    copy = _copy_nest(claim_name(f"{block}_write", used), local, old, Layout.of(old.shape), used)
    result = replace(with_stmt_replaced(func, nest, seq(redirected, copy)), allocs=(*func.allocs, local))
    result = result if layout is None else relayout(result, local.name, layout)
    return result if scope is MemoryScope.MEMORY else set_scope(result, local.name, scope)


def check_cacheable(func: Func, node: Block, nest: Stmt) -> None:
    """Checks that the block alone writes its buffer, all of it, and that no other block of its nest reads the
    buffer."""
    place = f"cache_write of {node.name!r}"
    buffer = node.body.buffer
    check_only_writer(func, node, place)
    check_untouched(buffer, nest, node, place)
    extents = tuple(i.extent for i in node.iters if i.kind is IterKind.SPATIAL)
    if node.body.indices != spatial_vars(node) or extents != buffer.shape:
        raise ScheduleError(f"it does not write all of {buffer.name!r} at its plain iteration variables", where=place)
