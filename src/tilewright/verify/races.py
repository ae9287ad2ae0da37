"""Data races: whether iterations of concurrent loops (parallel, GPU axis, vectorized, vthread) are independent.

For every buffer that is written inside such a loop and lives outside of it, the element alone must identify the
iteration, in the same way for all accesses: two accesses to one element then belong to one iteration. An index
identifies iteration p if it is c*p + r + offset with 0 <= r < c, or if the indices so contain splits of p (`p // a`,
`p % a`) that together determine p.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_le, can_prove_lt, can_prove_non_negative
from tilewright.expr.nodes import Buffer, Const, Expr, Load, MemoryScope, Var, const
from tilewright.expr.traversal import free_vars, loads
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.access import Access, accesses
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import CONCURRENT, THREADED, For, Func, IterKind, LoopKind, walk
from tilewright.loops.printer import show_loop
from tilewright.verify.diagnostics import Diagnostic
from tilewright.verify.iter_split import IterSplit, match_iter_split, splits_are_bijective
from tilewright.verify.privatization import LoopCarriedRead, loop_carried_reads


@dataclass(frozen=True, slots=True)
class _LinearForm:
    """How a variable is recovered from an index: ((index - offset) // step) % period, or without period if None."""

    step: Expr
    offset: Expr
    period: Expr | None


@dataclass(frozen=True, slots=True)
class IterationKey:
    """How one index of an element identifies an iteration, or a split of it.

    Attributes:
        axis: the dimension of the buffer.
        index: how the split is recovered from the index.
        lower_factor, extent: of the split.
        source: how the iteration is recovered from the source of the split.
    """

    axis: int
    index: _LinearForm
    lower_factor: Expr
    extent: Expr | None
    source: _LinearForm


_PRIVATE_SCOPES = (MemoryScope.REGISTER, MemoryScope.STACK)
"""Memory scopes of which every thread has its own. Lanes of a vector and iterations of a vthread loop share those of
their thread, so they must use different indices."""


def find_races(func: Func, contexts: Sequence[BlockContext]) -> Iterator[Diagnostic]:
    """The races of a function; `contexts` are its blocks, in order."""
    for s, _ in walk(func.body):
        if isinstance(s, For) and s.kind in CONCURRENT and not (isinstance(s.extent, Const) and s.extent.value <= 1):
            inside = [c for c in contexts if any(loop is s for loop in c.loops)]
            if all(can_prove_le(s.var, const(0), c.bounds) for c in inside):  # predicates leave one iteration
                continue
            yield from _find_concurrent_reductions(s, inside)
            by_buffer: dict[Buffer, list[tuple[BlockContext, Access]]] = {c.block.body.buffer: [] for c in inside}
            for c in inside:
                for a in accesses(c.block):
                    if a.buffer in by_buffer:
                        by_buffer[a.buffer].append((c, a))
            for buffer, touching in by_buffer.items():
                yield from _find_buffer_races(s, buffer, touching, inside, contexts)


def _find_concurrent_reductions(loop: For, inside: Sequence[BlockContext]) -> Iterator[Diagnostic]:
    for context in inside:
        for i in context.block.iters:
            if i.kind is not IterKind.REDUCE or loop.var not in free_vars(i.binding):
                continue
            where = f"block {context.block.name!r}"
            if loop.kind is not LoopKind.VECTORIZED:
                what = f"reduces over {loop.kind} loop {loop.var.name!r} (variable {i.var.name!r})"
                yield Diagnostic(where, what, context.text)
            elif match_accumulation(context.block.body) is None:
                what = f"vectorized loop {loop.var.name!r} carries a reduction"
                yield Diagnostic(where, f"{what} that is no sum, product, maximum or minimum", context.text)


def _find_buffer_races(
    loop: For,
    buffer: Buffer,
    touching: Sequence[tuple[BlockContext, Access]],
    inside: Sequence[BlockContext],
    contexts: Sequence[BlockContext],
) -> Iterator[Diagnostic]:
    """Races on a buffer that is written inside a concurrent loop.

    Args:
        loop: the loop.
        buffer: the buffer.
        touching: the accesses to it inside the loop.
        inside: the blocks inside the loop.
        contexts: all blocks of the function, in order.
    """
    if _is_private(loop, buffer, inside, contexts):
        stale_reads = list(loop_carried_reads(loop, buffer, contexts))
        if not stale_reads:
            return
        # A private buffer ends with its loop: nothing from another iteration of an outer loop is in it.
        has_outer_loops = any(c.loops[0] is not loop for c in inside)
        if has_outer_loops or not any(_depends_on_loop(c, a, loop) for c, a in touching if a.is_write):
            for read in stale_reads:
                where = f"block {read.context.block.name!r}"
                yield Diagnostic(where, _describe_read(read, loop), read.context.text)
            return
    if loop.kind is LoopKind.VECTORIZED and all(_is_lane_reduction(c, loop) for c, _ in touching):
        operators = {None if (x := match_accumulation(c.block.body)) is None else x[0] for c, _ in touching}
        if len(operators) > 1:
            names = ", ".join(dict.fromkeys(repr(c.block.name) for c, _ in touching))
            what = f"lanes of {loop.var.name!r} are combined in different ways into {buffer.name!r} by blocks {names}"
            yield Diagnostic(f"loop {loop.var.name!r}", what, show_loop(loop))
        return
    # An accumulating block reads and writes one element: the keys of both are the same.
    elements = {(id(c), a.indices, a.condition): (c, a) for c, a in touching}
    element_keys = {element: _access_keys(c, a, loop) for element, (c, a) in elements.items()}
    keys = [(c, a, element_keys[id(c), a.indices, a.condition]) for c, a in touching]
    if identifies_iteration(_intersection([k for _, _, k in keys])):
        return
    for c, a, k in keys:
        if a.is_write and not identifies_iteration(k):
            what = f"iterations of {loop.kind} loop {loop.var.name!r} may write the same element"
            yield Diagnostic(
                f"block {c.block.name!r}", f"{what}: {Load(buffer, a.indices)}", c.text, shared_buffer=buffer
            )
            return
    for c, a, k in keys:
        if not identifies_iteration(k):
            what = f"may read an element that another iteration of {loop.kind} loop {loop.var.name!r} writes"
            yield Diagnostic(f"block {c.block.name!r}", f"{what}: {Load(buffer, a.indices)}", c.text)
            return
    names = ", ".join(dict.fromkeys(repr(c.block.name) for c, _, _ in keys))
    what = f"accesses to {buffer.name!r} of blocks {names} are not proved to stay in one iteration"
    yield Diagnostic(f"loop {loop.var.name!r}", what, show_loop(loop))


def _is_private(loop: For, buffer: Buffer, inside: Sequence[BlockContext], contexts: Sequence[BlockContext]) -> bool:
    """Whether every iteration has its own copy of the buffer, as threads have their own stacks and registers."""
    if loop.kind not in THREADED or buffer.scope not in _PRIVATE_SCOPES:
        return False
    inner = set(inside)  # contexts compare by identity
    return not any(a.buffer == buffer for c in contexts if c not in inner for a in accesses(c.block))


def _describe_read(read: LoopCarriedRead, loop: For) -> str:
    """What is wrong with a read of a private buffer."""
    buffer = f"private buffer {read.access.buffer.name!r}"
    if read.reason is None:
        return f"reads {buffer} before this iteration of {loop.var.name!r} wrote it"
    if read.unmet_condition is not None:
        return f"reads {buffer} in iterations of {loop.var.name!r} that do not write it: {read.reason}"
    element = Load(read.access.buffer, read.access.indices)
    what = f"reads {element} of {buffer}, which this iteration of {loop.var.name!r} is not proved to have written"
    return f"{what}: {read.reason}"


def _depends_on_loop(context: BlockContext, a: Access, loop: For) -> bool:
    """Whether the element of an access depends on the iteration, so that one iteration may read another's elements."""
    return any(loop.var in free_vars(context.over_loops(i)) for i in a.indices)


def _is_lane_reduction(context: BlockContext, loop: For) -> bool:
    """Whether the block is a horizontal reduction over the lanes of a vectorized loop."""
    if match_accumulation(context.block.body) is None:
        return False
    driven_iters = [i for i in context.block.iters if loop.var in free_vars(i.binding)]
    return bool(driven_iters) and all(i.kind is IterKind.REDUCE for i in driven_iters)


def iterations_are_disjoint(loop: For, buffer: Buffer, contexts: Sequence[BlockContext]) -> bool:
    """Whether no two iterations of a loop of any kind are proved to access one element of a buffer.

    The enclosing loops are at a fixed iteration: their iterations may share elements.
    """
    if isinstance(loop.extent, Const) and loop.extent.value <= 1:
        return True
    inside = [c for c in contexts if any(x is loop for x in c.loops)]
    keys = [_access_keys(c, a, loop) for c in inside for a in accesses(c.block) if a.buffer == buffer]
    return not keys or identifies_iteration(_intersection(keys))


def _intersection(sets: Sequence[frozenset[IterationKey]]) -> frozenset[IterationKey]:
    result = sets[0]
    for s in sets[1:]:
        result &= s
    return result


def identifies_iteration(keys: frozenset[IterationKey]) -> bool:
    """Whether keys together identify the iteration: the splits of one source are bijective."""
    sources = dict.fromkeys(k.source for k in keys)
    return any(
        splits_are_bijective((k.lower_factor, k.extent) for k in keys if k.source == source) for source in sources
    )


def _access_keys(context: BlockContext, a: Access, loop: For) -> frozenset[IterationKey]:
    position = next(k for k, x in enumerate(context.loops) if x is loop)
    # Nested parallel loops run concurrently: the variables of the outer ones vary, too.
    while loop.kind is LoopKind.PARALLEL and position and context.loops[position - 1].kind is LoopKind.PARALLEL:
        position -= 1
    variant = frozenset(x.var for x in context.loops[position:])
    bounds = context.bounds.assuming(context.over_loops(a.condition))
    return iteration_keys(tuple(context.over_loops(i) for i in a.indices), loop.var, loop.extent, variant, bounds)


def store_keys(context: BlockContext, k: int, fixed: Collection[Var] = ()) -> frozenset[IterationKey]:
    """How the element that a block stores identifies the iteration of its k-th loop.

    Args:
        context: the block.
        k: the loop; the loops outside of it are at a fixed iteration.
        fixed: variables of inner loops that are fixed, too.
    """
    loop, variant = context.loops[k], frozenset(x.var for x in context.loops[k:] if x.var not in fixed)
    return iteration_keys(
        tuple(context.over_loops(i) for i in context.block.body.indices), loop.var, loop.extent, variant, context.bounds
    )


@kernel_cache(maxsize=1 << 12)
def iteration_keys(
    indices: tuple[Expr, ...], var: Var, extent: Expr, variant: frozenset[Var], bounds: Bounds
) -> frozenset[IterationKey]:
    """How the indices of an element identify the iteration of a loop.

    Args:
        indices: the indices, over loop variables and symbols.
        var, extent: the loop.
        variant: the variables that vary; all others are fixed.
        bounds: ranges and conditions of the variables.
    """
    keys: set[IterationKey] = set()
    for axis, index in enumerate(indices):
        atoms = {a: None for m in poly.polynomial(index) for a in m if var in free_vars(a)}
        if len(atoms) != 1:
            continue
        atom = next(iter(atoms))
        split = match_iter_split(atom)
        if (
            split is None
            or not _is_invariant_split(split, variant)
            or not _has_positive_divisors(split, extent, bounds)
        ):
            continue
        sources = tuple(_linear_forms(split.source, var, extent, variant, bounds))
        is_loop = split.source is var and split.lower_factor is const(1)
        num_values = split.extent if split.extent is not None else extent if is_loop else None
        forms = _linear_forms(index, atom, num_values, variant, bounds) if sources else ()
        keys.update(
            IterationKey(axis, f, split.lower_factor, split.extent, source) for f in forms for source in sources
        )
    return frozenset(keys)


def _has_positive_divisors(split: IterSplit, extent: Expr, bounds: Bounds) -> bool:
    """Whether the divisors of a split are proved positive, or divide the number of iterations."""
    divisors = [split.lower_factor] if split.extent is None else [split.lower_factor, split.extent]
    whole = poly.polynomial(extent)
    return all(can_prove_non_negative(x - 1, bounds) or not poly.divide(whole, poly.polynomial(x))[1] for x in divisors)


def _is_invariant_split(split: IterSplit, variant: frozenset[Var]) -> bool:
    used = free_vars(split.lower_factor) | (frozenset[Var]() if split.extent is None else free_vars(split.extent))
    return not used & variant and not loads(split.lower_factor)


def _linear_forms(
    index: Expr, atom: Expr, extent: Expr | None, variant: frozenset[Var], bounds: Bounds
) -> Iterator[_LinearForm]:
    """How to recover `atom`, which has `extent` values (None: unknown), from an index that is linear in it."""
    step: poly.Polynomial = {}
    invariant: poly.Polynomial = {}
    rest: poly.Polynomial = {}
    for monomial, k in poly.polynomial(index).items():
        count = sum(1 for a in monomial if a is atom)
        if count > 1:
            return
        if count:
            step[tuple(a for a in monomial if a is not atom)] = k
        elif _is_invariant(monomial, variant):
            invariant[monomial] = k
        else:
            rest[monomial] = k
    size = poly.expression(step)
    if not _is_invariant((size,), variant) or not can_prove_non_negative(size - 1, bounds):
        return
    decompositions = ((invariant, rest), ({}, poly.add(invariant, rest))) if invariant else (({}, rest),)
    is_unique = False
    for offset, r in decompositions:
        if _is_in_range(poly.expression(r), size, bounds):
            is_unique = True
            yield _LinearForm(size, poly.expression(offset), None)
        if extent is not None:
            period = size * extent
            inner = {m: k for m, k in r.items() if not _is_multiple({m: k}, period)}
            if len(inner) < len(r) and _is_in_range(poly.expression(inner), size, bounds):
                is_unique = True
                yield _LinearForm(size, poly.expression(offset), period)
    for offset, r in decompositions if not is_unique else ():
        for period in _candidate_periods(r, variant):
            inner = poly.expression({m: k for m, k in r.items() if not _is_multiple({m: k}, period)})
            if _is_in_range(inner, size, bounds) and can_prove_lt(size * atom + inner, period, bounds):
                yield _LinearForm(size, poly.expression(offset), period)


def _candidate_periods(p: poly.Polynomial, variant: frozenset[Var]) -> Iterator[Expr]:
    """The steps of the other variant loops, as periods within which conditions may keep the index."""
    for monomial, k in p.items():
        loops = [a for a in monomial if isinstance(a, Var) and a in variant]
        if len(loops) == 1:
            step = poly.drop_atom(monomial, loops[0])
            if _is_invariant(step, variant):
                yield poly.expression({step: k})


def _is_invariant(monomial: poly.Monomial, variant: frozenset[Var]) -> bool:
    """Whether a product is loop-invariant: made of symbols and fixed variables, without loads."""
    return all(not loads(a) and not free_vars(a) & variant for a in monomial)


def _is_multiple(term: poly.Polynomial, period: Expr) -> bool:
    e = poly.expression(term)
    return (e // period) * period is e


def _is_in_range(r: Expr, size: Expr, bounds: Bounds) -> bool:
    return can_prove_non_negative(r, bounds) and can_prove_lt(r, size, bounds)
