"""Primitives that say where values are kept and where they are computed: cache_write, compute_at, pack, ...

A *producer* is a block that writes an internal buffer (one of `Func.allocs`); its *consumers* are the blocks that read it.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.bounds import Bounds, prove
from tilewright.expr.buffer import Buffer, Scope
from tilewright.expr.nodes import Const, Expr, Load, Var, as_expr, both, ceildiv, conjuncts, const, free_vars, loads, select
from tilewright.expr.simplify import simplify, substitute
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Seq, Stmt, Store, blocks, seq, walk
from tilewright.schedule.tree import (
    bounds_of,
    find_block,
    find_loop,
    fresh,
    map_blocks,
    renamed,
    used_names,
    with_buffer,
    with_replaced,
)


def set_scope(func: Func, buffer: str, scope: Scope) -> Func:
    """Moves an internal buffer to another memory scope.

    Legality: the buffer is internal; register and stack need a constant shape.
    """
    old = find_alloc(func, buffer)
    check_scope(old, scope)
    return _with_new_buffer(func, old, replace(old, scope=scope))


def find_alloc(func: Func, name: str) -> Buffer:
    """The internal buffer of that name.

    Raises:
        ScheduleError: there is none.
    """
    for b in func.allocs:
        if b.name == name:
            return b
    known = ", ".join(b.name for b in func.allocs) or "none"
    raise ScheduleError(f"there is no internal buffer {name!r}; there are: {known}", where=func.name)


def check_scope(buffer: Buffer, scope: Scope) -> None:
    """Only memory may hold buffers whose size is not a literal."""
    if scope is not Scope.MEMORY and not all(isinstance(n, Const) for n in buffer.shape):
        raise ScheduleError(
            f"its shape ({', '.join(map(str, buffer.shape))}) is not literal", where=f"set_scope of {buffer.name!r} to {scope}"
        )


def _with_new_buffer(func: Func, old: Buffer, new: Buffer) -> Func:
    body = map_blocks(func.body, lambda b: with_buffer(b, old, new, lambda i: i))
    return replace(func, allocs=tuple(new if a == old else a for a in func.allocs), body=body)


def cache_write(func: Func, block: str, name: str | None = None) -> Func:
    """Lets a block write an internal buffer, which a new nest behind it copies to the old place.

    The new block is called `<block>_write`; its loops are serial over the buffer's dimensions. `compute_at` and `set_scope` then
    turn the internal buffer into accumulators.

    Legality: the block is the only writer of its buffer and nothing else reads it before the copy.

        for i: block C: C[i] += ..  ->  for i: block C: C_local[i] += ..
                                        for j: block C_write: C[j] = C_local[j]
    """
    node, around = find_block(func, block)
    old = node.body.buffer
    check_only_writer(func, node)
    used = used_names(func)
    local = replace(old, name=name or fresh(f"{old.name}_local", used), scope=Scope.MEMORY)
    used.add(local.name)
    nest: Stmt = around[0] if around else node
    changed = map_blocks(nest, lambda b: with_buffer(b, old, local, lambda i: i) if b is node else b)
    copy = _copy_nest(fresh(f"{block}_write", used), old, local, used)
    body = with_replaced(func, nest, seq(changed, copy)).body
    return replace(func, allocs=(*func.allocs, local), body=body)


def check_only_writer(func: Func, node: Block) -> None:
    """No other block writes or reads the block's buffer before it."""
    for b in blocks(func.body):
        if b is not node and b.body.buffer == node.body.buffer:
            raise ScheduleError(f"block {b.name!r} writes {node.body.buffer.name!r} too", where=f"cache_write of {node.name!r}")


def _copy_nest(name: str, target: Buffer, source: Buffer, used: set[str]) -> Stmt:
    used.add(name)
    loops: list[Var] = []
    iters: list[BlockIter] = []
    for k, extent in enumerate(target.shape):
        loop, var = (fresh(f"{letter}{k}", used) for letter in (f"{name}_l", f"{name}_v"))
        used.update((loop, var))
        loops.append(Var(loop))
        iters.append(BlockIter(Var(var), extent, IterKind.SPATIAL, Var(loop)))
    index = tuple(i.var for i in iters)
    body: Stmt = Block(name, tuple(iters), Store(target, index, Load(source, index)))
    for loop, extent in reversed(list(zip(loops, target.shape, strict=True))):
        body = For(loop, extent, LoopKind.SERIAL, body)
    return body


