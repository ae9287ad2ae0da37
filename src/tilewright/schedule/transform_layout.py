"""The primitive transform_layout, which stores an internal buffer in another layout."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import TRUE, Buffer, Const, Expr, Load, MemoryScope, Var, const
from tilewright.expr.operations import select
from tilewright.expr.traversal import replace_loads
from tilewright.layout.layout import Layout
from tilewright.layout.primitive import is_provably_equal
from tilewright.layout.primitives import Fold, Reorder, Unfold
from tilewright.loops.access import accesses
from tilewright.loops.ir import (
    Block,
    BlockIter,
    For,
    Func,
    If,
    IterKind,
    LoopKind,
    Seq,
    Stmt,
    Store,
    blocks,
    map_children,
    walk,
)
from tilewright.loops.redirect_accesses import redirect_accesses
from tilewright.schedule.legality import accessing_blocks, check_in_bounds, check_no_races
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    claim_name,
    find_alloc,
    nest_loops,
    new_loop_vars,
    spatial_vars,
    used_names,
    with_stmt_replaced,
)
from tilewright.verify.prefetch_safety import drop_stale_prefetches


def transform_layout(func: Func, buffer: str, layout: Layout, names: tuple[str, ...] | None = None) -> Func:
    """Stores an internal buffer in another layout; every access goes to where the layout puts its element.

    A nest that writes the whole buffer and was not scheduled yet is rebuilt over the physical dimensions, so that it
    walks the memory in order: loops L' over the physical shape, the logical indices S^-1(L'). What the layout pads is
    written with 0, or by a reduction not at all; what it repeats is computed for every copy. A nest that was scheduled
    keeps its loops.

    Args:
        names: of the rebuilt nest's loops over the physical dimensions, outermost first; without it they are called
            after the loops that were there.

    Equation: B'[S(i_0, ..)] = B[i_0, ..], where S is the layout's map from logical to physical indices.

    Legality: the buffer is internal, of the layout's logical shape, and a literal one where it is in registers or on
    the stack; the layout neither attaches other tensors nor drops all but one of several elements (`fold`); elements
    that it repeats are all written by one nest that is rebuilt; accesses are proved to lie inside of the new shape.

        alloc B: float32[32, 14]         alloc B: float32[14, 2, 16]      # split(0, (2, 16)), reorder((2, 0, 1))
        for o, x:                   ->   for x, o_o, o_i:
            block P: B[o, x] = f(o, x)       block P: B[x, o_o, o_i] = f(o_o*16 + o_i, x)
        .. B[o, x] ..                    .. B[x, o // 16, o % 16] ..

    Known as transform_layout in TVM, reorder_storage and fold_storage in Halide; ALT, Section 4.1 and 6.
    """
    old = find_alloc(func, buffer)
    place = f"transform_layout of {buffer!r}"
    check_layout(old, layout, place)
    new = replace(old, shape=layout.physical_shape)
    writer = sole_writer(func, old)
    if writer is None:
        check_no_duplicates(func, old, layout, place)
        new_loop_vars((), names, set(), place)
    else:
        nest = writer[1][0] if writer[1] else writer[0]
        func = with_stmt_replaced(func, nest, _rebuild_nest(func, *writer, new, layout, names, place))
    rebuilt = None if writer is None else writer[0].name
    body = _rewrite_accesses(func.body, (), LayoutChange(old, new, layout, rebuilt))
    allocs = tuple(new if a == old else a for a in func.allocs)
    result = drop_stale_prefetches(replace(func, allocs=allocs, body=body))
    check_in_bounds(result, accessing_blocks(result, new), place)
    if not all(isinstance(p, Reorder) for p in layout.primitives):
        check_no_races(result, None, place)
    return result


def check_layout(buffer: Buffer, layout: Layout, place: str) -> None:
    """Checks that the layout concerns this buffer alone, and every logical element has its own place."""
    if len(layout.shape) != buffer.rank or not all(map(is_provably_equal, layout.shape, buffer.shape)):
        shapes = (", ".join(map(str, s)) for s in (layout.shape, buffer.shape))
        raise ScheduleError("the layout is of shape [{}], expected [{}]".format(*shapes), where=place)
    if layout.attached:
        raise ScheduleError(f"the layout attaches {layout.attached[0].other!r}, another tensor", where=place)
    if any(isinstance(p, Fold) for p in layout.primitives):
        raise ScheduleError("fold keeps one of several elements, which may differ", where=place)
    if buffer.scope is MemoryScope.REGISTER and not all(isinstance(n, Const) for n in layout.physical_shape):
        shown = ", ".join(map(str, layout.physical_shape))
        raise ScheduleError(f"its shape ({shown}) is not literal, as scope {buffer.scope} needs it", where=place)


def check_no_duplicates(func: Func, buffer: Buffer, layout: Layout, place: str) -> None:
    """Checks that where no nest is rebuilt, every element has a single place."""
    if any(isinstance(p, Unfold) for p in layout.primitives):
        names = ", ".join(repr(b.name) for b in blocks(func.body) if b.body.buffer == buffer)
        raise ScheduleError(
            f"unfold repeats elements, but {names} can't be rebuilt to write them all",
            where=place,
            hint="transform the layout before the loops of the block that writes the buffer are changed",
        )


def sole_writer(func: Func, buffer: Buffer) -> tuple[Block, tuple[For, ...]] | None:
    """The only writer of a buffer, if it writes all of it at its plain iteration variables in an unscheduled nest of
    its own, with one serial loop per variable; and its loops. None otherwise."""
    writers = [(s, enclosing) for s, enclosing in walk(func.body) if isinstance(s, Block) and s.body.buffer == buffer]
    if len(writers) != 1:
        return None
    node, enclosing = writers[0]
    extents = tuple(i.extent for i in node.iters if i.kind is IterKind.SPATIAL)
    writes_all = (
        node.body.indices == spatial_vars(node)
        and len(extents) == buffer.rank
        and all(map(is_provably_equal, extents, buffer.shape))
    )
    is_alone = len(blocks(enclosing[0] if enclosing else node)) == 1
    reads_others = any(a.buffer == buffer and a.indices != node.body.indices for a in accesses(node))
    return writers[0] if writes_all and is_alone and not reads_others and is_as_lowered(node, enclosing) else None


def is_as_lowered(node: Block, enclosing: Sequence[For]) -> bool:
    """Whether every iteration variable of a block is bound to a serial loop of its own, and there are no other
    loops."""
    extents: dict[Expr, Expr] = {x.var: x.extent for x in enclosing}
    bindings = [i.binding for i in node.iters]
    return (
        node.predicate is TRUE
        and all(x.kind is LoopKind.SERIAL for x in enclosing)
        and len(set(bindings)) == len(bindings) == len(enclosing)
        and all(b in extents for b in bindings)
        and all(is_provably_equal(extents[i.binding], i.extent) for i in node.iters)
    )


def _rebuild_nest(
    func: Func,
    node: Block,
    enclosing: Sequence[For],
    new: Buffer,
    layout: Layout,
    loop_names: Sequence[str] | None,
    place: str,
) -> Stmt:
    """The nest of a block over the physical dimensions of its results, then over its reductions."""
    used = used_names(func) - {x.var.name for x in enclosing} - {i.var.name for i in node.iters}
    spatial = [i for i in node.iters if i.kind is IterKind.SPATIAL]
    reductions = [i for i in node.iters if i.kind is IterKind.REDUCE]
    reduction_loops = {x.var: x for x in enclosing if any(i.binding is x.var for i in reductions)}
    used |= {x.name for x in reduction_loops} | {i.var.name for i in reductions}
    names = [i.binding.name for i in spatial if isinstance(i.binding, Var)]
    loops, iters = physical_loops(layout, names, [i.var.name for i in spatial], used, loop_names, place)
    element = tuple(i.var for i in iters)
    logical, exists = layout.backward(element, domain_bounds(iters))
    mapping: dict[Var, Expr] = {i.var: e for i, e in zip(spatial, logical, strict=True)}
    old_element = substitute(Load(node.body.buffer, node.body.indices), mapping)

    def rewrite(e: Expr) -> Expr:
        return replace_loads(substitute(e, mapping), lambda x: Load(new, element) if x is old_element else x)

    value, predicate = rewrite(node.body.value), TRUE
    if exists is not TRUE and (reductions or node.init is not None):
        predicate = substitute(exists, {i.var: i.binding for i in iters})
    elif exists is not TRUE:
        value = select(exists, value, const(0, new.dtype))
    init = None if node.init is None else Store(new, element, rewrite(node.init.value))
    body: Stmt = Block(node.name, (*iters, *reductions), Store(new, element, value), init, predicate)
    return nest_loops((*loops, *(x for x in enclosing if x.var in reduction_loops)), body)


def physical_loops(
    layout: Layout,
    names: Sequence[str],
    variables: Sequence[str],
    used: set[str],
    chosen: Sequence[str] | None = None,
    place: str = "",
) -> tuple[list[For], list[BlockIter]]:
    """A serial loop, without a body yet, and a spatial variable per physical dimension; loops are named after the
    logical ones unless names are given."""
    loops: list[For] = []
    iters: list[BlockIter] = []
    nothing = Seq(())
    counters = new_loop_vars(layout.rename(names), chosen, used, place)
    for loop, var, extent in zip(counters, layout.rename(variables), layout.physical_shape, strict=True):
        loops.append(For(loop, extent, LoopKind.SERIAL, nothing))
        iters.append(BlockIter(Var(claim_name(var, used)), extent, IterKind.SPATIAL, loops[-1].var))
    return loops, iters


def domain_bounds(iters: Sequence[BlockIter]) -> Bounds:
    """The bounds of iteration variables, from their extents."""
    bounds = Bounds()
    for i in iters:
        bounds = bounds.with_loop(i.var, i.extent)
    return bounds


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """The replacement of a buffer under a layout; `rebuilt` is the block that uses the new buffer already.

    The buffers may be equal: a square matrix has the shape of its transpose.
    """

    old: Buffer
    new: Buffer
    layout: Layout
    rebuilt: str | None = None


def _rewrite_accesses(s: Stmt, enclosing: tuple[For, ...], change: LayoutChange) -> Stmt:
    """`s` with all accesses redirected to the new buffer."""
    match s:
        case For():
            inner = (*enclosing, s)
            hints = tuple(_rewrite_prefetch(p, inner, change) for p in s.prefetches)
            return replace(s, body=_rewrite_accesses(s.body, inner, change), prefetches=hints)
        case Seq() | If():
            return map_children(s, lambda c: _rewrite_accesses(c, enclosing, change))
        case Block():
            untouched = s.name == change.rebuilt or all(a.buffer != change.old for a in accesses(s))
            return s if untouched else rewrite_block_accesses(s, enclosing, change)


def _rewrite_prefetch(hint: Load, enclosing: Sequence[For], change: LayoutChange) -> Load:
    if hint.buffer != change.old:
        return hint
    return Load(change.new, change.layout.forward(hint.indices, bounds_of(enclosing)))


def rewrite_block_accesses(node: Block, enclosing: Sequence[For], change: LayoutChange) -> Block:
    """A block with its accesses redirected to the new buffer; windows of its reductions stay within one tile."""
    bounds = bounds_of(enclosing)
    for i in node.iters:
        bounds = bounds.with_loop(i.var, i.extent)
    window = frozenset(i.var for i in node.iters if i.kind is IterKind.REDUCE)
    return redirect_accesses(
        node, change.old, change.new, lambda indices: change.layout.forward(indices, bounds, window)
    )
