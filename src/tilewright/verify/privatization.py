"""Privatisation: every element that an iteration of a loop reads was written earlier in the same iteration.

Iterations with a private buffer, or that may run twice, must not read what another iteration left there. For every
read, a write of the same element earlier in the same iteration is searched: `index_inverse.py` proposes the values of
the write's loops. It is then proved that these values are in range, that the elements are equal, that the write's
predicate holds, and that it comes earlier. Where some conditions remain unproved, other writes must store the element
where one of these does not hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.algebra.bounds import Bounds, negated_comparison
from tilewright.expr.algebra.prover import can_prove, can_prove_le, can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import TRUE, Binary, Buffer, Expr, Load, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, free_vars, loads
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.access import Access, accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.empty_reductions import init_where_empty
from tilewright.loops.ir import CONCURRENT, Block, For, IterKind, walk
from tilewright.verify.index_inverse import invert_indices


@dataclass(frozen=True, slots=True)
class LoopCarriedRead:
    """A read of an element that another iteration may have written.

    Attributes:
        context, access: the block and the read.
        reason: what is known about the last write before it, as the end of a sentence; None if there is no write.
        unmet_condition: a condition on the loop and the enclosing ones without which that write does not happen.
    """

    context: BlockContext
    access: Access
    reason: str | None
    unmet_condition: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """A store inside the loop.

    Attributes:
        name: of the block.
        loops: the block's loops inside the loop, outermost first.
        position: in program order; within one iteration, smaller positions come first.
        indices, condition: the element and the predicate, over loop variables.
        restarting_loops: for the init of a reduction, the loops at whose first iteration it happened.
        is_init: whether it is the init of the block that reads.
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
    """A read inside the loop; attributes as of `_Write`."""

    loops: tuple[For, ...]
    position: float
    indices: tuple[Expr, ...]


def loop_carried_reads(loop: For, buffer: Buffer, contexts: Sequence[BlockContext]) -> Iterator[LoopCarriedRead]:
    """The reads of a buffer whose element is not proved to be written earlier in the same iteration of a loop.

    Args:
        loop: the loop; it and its enclosing loops are at one fixed iteration.
        buffer: the buffer.
        contexts: the function's blocks in the order of execution.
    """
    inside = [(k, c) for k, c in enumerate(contexts) if any(x is loop for x in c.loops)]
    written = {c.block.body.buffer for _, c in inside}
    writes = [w for k, c in inside if c.block.body.buffer == buffer for w in _writes(k, c, loop, contexts)]
    writes = [w for w in writes if not any(x.buffer in written for i in w.indices for x in loads(i))]
    seen: set[tuple[int, tuple[Expr, ...], Expr]] = set()
    for k, context in inside:
        block, loops = context.block, _inner_loops(context, loop)
        if not any(a.buffer == buffer and not a.is_write for a in accesses(block)):
            continue
        own_init = _own_init(k, context, loops) if block.init is not None and block.body.buffer == buffer else None
        for part, first in ((replace(block, init=None), False), (_init_of(block), True)):
            for a in accesses(part) if part is not None else ():
                key = (k, a.indices, a.condition)
                if a.buffer != buffer or a.is_write or key in seen:
                    continue
                seen.add(key)
                read = _Read(loops, k, tuple(context.over_loops(i) for i in a.indices))
                bounds = context.bounds.assuming(context.over_loops(a.condition))
                candidates = [w for w in writes if w.position < k or _count_shared_loops(w, read)]
                if own_init is not None and not first:
                    candidates.append(own_init)
                candidates.sort(key=lambda w: -w.position if w.position <= k else w.position)
                if not _is_covered(read, candidates, bounds):
                    yield _explain(context, a, read, candidates, bounds)


def _inner_loops(context: BlockContext, loop: For) -> tuple[For, ...]:
    return context.loops[next(k for k, x in enumerate(context.loops) if x is loop) + 1 :]


def _init_of(block: Block) -> Block | None:
    return None if block.init is None else replace(block, body=block.init, init=None)


def _writes(k: int, context: BlockContext, loop: For, contexts: Sequence[BlockContext]) -> Iterator[_Write]:
    """The store of a block, and that of its init where its reduction is empty."""
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
    first = next(p for p, c in enumerate(contexts) if any(x is start for x in c.loops))
    for s, enclosing in walk(stmt, outside):
        if isinstance(s, Block):
            empty = BlockContext.of(s, enclosing)
            indices = tuple(empty.over_loops(i) for i in s.body.indices)
            yield _Write(block.name, _inner_loops(empty, loop), first - 0.5, indices, s.predicate)


def _own_init(k: int, context: BlockContext, loops: tuple[For, ...]) -> _Write:
    """The init of a reduction as a write before its body: it happened at the reduction's first point."""
    bindings = [i.binding for i in context.block.iters if i.kind is IterKind.REDUCE]
    restarting = frozenset(x.var for x in loops if any(x.var in free_vars(e) for e in bindings))
    condition = conjunction(context.block.predicate, *(e.equals(0) for e in bindings))
    indices = tuple(context.over_loops(i) for i in context.block.body.indices)
    return _Write(context.block.name, loops, k - 0.25, indices, condition, restarting, True)


def _count_shared_loops(w: _Write, read: _Read) -> int:
    """The number of loops inside the loop that a write and a read share."""
    pairs = list(zip(w.loops, read.loops, strict=False))
    return next((k for k, (x, y) in enumerate(pairs) if x is not y), len(pairs))


