"""Blocks that give the elements of an accumulator their first values: which sums they begin, and which they destroy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.expr.nodes import TRUE, Buffer, Const, Load
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.access import accesses
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import For, Store
from tilewright.verify.peeled_blocks import count_shared_loops
from tilewright.verify.races import identifies_iteration, store_keys
from tilewright.verify.region_cover import has_reduction_points, has_reduction_start, is_covered_by
from tilewright.verify.store_aliasing import stores_are_disjoint


def is_update(store: Store) -> bool:
    """Whether what a store leaves in its element depends on what was in it."""
    return Load(store.buffer, store.indices) in loads(store.value)


def initializes(nest: BlockContext, buffer: Buffer, only: bool = False) -> bool:
    """Whether a block stores values in a buffer that do not depend on what was there; `only`: and does nothing else."""
    if nest.block.body.buffer != buffer:
        return False
    return not is_update(nest.block.body) or (nest.block.init is not None and not only)


def is_initializer_of(giver: BlockContext, nest: BlockContext) -> bool:
    """Whether a block gives first values to the buffer that another one adds to wherever that one runs: by an init only
    if its part of the reduction is proved not to be empty there."""
    if not initializes(giver, nest.block.body.buffer):
        return False
    return giver.block.init is None or (has_reduction_start(giver) and has_reduction_points(giver, nest.bounds))


def count_loops_shared_with_init(nest: BlockContext, nests: Sequence[BlockContext]) -> int:
    """How many loops a block shares with whatever gives the elements that it adds to their first values: in every
    iteration of these, all of them begin anew.

    The last giver tells if it is proved to give them all; else those before it may have given some.
    """
    free: int | None = None
    for giver in _initializers(nest, nests[: nests.index(nest)]):
        shared = count_shared_loops(nest, giver)
        if stores_are_disjoint(giver, nest, 0):
            continue
        free = shared if free is None else min(free, shared)
        if is_covered_by(nest, [giver]):
            break
    return free or 0


def find_clobbering_init(nest: BlockContext, nests: Sequence[BlockContext]) -> BlockContext | None:
    """A block that shares loops with one that accumulates and may there give first values to what another of their
    iterations collected; None where there is none. What inits inside of parts do is another question."""
    buffer = nest.block.body.buffer
    return next(
        (
            n
            for n in _initializers(nest, nests)
            if initializes(n, buffer, True) and not _preserves_partial_sums(n, nest)
        ),
        None,
    )


def find_overwrite(nest: BlockContext, nests: Sequence[BlockContext], whole: bool) -> BlockContext | None:
    """A block that stores other values over what one accumulated, so that the sum is lost; None where there is none.

    It may where the elements are proved to collect again afterwards, or where other blocks are proved to have read all
    that was collected; the latter does not count where the buffer must hold the sum in the end (`whole`).
    """
    buffer, place = nest.block.body.buffer, nests.index(nest)
    for k, giver in enumerate(nests[place + 1 :], place + 1):
        if not initializes(giver, buffer, True) or stores_are_disjoint(nest, giver, 0):
            continue
        again = [
            n for n in nests[k + 1 :] if n.block.body.buffer == buffer and match_accumulation(n.block.body) is not None
        ]
        if again and is_covered_by(giver, again):
            continue
        read = [] if whole else [r for n in nests[place + 1 : k] for r in _reads_as_stores(n, buffer)]
        if not read or not is_covered_by(nest, read):
            return giver
    return None


def _reads_as_stores(nest: BlockContext, buffer: Buffer) -> Iterator[BlockContext]:
    """What a block that does not change a buffer reads of it wherever it runs, each as if it were what it stores."""
    if nest.block.body.buffer != buffer:
        for a in accesses(nest.block):
            if a.buffer == buffer and a.condition is TRUE:
                body = Store(buffer, a.indices, nest.block.body.value)
                yield BlockContext(replace(nest.block, body=body, init=None), nest.loops, nest.bindings, nest.bounds)


def _initializers(nest: BlockContext, nests: Sequence[BlockContext]) -> Iterator[BlockContext]:
    """The blocks that give values to the buffer that another one adds to; the last first."""
    return (n for n in reversed(nests) if n is not nest and initializes(n, nest.block.body.buffer))


def is_initialized(nest: BlockContext, between: Sequence[BlockContext]) -> bool:
    """Whether all elements that a block adds to are proved to get first values from some blocks, or its own init."""
    buffer = nest.block.body.buffer
    found = [n for n in between if initializes(n, buffer, True) or (initializes(n, buffer) and has_reduction_start(n))]
    return nest in found or (bool(found) and is_covered_by(nest, found))


def _preserves_partial_sums(giver: BlockContext, nest: BlockContext) -> bool:
    """Whether what a giver stores in an iteration of the shared loops is only what that iteration collects in, or what
    every iteration does."""
    shared = count_shared_loops(giver, nest)
    if all(_identifies_or_is_invariant(k, giver, nest) for k in range(shared)):
        return True
    return is_covered_by(giver, [nest]) or stores_are_disjoint(giver, nest, 0)


def _identifies_or_is_invariant(k: int, a: BlockContext, b: BlockContext) -> bool:
    """Whether elements tell the iteration of the k-th loop alike in two blocks, or are the same in all of them."""
    loop = a.loops[k]
    if isinstance(loop.extent, Const) and loop.extent.value <= 1:
        return True
    if not _may_vary(loop, a) and not _may_vary(loop, b):
        return True
    return identifies_iteration(store_keys(a, k) & store_keys(b, k))


def _may_vary(loop: For, nest: BlockContext) -> bool:
    """Whether other iterations of a loop may store other elements."""
    said = [
        *(nest.over_loops(i) for i in nest.block.body.indices),
        nest.block.predicate,
        *(x.extent for x in nest.loops),
    ]
    return any(loop.var in free_vars(e) or loads(e) for e in said)
