"""Tail strategies of `split`: what the last tile does where the factor does not divide the extent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Buffer, Expr, Var
from tilewright.expr.operations import ceildiv, conjunction, minimum
from tilewright.expr.traversal import free_vars, loads, post_order
from tilewright.loops.access import accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import THREADED, Block, BlockIter, For, Func, IterKind, LoopKind, blocks, seq
from tilewright.loops.ir import walk as walk_stmt
from tilewright.schedule.annotate import vectorize
from tilewright.schedule.legality import check_in_bounds, check_iterations_independent
from tilewright.schedule.loop_range import copy_loop_range
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    loops_inside,
    map_blocks,
    substitute_vars,
    with_buffer_replaced,
    with_stmt_replaced,
)
from tilewright.verify.privatization import loop_carried_reads


class Tail(StrEnum):
    """The treatment of iterations beyond the last whole tile.

    Attributes:
        GUARD: every block inside gets a predicate `io*f + ii < N`. Always legal. Costs a comparison per iteration or,
            where code generation can decide it for a whole tile, a second copy of the code. The default; right where
            the extent is unknown and nothing else is known about the blocks.
        MASK: like GUARD, but the inner loop is vectorized at once, so that the predicate becomes a mask of lanes. Legal
            where `vectorize` is. Costs masked loads and stores, cheap on targets that have them, slow on others. For
            the innermost loop of element-wise work.
        REMAINDER: whole tiles first, then a copy of the loop over the remaining N % f iterations. Legal for every loop
            that is not bound to an axis of a GPU. Doubles the code, but neither part has a guard. For tiles that are
            worth optimizing on their own, as the remainder can be scheduled differently.
        SHIFT_INWARDS: the last tile starts at N - f and repeats some iterations. Legal where N >= f is known and
            iterations are independent and idempotent (no reduction over the loop, no accumulation into existing
            values); not under threads, where two would write one element. Costs the repeated iterations, at most f - 1;
            all tiles are whole. For vectors over an extent that is known to be long.
        PAD: the domain grows to a multiple of the factor, and with it the internal buffers that the blocks write. Legal
            where the blocks write internal buffers and all their reads are in bounds for the new iterations, too. Costs
            memory and the added iterations. For operands that are packed in whole tiles.
    """

    GUARD = "guard"
    MASK = "mask"
    REMAINDER = "remainder"
    SHIFT_INWARDS = "shift_inwards"
    PAD = "pad"


@dataclass(frozen=True, slots=True)
class Tiling:
    """A loop about to be split into `count` tiles of `size` iterations.

    Attributes:
        func, loop, around: the loop in its function.
        size: iterations of a tile.
        names: of the outer and the inner loop, and of the loop of the remainder.
        parts: the number of tiles, where it is given.
    """

    func: Func
    loop: For
    around: tuple[For, ...]
    size: Expr
    names: tuple[str, str, str]
    parts: Expr | None = None

    @property
    def place(self) -> str:
        """Location in error messages."""
        return f"split of loop {self.loop.var.name!r}"

    @property
    def outer(self) -> Var:
        """The variable that counts tiles."""
        return Var(self.names[0])

    @property
    def inner(self) -> Var:
        """The variable that counts within a tile."""
        return Var(self.names[1])

    @property
    def index(self) -> Expr:
        """The old variable where tiles are consecutive."""
        return self.outer * self.size + self.inner

    @property
    def count(self) -> Expr:
        """The number of tiles, the last one possibly partial."""
        return ceildiv(self.loop.extent, self.size) if self.parts is None else self.parts

    @property
    def is_whole(self) -> bool:
        """Whether all tiles are known to be whole."""
        bounds = bounds_of(self.around).with_loop(self.outer, self.count).with_loop(self.inner, self.size)
        return can_prove(self.index < self.loop.extent, bounds)

    def nest(self, count: Expr, index: Expr) -> For:
        """The two loops; the inner one of a loop on threads is serial."""
        loop, kind, mapping = self.loop, self.loop.kind, {self.loop.var: index}
        hints = loop.prefetches_with(lambda e: substitute(e, mapping))
        inner = LoopKind.SERIAL if kind in THREADED else kind
        return For(
            self.outer, count, kind, For(self.inner, self.size, inner, substitute_vars(loop.body, mapping), hints)
        )


def tile_exact(t: Tiling) -> Func:
    """Tiles a loop whose tiles are all whole."""
    return with_stmt_replaced(t.func, t.loop, t.nest(t.count, t.index))


def tile_guarded(t: Tiling) -> Func:
    """See `Tail.GUARD`."""
    in_range = t.index < t.loop.extent
    nest = map_blocks(t.nest(t.count, t.index), lambda b: replace(b, predicate=conjunction(b.predicate, in_range)))
    return with_stmt_replaced(t.func, t.loop, nest)


def tile_masked(t: Tiling) -> Func:
    """See `Tail.MASK`."""
    return vectorize(tile_exact(t) if t.is_whole else tile_guarded(t), t.names[1])


def tile_with_remainder(t: Tiling) -> Func:
    """See `Tail.REMAINDER`."""
    check_remainder(t)
    tiles = t.loop.extent // t.size
    func, remainder = copy_loop_range(t.func, t.loop, tiles * t.size, t.loop.extent % t.size, t.around, t.names[2])
    return with_stmt_replaced(func, t.loop, seq(t.nest(tiles, t.index), remainder))


def check_remainder(t: Tiling) -> None:
    """There may be a whole tile, and the loop is on no GPU axis: loops on one axis have one extent."""
    if t.loop.kind in THREADED and t.loop.kind is not LoopKind.PARALLEL:
        raise ScheduleError(f"the loop is bound to {t.loop.kind} already", where=t.place, hint="split it before `bind`")
    if can_prove(t.loop.extent < t.size, bounds_of(t.around)):
        what = f"no tile of {t.size} is whole in {t.loop.extent} iterations"
        raise ScheduleError(what, where=t.place, hint="use a smaller factor or Tail.GUARD")


def tile_shifted_inwards(t: Tiling) -> Func:
    """See `Tail.SHIFT_INWARDS`."""
    check_shift(t)
    start = minimum(t.outer * t.size, t.loop.extent - t.size)
    return with_stmt_replaced(t.func, t.loop, t.nest(t.count, start + t.inner))


def check_shift(t: Tiling) -> None:
    """There is a whole tile, no two threads write one element, and an iteration may run again."""
    if t.loop.kind in THREADED or t.loop.kind is LoopKind.VTHREAD:
        what = f"the loop is {t.loop.kind}: two iterations would write one element at once"
        raise ScheduleError(what, where=t.place, hint="use Tail.GUARD or Tail.REMAINDER")
    if not can_prove(t.loop.extent >= t.size, bounds_of(t.around)):
        what = f"it is not proved that {t.loop.extent} iterations fill a tile of {t.size}"
        raise ScheduleError(what, where=t.place, hint="use Tail.GUARD, or declare the size to be at least that")
    check_idempotent(t.loop, t.around, t.place)
    check_iterations_independent(t.func, t.loop, t.place)


def check_idempotent(node: For, enclosing: Sequence[For], place: str) -> None:
    """Running an iteration of a loop again gives the same result: of the buffers that the loop writes, it reads only
    elements that it wrote before in the same iteration."""
    nests = [BlockContext.of(s, loops) for s, loops in walk_stmt(node, tuple(enclosing)) if isinstance(s, Block)]
    for b in blocks(node):
        if any(i.kind is IterKind.REDUCE and node.var in free_vars(i.binding) for i in b.iters):
            raise ScheduleError(f"block {b.name!r} reduces over it: points would count twice", where=place)
    for buffer in dict.fromkeys(b.body.buffer for b in blocks(node)):
        for stale in loop_carried_reads(node, buffer, nests):
            where = f"block {stale.context.block.name!r} reads {buffer.name!r}"
            why = "" if stale.reason is None else f": {stale.reason}"
            raise ScheduleError(f"{where}, which a repeated iteration has changed{why}", where=place)


def tile_padded(t: Tiling) -> Func:
    """See `Tail.PAD`."""
    extent = t.count * t.size
    grown = check_paddable(t, extent)
    func = t.func
    nest = map_blocks(t.nest(t.count, t.index), lambda b: _extend_domain(b, t.index, extent))
    func = with_stmt_replaced(func, t.loop, nest)
    for old, new in grown.items():
        func = with_buffer_replaced(func, old, new)
    hint = "use Tail.GUARD, or pack the operand in tiles of the factor first"
    check_in_bounds(func, [b.name for b in blocks(nest)], t.place, hint)
    return func


def _extend_domain(block: Block, index: Expr, extent: Expr) -> Block:
    return replace(block, iters=tuple(replace(i, extent=extent) if i.binding is index else i for i in block.iters))


def check_paddable(t: Tiling, extent: Expr) -> Mapping[Buffer, Buffer]:
    """The buffers that must grow, with their replacements: each block iterates over the loop and writes an internal
    buffer at that variable; the new iterations divide by nothing unknown."""
    loop = t.loop
    grown: dict[Buffer, Buffer] = {}
    for x in loops_inside(loop.body):
        if loop.var in free_vars(x.extent):
            raise ScheduleError(f"the extent of {x.var.name!r} depends on it", where=t.place)
    for b in blocks(loop):
        where = f"block {b.name!r}"
        i = _bound_iter(b, loop, t.place)
        buffer = b.body.buffer
        if buffer not in t.func.allocs:
            what = f"{where} writes {buffer.name!r}, a parameter, which can't grow"
            raise ScheduleError(what, where=t.place, hint="use cache_write first, or Tail.GUARD")
        places = [d for d, index in enumerate(b.body.indices) if i.var in free_vars(index)]
        if len(places) != 1 or b.body.indices[places[0]] is not i.var:
            raise ScheduleError(f"{where} does not write {buffer.name!r} at its plain variable", where=t.place)
        if any(i.var in free_vars(d) or loads(d) for d in _divisors(b)):
            raise ScheduleError(f"{where} divides by what is not known for the added iterations", where=t.place)
        check_padding_unread(t, buffer, places[0])
        shape = grown.get(buffer, buffer).shape
        grown[buffer] = replace(buffer, shape=(*shape[: places[0]], extent, *shape[places[0] + 1 :]))
    return grown


def check_padding_unread(t: Tiling, buffer: Buffer, dim: int) -> None:
    """A dimension has no elements beyond the loop's extent that another block reads: the added iterations overwrite
    them."""
    if buffer.shape[dim] is t.loop.extent:
        return
    inner_names = {b.name for b in blocks(t.loop)}
    for s, enclosing in walk_stmt(t.func.body):
        if not isinstance(s, Block) or s.name in inner_names:
            continue
        nest = BlockContext.of(s, enclosing)
        for a in accesses(s):
            if (
                a.buffer == buffer
                and not a.is_write
                and not can_prove(nest.over_loops(a.indices[dim]) < t.loop.extent, nest.bounds)
            ):
                what = f"block {s.name!r} may read elements of {buffer.name!r} that the added iterations write"
                raise ScheduleError(what, where=t.place)


def _bound_iter(block: Block, loop: For, place: str) -> BlockIter:
    """The spatial variable of a block that is bound to the loop's variable; nothing else in the block depends on the
    loop."""
    bound_iters = [i for i in block.iters if loop.var in free_vars(i.binding)]
    stores = (block.body,) if block.init is None else (block.body, block.init)
    is_used_elsewhere = any(loop.var in free_vars(e) for s in stores for e in (*s.indices, s.value))
    i = bound_iters[0] if len(bound_iters) == 1 else None
    if (
        i is None
        or is_used_elsewhere
        or i.kind is IterKind.REDUCE
        or i.binding is not loop.var
        or i.extent is not loop.extent
    ):
        what = f"block {block.name!r} does not iterate over 0..{loop.extent} with one spatial variable bound to it"
        raise ScheduleError(what, where=place, hint="pad the loops before they are transformed, or use Tail.GUARD")
    return i


def _divisors(block: Block) -> Sequence[Expr]:
    return [e.b for e in post_order(block.body.value) if isinstance(e, Binary) and e.op in ("floordiv", "mod", "fmod")]


STRATEGIES: Mapping[Tail, Callable[[Tiling], Func]] = {
    Tail.GUARD: tile_guarded,
    Tail.MASK: tile_masked,
    Tail.REMAINDER: tile_with_remainder,
    Tail.SHIFT_INWARDS: tile_shifted_inwards,
    Tail.PAD: tile_padded,
}
"""How each strategy tiles a loop whose tiles are not all known to be whole."""


def tile_loop(t: Tiling, tail: Tail) -> Func:
    """The function with the loop in tiles."""
    return tile_exact(t) if t.is_whole and tail is not Tail.MASK else STRATEGIES[tail](t)
