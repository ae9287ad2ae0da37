"""Blocks that give the elements of an accumulator their first values: which sums they begin, and which they destroy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import TRUE, Const, Load, free_vars, loads
from tilewright.loops.access import accesses
from tilewright.loops.boxes import begins, given, not_empty
from tilewright.loops.elements import elements_apart
from tilewright.loops.interpret import accumulated
from tilewright.loops.ir import For, Store
from tilewright.loops.nest import Nest
from tilewright.loops.races import store_keys, tells
from tilewright.loops.siblings import shared_loops


def updates(store: Store) -> bool:
    """Whether what a store leaves in its element depends on what was in it."""
    return Load(store.buffer, store.indices) in loads(store.value)


def gives(nest: Nest, buffer: Buffer, only: bool = False) -> bool:
    """Whether a block stores values in a buffer that do not depend on what was there; `only`: and does nothing else."""
    if nest.block.body.buffer != buffer:
        return False
    return not updates(nest.block.body) or (nest.block.init is not None and not only)


def starts(giver: Nest, nest: Nest) -> bool:
    """Whether a block gives first values to the buffer that another one adds to wherever that one runs: by an init only
    if its part of the reduction is proved not to be empty there."""
    if not gives(giver, nest.block.body.buffer):
        return False
    return giver.block.init is None or (begins(giver) and not_empty(giver, nest.known))


def shared_with_init(nest: Nest, nests: Sequence[Nest]) -> int:
    """How many loops a block shares with whatever gives the elements that it adds to their first values: in every
    iteration of these, all of them begin anew.

    The last giver tells if it is proved to give them all; else those before it may have given some.
    """
    free: int | None = None
    for giver in _givers(nest, nests[: nests.index(nest)]):
        shared = shared_loops(nest, giver)
        if elements_apart(giver, nest, 0):
            continue
        free = shared if free is None else min(free, shared)
        if given(nest, [giver]):
            break
    return free or 0


def wiped(nest: Nest, nests: Sequence[Nest]) -> Nest | None:
    """A block that shares loops with one that accumulates and may there give first values to what another of their
    iterations collected; None where there is none. What inits inside of parts do is another question."""
    buffer = nest.block.body.buffer
    return next((n for n in _givers(nest, nests) if gives(n, buffer, True) and not _spares(n, nest)), None)


def overwritten(nest: Nest, nests: Sequence[Nest], whole: bool) -> Nest | None:
    """A block that stores other values over what one accumulated, so that the sum is lost; None where there is none.

    It may where the elements are proved to collect again afterwards, or where other blocks are proved to have read all
    that was collected; the latter does not count where the buffer must hold the sum in the end (`whole`).
    """
    buffer, place = nest.block.body.buffer, nests.index(nest)
    for k, giver in enumerate(nests[place + 1 :], place + 1):
        if not gives(giver, buffer, True) or elements_apart(nest, giver, 0):
            continue
        again = [n for n in nests[k + 1 :] if n.block.body.buffer == buffer and accumulated(n.block.body) is not None]
        if again and given(giver, again):
            continue
        read = [] if whole else [r for n in nests[place + 1 : k] for r in _as_stores(n, buffer)]
        if not read or not given(nest, read):
            return giver
    return None


def _as_stores(nest: Nest, buffer: Buffer) -> Iterator[Nest]:
    """What a block that does not change a buffer reads of it wherever it runs, each as if it were what it stores."""
    if nest.block.body.buffer != buffer:
        for a in accesses(nest.block):
            if a.buffer == buffer and a.condition is TRUE:
                body = Store(buffer, a.indices, nest.block.body.value)
                yield Nest(replace(nest.block, body=body, init=None), nest.loops, nest.bindings, nest.known)


def _givers(nest: Nest, nests: Sequence[Nest]) -> Iterator[Nest]:
    """The blocks that give values to the buffer that another one adds to; the last first."""
    return (n for n in reversed(nests) if n is not nest and gives(n, nest.block.body.buffer))


def begun(nest: Nest, between: Sequence[Nest]) -> bool:
    """Whether all elements that a block adds to are proved to get first values from some blocks, or its own init."""
    buffer = nest.block.body.buffer
    found = [n for n in between if gives(n, buffer, True) or (gives(n, buffer) and begins(n))]
    return nest in found or (bool(found) and given(nest, found))


def _spares(giver: Nest, nest: Nest) -> bool:
    """Whether what a giver stores in an iteration of the shared loops is only what that iteration collects in, or what
    every iteration does."""
    shared = shared_loops(giver, nest)
    if all(_told_or_unmoved(k, giver, nest) for k in range(shared)):
        return True
    return given(giver, [nest]) or elements_apart(giver, nest, 0)


def _told_or_unmoved(k: int, a: Nest, b: Nest) -> bool:
    """Whether elements tell the iteration of the k-th loop alike in two blocks, or are the same in all of them."""
    loop = a.loops[k]
    if isinstance(loop.extent, Const) and loop.extent.value <= 1:
        return True
    if not _moves(loop, a) and not _moves(loop, b):
        return True
    return tells(store_keys(a, k) & store_keys(b, k))


def _moves(loop: For, nest: Nest) -> bool:
    """Whether other iterations of a loop may store other elements."""
    said = [*(nest.bound(i) for i in nest.block.body.indices), nest.block.predicate, *(x.extent for x in nest.loops)]
    return any(loop.var in free_vars(e) or loads(e) for e in said)