def clone_producer(func: Func, block: str, consumer: str) -> Func:
    """Gives one consumer a producer of its own: the nest and its buffer are copied, and the consumer reads the copy.

    Legality: the producer's top-level nest holds only that block and writes an internal buffer that the consumer reads.

        nest P: B[..] = ..             nest P: B[..] = ..
        nest Q: .. = B[..]       ->    nest Q: .. = B[..]
        nest R: .. = B[..]             nest P_2: B_2[..] = ..
                                       nest R: .. = B_2[..]
    """
    node, around = find_block(func, block)
    reader, _ = find_block(func, consumer)
    nest = _own_nest(func, node, around, "clone_producer")
    old = find_alloc(func, node.body.buffer.name)
    used = used_names(func)
    new = replace(old, name=fresh(old.name, used))
    used.add(new.name)
    copy = map_blocks(renamed(nest, used), lambda b: with_buffer(b, old, new, lambda i: i))
    top = _top_statement(func, reader)
    changed = map_blocks(top, lambda b: with_buffer(b, old, new, lambda i: i) if b is reader else b)
    result = with_replaced(func, top, seq(copy, changed))
    return replace(result, allocs=(*func.allocs, new))


def _top_statement(func: Func, block: Block) -> Stmt:
    tops = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    return next(t for t in tops if any(b is block for b in blocks(t)))


def _own_nest(func: Func, node: Block, around: Sequence[For], primitive: str) -> Stmt:
    nest: Stmt = around[0] if around else node
    if len(blocks(nest)) != 1:
        raise ScheduleError("other blocks share its loops", where=f"{primitive} of block {node.name!r}")
    return nest


def decompose_reduction(func: Func, block: str, loop: str) -> Func:
    """Moves the initialisation of a reduction block into a nest of its own before `loop`.

    Legality: the block has an `init`; every loop that a reduction variable depends on is `loop` or lies inside it.

        for i:                         for i:
            for k:                         block C_init: C[i] = 0
                block C(i, reduce k) ->    for k:
                    init C[i] = 0              block C(i, reduce k): C[i] = C[i] + ..
                    C[i] = C[i] + ..
    """
    node, around = find_block(func, block)
    outer, _ = find_loop(func, loop)
    inside = check_decomposable(node, around, outer)
    used = used_names(func)
    spatial = [i for i in node.iters if i.kind is IterKind.SPATIAL]
    reduced = {v for i in node.iters if i.kind is IterKind.REDUCE for v in free_vars(i.binding)}
    kept = [x for x in inside if x.var not in reduced]
    condition = both(*(c for c in conjuncts(node.predicate) if not free_vars(c) & reduced))
    init = node.init
    if init is None:
        raise ScheduleError("it has no init", where=f"decompose_reduction of {block!r}")
    nest: Stmt = Block(fresh(f"{block}_init", used), tuple(spatial), init, None, condition)
    for x in reversed(kept):
        nest = replace(x, body=nest)
    fresh_nest = renamed(nest, used)
    bare = map_blocks(outer, lambda b: replace(b, init=None) if b is node else b)
    return with_replaced(func, outer, seq(fresh_nest, bare))


def check_decomposable(node: Block, around: Sequence[For], outer: For) -> list[For]:
    """The loops from `outer` inwards; all reduction loops are among them."""
    place = f"decompose_reduction of {node.name!r}"
    if node.init is None:
        raise ScheduleError("it has no init", where=place)
    if not any(x is outer for x in around):
        raise ScheduleError(f"loop {outer.var.name!r} is not around it", where=place)
    position = next(k for k, x in enumerate(around) if x is outer)
    outside = {x.var for x in around[:position]}
    for i in node.iters:
        bad = free_vars(i.binding) & outside
        if i.kind is IterKind.REDUCE and bad:
            raise ScheduleError(f"it reduces over {min(v.name for v in bad)!r}, outside {outer.var.name!r}", where=place)
    return list(around[position:])


def compute_at(func: Func, block: str, loop: str) -> Func:
    """Moves a producer into a loop of its consumers, computing there just what one iteration of the loop needs.

    The producer's spatial loops shrink to the region that the consumers inside `loop` read; its reduction loops stay whole. The buffer
    shrinks to that region. Where the region may leave the producer's domain (a tail) the producer is guarded, unless all its reads are
    proved in bounds for the whole tile: then it computes a few values more that nobody reads.

    Legality: the producer's nest holds only that block; it writes an internal buffer at plain iteration variables; every reader of the
    buffer lies inside `loop`; the region's sizes do not depend on loops inside `loop`.

        for i: block P: B[i] = f(i)         for jo:
        for jo:                                 for x in serial(4): block P(v = jo*4 + x): B[v - jo*4] = f(v)
            for ji in serial(4):       ->       for ji in serial(4): block Q(w = jo*4 + ji): .. B[w - jo*4] ..
                block Q(w = jo*4+ji): .. B[w] ..
    """
    node, around = find_block(func, block)
    target, outer = find_loop(func, loop)
    buffer = check_producer(func, node, target)
    nest = _own_nest(func, node, around, "compute_at")
    region = required_region(node, buffer, target, outer)
    known = bounds_of((*outer, target))
    used = used_names(func)
    compact = replace(buffer, shape=tuple(n for _, n in region if not _is_one(n)))
    starts = [low for low, _ in region]

    def relative(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i - low for i, low, (_, n) in zip(indices, starts, region, strict=True) if not _is_one(n))

    producer = _regional_nest(node, region, known, used)
    moved = map_blocks(producer, lambda b: with_buffer(b, buffer, compact, relative))
    inside = map_blocks(target.body, lambda b: with_buffer(b, buffer, compact, relative))
    without = with_replaced(func, nest, None)
    result = with_replaced(without, target, replace(target, body=seq(moved, inside)))
    return replace(result, allocs=tuple(compact if a == buffer else a for a in func.allocs))


