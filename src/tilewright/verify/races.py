"""Races: whether iterations of concurrent loops (parallel, on an axis, vectorized, vthread) are independent.

For every buffer that is written inside such a loop and lives outside it, all accesses inside must tell the iteration
from the element alone, in the same way: two accesses to one element then belong to one iteration. An index tells the
iteration p where it is c*p + r + fixed with 0 <= r < c, or a digit of p (`p // a`, `p % a`) so, provided that all
digits occur.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_le, can_prove_lt, can_prove_non_negative
from tilewright.expr.nodes import Buffer, Const, Expr, Load, MemoryScope, Var, const
from tilewright.expr.traversal import free_vars, loads
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
    """((index - fixed) // step) % period is the variable in question."""

    step: Expr
    offset: Expr
    period: Expr | None


@dataclass(frozen=True, slots=True)
class IterationKey:
    """How one dimension of an element tells (a digit of) the iteration."""

    axis: int
    index: _LinearForm
    lower_factor: Expr
    extent: Expr | None
    source: _LinearForm


_PRIVATE_SCOPES = (MemoryScope.REGISTER, MemoryScope.STACK)
"""The scopes of which every thread has its own. Lanes of a vector and iterations of a vthread loop share a thread's:
what they keep apart must be at different indices."""


def find_races(func: Func, contexts: Sequence[BlockContext]) -> Iterator[Diagnostic]:
    """The races of a function."""
    for s, _ in walk(func.body):
        if isinstance(s, For) and s.kind in CONCURRENT and not (isinstance(s.extent, Const) and s.extent.value <= 1):
            inside = [n for n in contexts if any(loop is s for loop in n.loops)]
            if all(can_prove_le(s.var, const(0), n.bounds) for n in inside):  # predicates leave one iteration
                continue
            yield from _find_concurrent_reductions(s, inside)
            touching: dict[Buffer, list[tuple[BlockContext, Access]]] = {n.block.body.buffer: [] for n in inside}
            for n in inside:
                for a in accesses(n.block):
                    if a.buffer in touching:
                        touching[a.buffer].append((n, a))
            for buffer, found in touching.items():
                yield from _find_buffer_races(s, buffer, found, inside, contexts)


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
    everywhere: Sequence[BlockContext],
) -> Iterator[Diagnostic]:
    """Races on a buffer that is written inside `loop`, by accesses to it in the blocks there.

    A private buffer is gone when the loop ends: what another iteration of a loop around it wrote is not in it.
    """
    if _is_private(loop, buffer, inside, everywhere):
        found = list(loop_carried_reads(loop, buffer, everywhere))
        if not found:
            return
        around = any(n.loops[0] is not loop for n in inside)
        if around or not any(_depends_on_loop(n, a, loop) for n, a in touching if a.is_write):
            yield from (
                Diagnostic(f"block {f.context.block.name!r}", _describe_read(f, loop), f.context.text) for f in found
            )
            return
    if loop.kind is LoopKind.VECTORIZED and all(_is_lane_reduction(n, loop) for n, _ in touching):
        operators = {None if (x := match_accumulation(n.block.body)) is None else x[0] for n, _ in touching}
        if len(operators) > 1:
            names = ", ".join(dict.fromkeys(repr(n.block.name) for n, _ in touching))
            what = f"lanes of {loop.var.name!r} are combined in different ways into {buffer.name!r} by blocks {names}"
            yield Diagnostic(f"loop {loop.var.name!r}", what, show_loop(loop))
        return
    # A block that accumulates reads and writes one element: one question.
    asked = {(id(n), a.indices, a.condition): (n, a) for n, a in touching}
    answers = {key: _access_keys(n, a, loop) for key, (n, a) in asked.items()}
    keys = [(n, a, answers[id(n), a.indices, a.condition]) for n, a in touching]
    common = _intersection([k for _, _, k in keys])
    if identifies_iteration(common):
        return
    for n, a, k in keys:
        if a.is_write and not identifies_iteration(k):
            what = f"iterations of {loop.kind} loop {loop.var.name!r} may write the same element"
            yield Diagnostic(
                f"block {n.block.name!r}", f"{what}: {Load(buffer, a.indices)}", n.text, shared_buffer=buffer
            )
            return
    for n, a, k in keys:
        if not identifies_iteration(k):
            what = f"may read an element that another iteration of {loop.kind} loop {loop.var.name!r} writes"
            yield Diagnostic(f"block {n.block.name!r}", f"{what}: {Load(buffer, a.indices)}", n.text)
            return
    names = ", ".join(dict.fromkeys(repr(n.block.name) for n, _, _ in keys))
    what = f"accesses to {buffer.name!r} of blocks {names} are not proved to stay in one iteration"
    yield Diagnostic(f"loop {loop.var.name!r}", what, show_loop(loop))


