"""Whether what an iteration of a loop reads it wrote itself before, element by element.

Iterations that have a buffer for themselves, or that may run twice, must not find there what another one left. For
every read a write is looked for that stores the element: one earlier in the same iteration, at values of its loops
that `invert_indices.py` guesses. It is then proved that these are in range, that the element is the one that is
read, that
the predicate of the write holds there, and that it comes earlier. Where all but some conditions are proved, other
writes must store the element where one of these does not hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.expr.algebra.bounds import Bounds, negated_comparison
from tilewright.expr.algebra.prover import can_prove, can_prove_le, can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import TRUE, Binary, Buffer, Expr, Load, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, free_vars, loads
from tilewright.loops.access import Access, accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.empty_reductions import init_where_empty
from tilewright.loops.ir import CONCURRENT, Block, For, IterKind, walk
from tilewright.verify.index_inverse import invert_indices


@dataclass(frozen=True, slots=True)
class LoopCarriedRead:
    """A read of an element that may be from another iteration.

    Attributes:
        nest, access: the read.
        why: what is known of the last write before it, if there is one: the end of a sentence, or nothing.
        skipped: the condition on the loop and those around under which alone that write happens, if that is why.
    """

    context: BlockContext
    access: Access
    reason: str | None
    unmet_condition: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """Elements that a block stores in an iteration of the loop.

    Attributes:
        name: of the block.
        loops: those around it inside the loop, outermost first.
        place: when it is its turn; equal or later ones of the same iteration come later.
        indices, condition: which element, and whether; over loops.
        again: the loops that restart for it: the init of a reduction happened where these began.
        init: whether it is the init of the block that reads.
    """

    name: str
    loops: tuple[For, ...]
    position: float
    indices: tuple[Expr, ...]
    condition: Expr
    restarting_loops: frozenset[Var] = frozenset()
    is_init: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    loops: tuple[For, ...]
    position: float
    indices: tuple[Expr, ...]


def loop_carried_reads(loop: For, buffer: Buffer, contexts: Sequence[BlockContext]) -> Iterator[LoopCarriedRead]:
    """The reads of a buffer that may find what another iteration of a loop wrote, or nobody.

    Args:
        loop: the loop; it and the loops around stand still.
        buffer: the buffer.
        nests: the function's blocks in the order of execution.
    """
    inside = [(k, n) for k, n in enumerate(contexts) if any(x is loop for x in n.loops)]
    changed = {n.block.body.buffer for _, n in inside}
    writes = [w for k, n in inside if n.block.body.buffer == buffer for w in _writes(k, n, loop, contexts)]
    writes = [w for w in writes if not any(x.buffer in changed for i in w.indices for x in loads(i))]
    asked: set[tuple[int, tuple[Expr, ...], Expr]] = set()
    for k, context in inside:
        block, loops = context.block, _inner_loops(context, loop)
        if not any(a.buffer == buffer and not a.is_write for a in accesses(block)):
            continue
        mine = _own_init(k, context, loops) if block.init is not None and block.body.buffer == buffer else None
        for part, first in ((replace(block, init=None), False), (_init_of(block), True)):
            for a in accesses(part) if part is not None else ():
                key = (k, a.indices, a.condition)
                if a.buffer != buffer or a.is_write or key in asked:
                    continue
                asked.add(key)
                read = _Read(loops, k, tuple(context.over_loops(i) for i in a.indices))
                bounds = context.bounds.assuming(context.over_loops(a.condition))
                candidates = [w for w in writes if w.position < k or _count_shared_loops(w, read)]
                if mine is not None and not first:
                    candidates.append(mine)
                candidates.sort(key=lambda w: -w.position if w.position <= k else w.position)
                if not _is_covered(read, candidates, bounds):
                    yield _explain(context, a, read, candidates, bounds)


def _inner_loops(context: BlockContext, loop: For) -> tuple[For, ...]:
    return context.loops[next(k for k, x in enumerate(context.loops) if x is loop) + 1 :]


def _init_of(block: Block) -> Block | None:
    return None if block.init is None else replace(block, body=block.init, init=None)


def _writes(k: int, context: BlockContext, loop: For, contexts: Sequence[BlockContext]) -> Iterator[_Write]:
    """The stores of a block, and of its init where its reduction is empty."""
    block = context.block
    indices = tuple(context.over_loops(i) for i in block.body.indices)
    yield _Write(block.name, _inner_loops(context, loop), k, indices, block.predicate)
    before = init_where_empty(block, context.loops)
    if before is None:
        return
    start, stmt = before
    position = next(p for p, x in enumerate(context.loops) if x is start)
    outside = context.loops[:position]
    if not any(x is loop for x in outside):
        return
    first = next(p for p, n in enumerate(contexts) if any(x is start for x in n.loops))
    for s, around in walk(stmt, outside):
        if isinstance(s, Block):
            empty = BlockContext.of(s, around)
            indices = tuple(empty.over_loops(i) for i in s.body.indices)
            yield _Write(block.name, _inner_loops(empty, loop), first - 0.5, indices, s.predicate)


def _own_init(k: int, context: BlockContext, loops: tuple[For, ...]) -> _Write:
    """The init of a reduction, as the read of its body sees it: it was stored at the reduction's first point."""
    reduced = [i.binding for i in context.block.iters if i.kind is IterKind.REDUCE]
    again = frozenset(x.var for x in loops if any(x.var in free_vars(e) for e in reduced))
    condition = conjunction(context.block.predicate, *(e.equals(0) for e in reduced))
    indices = tuple(context.over_loops(i) for i in context.block.body.indices)
    return _Write(context.block.name, loops, k - 0.25, indices, condition, again, True)