def _is_one(n: Expr) -> bool:
    return isinstance(n, Const) and n.value == 1


def check_producer(func: Func, node: Block, target: For) -> Buffer:
    """The producer writes an internal buffer at its iteration variables, and all readers are inside the target loop."""
    place = f"compute_at of {node.name!r} in loop {target.var.name!r}"
    buffer = node.body.buffer
    if buffer not in func.allocs:
        raise ScheduleError(f"it writes {buffer.name!r}, which is not internal", where=place)
    spatial = tuple(i.var for i in node.iters if i.kind is IterKind.SPATIAL)
    if node.body.indices != spatial:
        raise ScheduleError("it does not write at its plain iteration variables", where=place)
    inside = set(map(id, blocks(target)))
    for b in blocks(func.body):
        if b is node or not any(x.buffer == buffer for x in loads(b.body.value)):
            continue
        if id(b) not in inside:
            raise ScheduleError(f"block {b.name!r} reads {buffer.name!r} outside the loop", where=place)
    if id(node) in inside:
        raise ScheduleError("it is inside the loop already", where=place)
    return buffer


def required_region(node: Block, buffer: Buffer, target: For, outer: Sequence[For]) -> list[tuple[Expr, Expr]]:
    """(start, size) per dimension of what one iteration of `target` reads of `buffer`."""
    place = f"compute_at of {node.name!r} in loop {target.var.name!r}"
    found: list[tuple[Expr, Expr]] | None = None
    for b, loops in walk(target.body):
        if not isinstance(b, Block):
            continue
        bindings = {i.var: i.binding for i in b.iters}
        inner = [x for x in loops]
        for access in loads(b.body.value):
            if access.buffer != buffer:
                continue
            region = [_interval(substitute(i, bindings), inner, (*outer, target), place) for i in access.indices]
            if found is not None and region != found:
                raise ScheduleError(f"accesses need different regions of {buffer.name!r}", where=place)
            found = region
    if found is None:
        raise ScheduleError(f"nothing inside the loop reads {buffer.name!r}", where=place)
    return found


def _interval(index: Expr, inner: Sequence[For], outer: Sequence[For], place: str) -> tuple[Expr, Expr]:
    """Start and size of the values that `index` takes while the inner loops run."""
    known = bounds_of((*outer, *inner))
    low, high = index, index
    for loop in reversed(inner):
        step = substitute(index, {loop.var: loop.var + 1}) - index
        end = loop.extent - 1
        up, down = prove(step >= 0, known), prove(step <= 0, known)
        if not up and not down:
            raise ScheduleError(f"index {index} is not monotonic in loop {loop.var.name!r}", where=place)
        low = substitute(low, {loop.var: const(0) if up else end})
        high = substitute(high, {loop.var: end if up else const(0)})
    size = simplify(high - low + 1, bounds_of(outer))
    return low, size


def _regional_nest(node: Block, region: Sequence[tuple[Expr, Expr]], known: Bounds, used: set[str]) -> Stmt:
    """The producer over a region: loops over the region's sizes, then over its reductions."""
    loops: list[For] = []
    iters: list[BlockIter] = []
    spatial = iter(region)
    guards: list[Expr] = []
    place = Block(node.name, (), node.body)
    for i in node.iters:
        if i.kind is IterKind.SPATIAL:
            low, size = next(spatial)
            binding = low
        else:
            low, size, binding = const(0), i.extent, const(0)
        if not _is_one(size):
            name = fresh(f"{i.var.name}_t", used)
            used.add(name)
            loop = For(Var(name), size, LoopKind.SERIAL, place)
            loops.append(loop)
            known = known.with_loop(loop.var, size)
            binding = low + loop.var
        if i.kind is IterKind.SPATIAL and not prove(binding < i.extent, known):
            guards.append(binding < i.extent)
        iters.append(BlockIter(i.var, i.extent, i.kind, binding))
    block = replace(node, iters=tuple(iters), predicate=both(*guards))
    if guards:
        block = _relaxed(block, guards, known)
    body: Stmt = block
    ordered = [x for x in loops if not _reduces(block, x)] + [x for x in loops if _reduces(block, x)]
    for loop in reversed(ordered):
        body = replace(loop, body=body)
    return body