def _is_private(loop: For, buffer: Buffer, inside: Sequence[BlockContext], everywhere: Sequence[BlockContext]) -> bool:
    """Whether every iteration has the buffer for itself, as threads have their stacks and registers."""
    if loop.kind not in THREADED or buffer.scope not in _PRIVATE_SCOPES:
        return False
    own = set(inside)  # a nest equals nothing but itself
    return not any(a.buffer == buffer for n in everywhere if n not in own for a in accesses(n.block))


def _describe_read(found: LoopCarriedRead, loop: For) -> str:
    """What is wrong with a read of a private buffer."""
    buffer = f"private buffer {found.access.buffer.name!r}"
    if found.reason is None:
        return f"reads {buffer} before this iteration of {loop.var.name!r} wrote it"
    if found.unmet_condition is not None:
        return f"reads {buffer} in iterations of {loop.var.name!r} that do not write it: {found.reason}"
    element = Load(found.access.buffer, found.access.indices)
    what = f"reads {element} of {buffer}, which this iteration of {loop.var.name!r} is not proved to have written"
    return f"{what}: {found.reason}"


def _depends_on_loop(context: BlockContext, a: Access, loop: For) -> bool:
    """Whether different iterations of the loop touch different elements (so one may read what another wrote)."""
    return any(loop.var in free_vars(context.over_loops(i)) for i in a.indices)


def _is_lane_reduction(context: BlockContext, loop: For) -> bool:
    """Whether the block is a reduction over the lanes of the loop, which are combined."""
    if match_accumulation(context.block.body) is None:
        return False
    driven = [i for i in context.block.iters if loop.var in free_vars(i.binding)]
    return bool(driven) and all(i.kind is IterKind.REDUCE for i in driven)


def iterations_are_disjoint(loop: For, buffer: Buffer, contexts: Sequence[BlockContext]) -> bool:
    """Whether it is proved that no element of a buffer is touched in two iterations of a loop of any kind.

    Loops around stand still: whether their iterations share elements is another question.
    """
    if isinstance(loop.extent, Const) and loop.extent.value <= 1:
        return True
    inside = [n for n in contexts if any(x is loop for x in n.loops)]
    touching = [_access_keys(n, a, loop) for n in inside for a in accesses(n.block) if a.buffer == buffer]
    return not touching or identifies_iteration(_intersection(touching))


def _intersection(sets: Sequence[frozenset[IterationKey]]) -> frozenset[IterationKey]:
    result = sets[0]
    for s in sets[1:]:
        result &= s
    return result


def identifies_iteration(keys: frozenset[IterationKey]) -> bool:
    """Whether the keys together determine the iteration."""
    sources = dict.fromkeys(k.source for k in keys)
    return any(
        splits_are_bijective((k.lower_factor, k.extent) for k in keys if k.source == source) for source in sources
    )


def _access_keys(context: BlockContext, a: Access, loop: For) -> frozenset[IterationKey]:
    position = next(k for k, x in enumerate(context.loops) if x is loop)
    # Parallel loops around a parallel loop run at the same time: their variables are not fixed either.
    while loop.kind is LoopKind.PARALLEL and position and context.loops[position - 1].kind is LoopKind.PARALLEL:
        position -= 1
    moving = frozenset(x.var for x in context.loops[position:])
    bounds = context.bounds.assuming(context.over_loops(a.condition))
    return iteration_keys(tuple(context.over_loops(i) for i in a.indices), loop.var, loop.extent, moving, bounds)


def store_keys(context: BlockContext, k: int, still: Collection[Var] = ()) -> frozenset[IterationKey]:
    """The ways in which the element that a block stores tells the iteration of the k-th loop around it, where only that
    and the loops inside change, but for those that stand `still`."""
    loop, moving = context.loops[k], frozenset(x.var for x in context.loops[k:] if x.var not in still)
    return iteration_keys(
        tuple(context.over_loops(i) for i in context.block.body.indices), loop.var, loop.extent, moving, context.bounds
    )


