"""Initialisers of accumulators: which reductions they initialise and which partial results they clobber."""

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
    """Whether the value of a store depends on the previous value of its element."""
    return Load(store.buffer, store.indices) in loads(store.value)


def initializes(context: BlockContext, buffer: Buffer, only: bool = False) -> bool:
    """Whether a block stores values in a buffer that do not depend on its previous contents.

    Args:
        context: the block.
        buffer: the buffer.
        only: whether blocks that also accumulate (inits of reductions) do not count.
    """
    if context.block.body.buffer != buffer:
        return False
    return not is_update(context.block.body) or (context.block.init is not None and not only)


def is_initializer_of(initializer: BlockContext, context: BlockContext) -> bool:
    """Whether a block initialises the accumulator of another one wherever that one runs.

    An init of a reduction counts only if the reduction is proved to be nonempty there.
    """
    if not initializes(initializer, context.block.body.buffer):
        return False
    return initializer.block.init is None or (
        has_reduction_start(initializer) and has_reduction_points(initializer, context.bounds)
    )


def count_loops_shared_with_init(context: BlockContext, contexts: Sequence[BlockContext]) -> int:
    """How many loops a block shares with the initialisers of its accumulator: every iteration of these starts anew.

    The last initialiser decides if it is proved to cover all elements; else earlier ones may initialise some.
    """
    free: int | None = None
    for initializer in _initializers(context, contexts[: contexts.index(context)]):
        shared = count_shared_loops(context, initializer)
        if stores_are_disjoint(initializer, context, 0):
            continue
        free = shared if free is None else min(free, shared)
        if is_covered_by(context, [initializer]):
            break
    return free or 0


def find_clobbering_init(context: BlockContext, contexts: Sequence[BlockContext]) -> BlockContext | None:
    """A block that may reinitialise partial sums from other iterations of the loops that it shares with the reduction.

    None where there is none. Inits of reductions are not considered: `reduction_parts.py` checks them.
    """
    buffer = context.block.body.buffer
    return next(
        (
            c
            for c in _initializers(context, contexts)
            if initializes(c, buffer, True) and not _preserves_partial_sums(c, context)
        ),
        None,
    )


def find_overwrite(context: BlockContext, contexts: Sequence[BlockContext], full_domain: bool) -> BlockContext | None:
    """A later block that overwrites the sums of a reduction, so that they are lost; None where there is none.

    Overwriting is allowed where all the elements are proved to be accumulated into again afterwards, or to be read
    before; the latter does not count where the buffer must hold the sums at the end (`full_domain`).
    """
    buffer, start = context.block.body.buffer, contexts.index(context)
    for k, initializer in enumerate(contexts[start + 1 :], start + 1):
        if not initializes(initializer, buffer, True) or stores_are_disjoint(context, initializer, 0):
            continue
        later = (c for c in contexts[k + 1 :] if c.block.body.buffer == buffer)
        updates = [c for c in later if match_accumulation(c.block.body) is not None]
        if updates and is_covered_by(initializer, updates):
            continue
        reads = [] if full_domain else [r for c in contexts[start + 1 : k] for r in _reads_as_stores(c, buffer)]
        if not reads or not is_covered_by(context, reads):
            return initializer
    return None


def _reads_as_stores(context: BlockContext, buffer: Buffer) -> Iterator[BlockContext]:
    """The unconditional reads of a buffer by a block that does not write it, each turned into a store."""
    if context.block.body.buffer != buffer:
        for a in accesses(context.block):
            if a.buffer == buffer and a.condition is TRUE:
                body = Store(buffer, a.indices, context.block.body.value)
                yield BlockContext(
                    replace(context.block, body=body, init=None), context.loops, context.bindings, context.bounds
                )


def _initializers(context: BlockContext, contexts: Sequence[BlockContext]) -> Iterator[BlockContext]:
    """The initialisers of the buffer that a block accumulates into, last first."""
    return (c for c in reversed(contexts) if c is not context and initializes(c, context.block.body.buffer))


def is_initialized(context: BlockContext, between: Sequence[BlockContext]) -> bool:
    """Whether all elements that a block accumulates into are proved to be initialised by `between` or its own init."""
    buffer = context.block.body.buffer
    initializers = [
        c for c in between if initializes(c, buffer, True) or (initializes(c, buffer) and has_reduction_start(c))
    ]
    return context in initializers or (bool(initializers) and is_covered_by(context, initializers))


def _preserves_partial_sums(initializer: BlockContext, context: BlockContext) -> bool:
    """Whether an initialiser, in an iteration of the shared loops, leaves the partial sums of other iterations alone.

    It does where it stores only elements that this iteration accumulates into, or where all iterations store the same.
    """
    shared = count_shared_loops(initializer, context)
    if all(_identifies_or_is_invariant(k, initializer, context) for k in range(shared)):
        return True
    return is_covered_by(initializer, [context]) or stores_are_disjoint(initializer, context, 0)


def _identifies_or_is_invariant(k: int, a: BlockContext, b: BlockContext) -> bool:
    """Whether the elements that two blocks store identify the iteration of the k-th loop, or are invariant in it."""
    loop = a.loops[k]
    if isinstance(loop.extent, Const) and loop.extent.value <= 1:
        return True
    if not _may_vary(loop, a) and not _may_vary(loop, b):
        return True
    return identifies_iteration(store_keys(a, k) & store_keys(b, k))


def _may_vary(loop: For, context: BlockContext) -> bool:
    """Whether the elements that a block stores may differ between iterations of a loop."""
    exprs = [
        *(context.over_loops(i) for i in context.block.body.indices),
        context.block.predicate,
        *(x.extent for x in context.loops),
    ]
    return any(loop.var in free_vars(e) or loads(e) for e in exprs)