def _reduces(block: Block, loop: For) -> bool:
    return any(i.kind is IterKind.REDUCE and loop.var in free_vars(i.binding) for i in block.iters)


def _relaxed(block: Block, guards: Sequence[Expr], known: Bounds) -> Block:
    """The block without guards where every read is in bounds even beyond the producer's domain."""
    bindings = {i.var: i.binding for i in block.iters}
    for access in loads(block.body.value):
        if access.buffer == block.body.buffer:
            continue
        for index, extent in zip(access.indices, access.buffer.shape, strict=True):
            value = simplify(substitute(index, bindings), known)
            if not (prove(value >= 0, known) and prove(value < extent, known)):
                return block
    iters = tuple(
        replace(i, extent=_reach(i.binding, known)) if any(g is (i.binding < i.extent) for g in guards) else i
        for i in block.iters
    )
    return replace(block, iters=iters, predicate=both())


def _reach(binding: Expr, known: Bounds) -> Expr:
    """One more than the largest value of an affine binding."""
    value = binding
    for var, (_, high) in reversed(list(known.ranges.items())):
        value = substitute(value, {var: high})
    return value + 1


def permute(func: Func, buffer: str, order: tuple[int, ...]) -> Func:
    """Stores an internal buffer with its dimensions in another order.

    Equation: B'[i_order[0], i_order[1], ...] = B[i_0, i_1, ...].

    Legality: the buffer is internal; `order` is a permutation of its dimensions.

        alloc B: float32[32, 14]       alloc B: float32[14, 32]
        B[o, x] = ..             ->    B[x, o] = ..
    """
    old = find_alloc(func, buffer)
    check_permutation(old, order)
    new = replace(old, shape=tuple(old.shape[k] for k in order))
    body = map_blocks(func.body, lambda b: with_buffer(b, old, new, lambda i: tuple(i[k] for k in order)))
    return replace(func, allocs=tuple(new if a == old else a for a in func.allocs), body=body)


def check_permutation(buffer: Buffer, order: Sequence[int]) -> None:
    """The order names every dimension once."""
    if sorted(order) != list(range(buffer.rank)):
        raise ScheduleError(f"{list(order)} is no permutation of {buffer.rank} dimensions", where=f"permute of {buffer.name!r}")


def pack(func: Func, block: str, buffer: str, dim: int, factor: int, name: str | None = None) -> Func:
    """Lets a block read an operand from a packed copy: dimension `dim` is cut into tiles of `factor`, tiles outermost, the
    inside of a tile innermost, the last tile padded with zeros. The copy is made by a new nest at the start of the function.

    Equation: P[x // factor, (other dims), x % factor] = B[.., x, ..], so that the lanes of a vector along x are contiguous.

    Legality: the buffer is a parameter that no block writes.

        block C: .. B[k, j] ..   ->   nest P: P[jo, k, ji] = select(jo*16 + ji < J, B[k, jo*16 + ji], 0)
                                      block C: .. P[j // 16, k, j % 16] ..
    """
    node, _ = find_block(func, block)
    old = check_packable(func, node, buffer, dim, factor)
    used = used_names(func)
    size = old.shape[dim]
    rest = tuple(n for k, n in enumerate(old.shape) if k != dim)
    shape = (ceildiv(size, factor), *rest, as_expr(factor))
    packed = Buffer(name or fresh(f"{old.name}_packed", used), shape, old.dtype)
    used.add(packed.name)
    label = fresh(f"{packed.name}_pack", used)
    used.add(label)
    loops: list[tuple[Var, Expr]] = []
    iters: list[BlockIter] = []
    for k, extent in enumerate(shape):
        loop, var = Var(fresh(f"{label}_l{k}", used)), Var(fresh(f"{label}_v{k}", used))
        loops.append((loop, extent))
        iters.append(BlockIter(var, extent, IterKind.SPATIAL, loop))
    v = [i.var for i in iters]
    x = v[0] * factor + v[-1]
    source = v[1:-1]
    source.insert(dim, x)
    value = Load(old, tuple(source))
    if not prove(size.equals(shape[0] * factor)):
        value = select(x < size, value, const(0, old.dtype))
    nest: Stmt = Block(label, tuple(iters), Store(packed, tuple(v), value))
    for loop, extent in reversed(loops):
        nest = For(loop, extent, LoopKind.SERIAL, nest)

    def index(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (i[dim] // factor, *(n for k, n in enumerate(i) if k != dim), i[dim] % factor)

    changed = map_blocks(func.body, lambda b: with_buffer(b, old, packed, index) if b is node else b)
    return replace(func, allocs=(*func.allocs, packed), body=seq(nest, changed))


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