def _count_shared_loops(w: _Write, read: _Read) -> int:
    """How many loops inside the loop both are in."""
    pairs = list(zip(w.loops, read.loops, strict=False))
    return next((k for k, (x, y) in enumerate(pairs) if x is not y), len(pairs))


def _is_covered(read: _Read, writes: Sequence[_Write], bounds: Bounds, depth: int = 4) -> bool:
    """Whether writes store the element before."""
    for k, w in enumerate(writes):
        rest = [*writes[:k], *writes[k + 1 :]]
        for missing in _unproved_conditions(w, read, bounds):
            if not missing:
                return True
            if not depth or not rest:
                continue
            others = [negated_comparison(c) for c in missing]
            if all(c is not None and _is_covered(read, rest, bounds.assuming(c), depth - 1) for c in others):
                return True
    return False


def _unproved_conditions(w: _Write, read: _Read, bounds: Bounds) -> Iterator[tuple[Expr, ...]]:
    """What is not proved of the conditions under which a write stores the element, in several ways to see it."""
    shared = [x.var for x in w.loops[: _count_shared_loops(w, read)]]
    if w.is_init:
        tries = [w.restarting_loops]
    else:
        tries = [frozenset[Var]()] if w.position < read.position else []
        moved = frozenset(v for v in shared if any(v in free_vars(i) for i in w.indices))
        tries += [moved] if moved else []
    for earlier in tries:
        missing = _missing_conditions(w, read, earlier, bounds)
        if missing is not None:
            yield missing


def _missing_conditions(w: _Write, read: _Read, earlier: frozenset[Var], bounds: Bounds) -> tuple[Expr, ...] | None:
    """The conditions that are not proved, if the element is the one that is read and it was written earlier.

    Args:
        w, read: the write and the read.
        earlier: loops around both of which the write was in another iteration, one before.
        known: what is known at the read.
    """
    loops = tuple((x.var, x.extent, x.kind in CONCURRENT and not w.is_init) for x in w.loops)
    before = w.position < read.position
    return _find_missing_conditions(
        loops, _count_shared_loops(w, read), w.indices, w.condition, read.indices, before, earlier, bounds
    )