@lru_cache(maxsize=1 << 12)
def iteration_keys(
    indices: tuple[Expr, ...], var: Var, extent: Expr, moving: frozenset[Var], bounds: Bounds
) -> frozenset[IterationKey]:
    """The ways in which an element tells the iteration of the loop of `var`, which runs `extent` times, where only the
    variables `moving` change."""
    found: set[IterationKey] = set()
    for axis, index in enumerate(indices):
        atoms = {a: None for m in poly.polynomial(index) for a in m if var in free_vars(a)}
        if len(atoms) != 1:
            continue
        atom = next(iter(atoms))
        d = match_iter_split(atom)
        if d is None or not _is_invariant_split(d, moving) or not _has_positive_divisors(d, extent, bounds):
            continue
        sources = tuple(_linear_forms(d.source, var, extent, moving, bounds))
        whole = (
            extent if d.source is var and d.lower_factor is const(1) else None
        )  # the values of a digit without modulus
        linears = _linear_forms(index, atom, whole if d.extent is None else d.extent, moving, bounds) if sources else ()
        found.update(IterationKey(axis, x, d.lower_factor, d.extent, source) for x in linears for source in sources)
    return frozenset(found)


def _has_positive_divisors(d: IterSplit, extent: Expr, bounds: Bounds) -> bool:
    """Whether nothing is divided by zero: the divisors are proved positive, or divide the number of iterations."""
    divisors = [d.lower_factor] if d.extent is None else [d.lower_factor, d.extent]
    whole = poly.polynomial(extent)
    return all(can_prove_non_negative(x - 1, bounds) or not poly.divide(whole, poly.polynomial(x))[1] for x in divisors)


def _is_invariant_split(d: IterSplit, moving: frozenset[Var]) -> bool:
    used = free_vars(d.lower_factor) | (frozenset[Var]() if d.extent is None else free_vars(d.extent))
    return not used & moving and not loads(d.lower_factor)


def _linear_forms(
    index: Expr, atom: Expr, extent: Expr | None, moving: frozenset[Var], bounds: Bounds
) -> Iterator[_LinearForm]:
    """The ways to read `atom`, which takes `extent` values, from an index that is linear in it."""
    step: poly.Polynomial = {}
    still: poly.Polynomial = {}
    rest: poly.Polynomial = {}
    for monomial, k in poly.polynomial(index).items():
        count = sum(1 for a in monomial if a is atom)
        if count > 1:
            return
        if count:
            step[tuple(a for a in monomial if a is not atom)] = k
        elif _is_invariant(monomial, moving):
            still[monomial] = k
        else:
            rest[monomial] = k
    size = poly.expression(step)
    if not _is_invariant((size,), moving) or not can_prove_non_negative(size - 1, bounds):
        return
    ways = ((still, rest), ({}, poly.add(still, rest))) if still else (({}, rest),)
    told = False
    for offset, r in ways:
        if _is_in_range(poly.expression(r), size, bounds):
            told = True
            yield _LinearForm(size, poly.expression(offset), None)
        if extent is not None:
            period = size * extent
            inner = {m: k for m, k in r.items() if not _is_multiple({m: k}, period)}
            if len(inner) < len(r) and _is_in_range(poly.expression(inner), size, bounds):
                told = True
                yield _LinearForm(size, poly.expression(offset), period)
    for offset, r in ways if not told else ():
        for period in _candidate_periods(r, moving):
            inner = poly.expression({m: k for m, k in r.items() if not _is_multiple({m: k}, period)})
            if _is_in_range(inner, size, bounds) and can_prove_lt(size * atom + inner, period, bounds):
                yield _LinearForm(size, poly.expression(offset), period)


def _candidate_periods(p: poly.Polynomial, moving: frozenset[Var]) -> Iterator[Expr]:
    """The steps of the other loops: of one, conditions may keep the iterations of the loop in question apart."""
    for monomial, k in p.items():
        loops = [a for a in monomial if isinstance(a, Var) and a in moving]
        if len(loops) == 1:
            step = poly.drop_atom(monomial, loops[0])
            if _is_invariant(step, moving):
                yield poly.expression({step: k})


def _is_invariant(monomial: poly.Monomial, moving: frozenset[Var]) -> bool:
    """Whether a product does not change inside the loop: it is made of symbols and variables of outer loops."""
    return all(not loads(a) and not free_vars(a) & moving for a in monomial)


def _is_multiple(term: poly.Polynomial, period: Expr) -> bool:
    e = poly.expression(term)
    return (e // period) * period is e


def _is_in_range(r: Expr, size: Expr, bounds: Bounds) -> bool:
    return can_prove_non_negative(r, bounds) and can_prove_lt(r, size, bounds)