def _is_covered(read: _Read, writes: Sequence[_Write], bounds: Bounds, depth: int = 4) -> bool:
    """Whether the element of a read is proved to be stored before, by case distinction over at most `depth` writes."""
    for k, w in enumerate(writes):
        rest = [*writes[:k], *writes[k + 1 :]]
        for missing in _unproved_conditions(w, read, bounds):
            if not missing:
                return True
            if not depth or not rest:
                continue
            negations = [negated_comparison(c) for c in missing]
            if all(c is not None and _is_covered(read, rest, bounds.assuming(c), depth - 1) for c in negations):
                return True
    return False


def _unproved_conditions(w: _Write, read: _Read, bounds: Bounds) -> Iterator[tuple[Expr, ...]]:
    """The unproved conditions under which a write stores the element, for several choices of the write's iteration."""
    shared = [x.var for x in w.loops[: _count_shared_loops(w, read)]]
    if w.is_init:
        choices = [w.restarting_loops]
    else:
        choices = [frozenset[Var]()] if w.position < read.position else []
        indexing = frozenset(v for v in shared if any(v in free_vars(i) for i in w.indices))
        choices += [indexing] if indexing else []
    for earlier in choices:
        missing = _missing_conditions(w, read, earlier, bounds)
        if missing is not None:
            yield missing


def _missing_conditions(w: _Write, read: _Read, earlier: frozenset[Var], bounds: Bounds) -> tuple[Expr, ...] | None:
    """The unproved conditions of a write that stores the element earlier; None where it does not.

    Args:
        w, read: the write and the read.
        earlier: the shared loops of which the write is in another, earlier iteration.
        bounds: what holds at the read.
    """
    loops = tuple((x.var, x.extent, x.kind in CONCURRENT and not w.is_init) for x in w.loops)
    before = w.position < read.position
    return _find_missing_conditions(
        loops, _count_shared_loops(w, read), w.indices, w.condition, read.indices, before, earlier, bounds
    )


@kernel_cache(maxsize=1 << 12)
def _find_missing_conditions(
    loops: tuple[tuple[Var, Expr, bool], ...],
    num_shared: int,
    written: tuple[Expr, ...],
    condition: Expr,
    read_indices: tuple[Expr, ...],
    before: bool,
    earlier: frozenset[Var],
    bounds: Bounds,
) -> tuple[Expr, ...] | None:
    """The cached part of `_missing_conditions`: the steps of a schedule repeat it for the same loops.

    Args:
        loops: variable and extent of the write's loops, and whether their iterations are unordered.
        num_shared: how many of them the read shares.
        written, condition: the indices and the predicate of the write.
        read_indices: the indices of the read.
        before: whether the write precedes the read in program order.
        earlier, bounds: as of `_missing_conditions`.
    """
    fresh: dict[Var, Expr] = {v: Var(f"{v.name}'") for v in earlier}
    names = {v: fresh.get(v, v) for v, _, _ in loops}
    free_loops = [(v, extent) for k, (v, extent, _) in enumerate(loops) if v in earlier or k >= num_shared]
    unknown = frozenset(v for x, _ in free_loops if isinstance(v := names[x], Var))
    indices = [substitute(i, fresh) for i in written]
    conditions = [substitute(c, fresh) for c in conjuncts(condition)]
    equations = list(zip(indices, read_indices, strict=True))
    equalities = (c for c in conditions if isinstance(c, Binary) and c.op == "eq")
    equations += [(c.a, c.b) for c in equalities if not free_vars(c.b) & unknown]
    solution = invert_indices(equations, unknown, bounds)
    at: dict[Var, Expr] = {v: solution.get(v, const(0)) for v in unknown}
    if not all(_is_equal(substitute(i, at, bounds), j, bounds) for i, j in zip(indices, read_indices, strict=True)):
        return None
    values = {x: at[v] for x, _ in free_loops if isinstance(v := names[x], Var)}
    if not _is_earlier([(v, values.get(v, v), free) for v, _, free in loops[:num_shared]], before, bounds):
        return None
    missing: list[Expr] = []
    # The extent of a shared loop may have been another one in the write's iteration.
    resized = [(v, extent) for v, extent, _ in loops[:num_shared] if v not in values and free_vars(extent) & earlier]
    for x, extent in (*free_loops, *resized):
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
    """Whether the write comes before the read: in an earlier iteration of a shared loop, or in program order.

    Args:
        shared: variables of the shared loops, their values at the write, and whether iterations are unordered.
        before: whether the write precedes the read in program order.
        bounds: what holds at the read.
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
    """The read, with the reason why no earlier write is proved to store its element."""
    for w in writes:
        if w.position >= read.position or w.is_init:
            continue
        missing = next(iter(_unproved_conditions(w, read, bounds)), None)
        if missing is None:
            element = Load(a.buffer, w.indices)
            return LoopCarriedRead(context, a, f"block {w.name!r} before it writes {element}")
        inner = {x.var for x in (*w.loops, *read.loops)}
        condition = " and ".join(map(str, missing))
        unmet = next((c for c in missing if not free_vars(c) & inner and not loads(c)), None)
        return LoopCarriedRead(context, a, f"block {w.name!r} before it writes it where {condition}", unmet)
    return LoopCarriedRead(context, a, None)