@lru_cache(maxsize=1 << 12)
def _find_missing_conditions(
    loops: tuple[tuple[Var, Expr, bool], ...],
    common: int,
    written: tuple[Expr, ...],
    condition: Expr,
    wanted: tuple[Expr, ...],
    before: bool,
    earlier: frozenset[Var],
    bounds: Bounds,
) -> tuple[Expr, ...] | None:
    """The question of `_missing_conditions`, which every step of a schedule asks again for the same loops.

    Args:
        loops: variables and extents of those around the write, and whether their iterations have no order.
        common: how many of them are around the read too.
        written, condition: the element that is written, and whether it is.
        wanted: the element that is read.
        before: whether the write stands before the read.
        earlier, known: as of `_missing_conditions`.
    """
    fresh: dict[Var, Expr] = {v: Var(f"{v.name}'") for v in earlier}
    names = {v: fresh.get(v, v) for v, _, _ in loops}
    own = [(v, extent) for k, (v, extent, _) in enumerate(loops) if v in earlier or k >= common]
    unknown = frozenset(v for x, _ in own if isinstance(v := names[x], Var))
    indices = [substitute(i, fresh) for i in written]
    conditions = [substitute(c, fresh) for c in conjuncts(condition)]
    equations = list(zip(indices, wanted, strict=True))
    equal = (c for c in conditions if isinstance(c, Binary) and c.op == "eq")
    equations += [(c.a, c.b) for c in equal if not free_vars(c.b) & unknown]
    found = invert_indices(equations, unknown, bounds)
    at: dict[Var, Expr] = {v: found.get(v, const(0)) for v in unknown}
    if not all(_is_equal(substitute(i, at, bounds), j, bounds) for i, j in zip(indices, wanted, strict=True)):
        return None
    values = {x: at[v] for x, _ in own if isinstance(v := names[x], Var)}
    if not _is_earlier([(v, values.get(v, v), free) for v, _, free in loops[:common]], before, bounds):
        return None
    missing: list[Expr] = []
    # the number of iterations of a loop around both may have been another one then
    sized = [(v, extent) for v, extent, _ in loops[:common] if v not in values and free_vars(extent) & earlier]
    for x, extent in (*own, *sized):
        value = at[v] if isinstance(v := names[x], Var) and v in at else x
        size = substitute(substitute(extent, fresh), at, bounds)
        if not can_prove_non_negative(value, bounds):
            missing.append(value >= 0)
        if not can_prove_lt(value, size, bounds):
            missing.append(value < size)
    missing += [
        c for c in (substitute(c, at, bounds) for c in conditions) if c is not TRUE and not can_prove(c, bounds)
    ]
    return tuple(missing)


def _is_equal(a: Expr, b: Expr, bounds: Bounds) -> bool:
    return a is b or (can_prove_non_negative(a - b, bounds) and can_prove_non_negative(b - a, bounds))


def _is_earlier(shared: Sequence[tuple[Var, Expr, bool]], before: bool, bounds: Bounds) -> bool:
    """Whether the write comes before the read: in an earlier iteration of a loop that both are in, or in the text.

    Args:
        shared: variables of the loops around both, their values at the write, and whether iterations have no order.
        before: whether the write stands before the read.
        known: what is known at the read.
    """
    for var, value, unordered in shared:
        if value is var:
            continue
        if unordered or not can_prove_le(value, var, bounds):
            return False
        if can_prove_lt(value, var, bounds):
            return True
    return before


def _explain(
    context: BlockContext, a: Access, read: _Read, writes: Sequence[_Write], bounds: Bounds
) -> LoopCarriedRead:
    """The read with the reason why nothing earlier is known to write its element."""
    for w in writes:
        if w.position >= read.position or w.is_init:
            continue
        missing = next(iter(_unproved_conditions(w, read, bounds)), None)
        if missing is None:
            element = Load(a.buffer, w.indices)
            return LoopCarriedRead(context, a, f"block {w.name!r} before it writes {element}")
        moving = {x.var for x in (*w.loops, *read.loops)}
        condition = " and ".join(map(str, missing))
        skipped = next((c for c in missing if not free_vars(c) & moving and not loads(c)), None)
        return LoopCarriedRead(context, a, f"block {w.name!r} before it writes it where {condition}", skipped)
    return LoopCarriedRead(context, a, None)
