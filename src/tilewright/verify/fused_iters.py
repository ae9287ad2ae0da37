"""Blocks over fused iteration variables: several splits of one index are replaced by that index.

    block B(v0: M = f // 31, v1: 31 = f % 31)      becomes      block B(v: M*31 = f)

The points of the two domains correspond one to one, so covering one is covering the other. Parts of a fused loop that
was split in the middle of a row are boxes only over fused variables.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import BlockIter, IterKind, Store
from tilewright.verify.iter_split import IterSplit, match_iter_split


def fuse_iters(contexts: Sequence[BlockContext]) -> tuple[BlockContext, ...]:
    """The blocks over fused variables, in the same order, with simplified bindings.

    Blocks with one buffer and domain are fused in the same way. The bindings must be proved to stay in their domains.
    """
    contexts = [_simplify_bindings(context) for context in contexts]
    positions_by_key: dict[object, tuple[int, ...]] = {}
    for context in contexts:
        for kind in IterKind:
            positions = _fusable_iters([i for i in context.block.iters if i.kind is kind])
            key = _domain_key(context, kind)
            if len(positions) > len(positions_by_key.get(key, ())):
                positions_by_key[key] = positions
    if not any(positions_by_key.values()):
        return tuple(contexts)
    result = contexts
    for kind in IterKind:
        result = [
            _fuse(c, kind, positions_by_key.get(_domain_key(old, kind), ()))
            for c, old in zip(result, contexts, strict=True)
        ]
    return fuse_iters(result)


def _simplify_bindings(context: BlockContext) -> BlockContext:
    """The block with bindings simplified under its loops and predicate: `i % 8` where i < 8 is `i`."""
    bindings = [simplify(i.binding, context.bounds) for i in context.block.iters]
    if all(e is i.binding for e, i in zip(bindings, context.block.iters, strict=True)):
        return context
    iters = tuple(replace(i, binding=e) for i, e in zip(context.block.iters, bindings, strict=True))
    return BlockContext.of(replace(context.block, iters=iters), context.loops)


def _domain_key(context: BlockContext, kind: IterKind) -> object:
    return context.block.body.buffer, kind, tuple(i.extent for i in context.block.iters if i.kind is kind)


def _fusable_iters(iters: Sequence[BlockIter]) -> tuple[int, ...]:
    """The positions of the longest chain of variables that are adjacent splits of one index, the lowest first."""
    splits = [(k, split) for k, i in enumerate(iters) if (split := match_iter_split(i.binding)) is not None]
    by_lower: dict[tuple[Expr, Expr], tuple[int, IterSplit]] = {
        (split.source, split.lower_factor): (k, split) for k, split in splits
    }
    best: tuple[int, ...] = ()
    for position, split in splits:
        positions = [position]
        # The next split counts the repetitions of this one, which takes all values of its domain.
        while split.extent is not None and split.extent is iters[position].extent:
            next_split = by_lower.get((split.source, split.lower_factor * split.extent))
            if next_split is None or next_split[0] in positions:
                break
            position, split = next_split
            positions.append(position)
        best = max(best, tuple(positions), key=len)
    return best if len(best) > 1 else ()


def _fuse(context: BlockContext, kind: IterKind, positions: Sequence[int]) -> BlockContext:
    """The block with one variable in place of those at some positions among a kind, the lowest split first."""
    if not positions:
        return context
    block = context.block
    iters_of_kind = [i for i in block.iters if i.kind is kind]
    parts = [iters_of_kind[k] for k in positions]
    v = Var("+".join(i.var.name for i in parts))
    radix: Expr = const(1)
    binding: Expr = const(0)
    old: dict[Var, Expr] = {}
    for i in parts:
        binding = binding + i.binding * radix
        old[i.var] = v // radix if i is parts[-1] else v // radix % i.extent
        radix = radix * i.extent
    fused = BlockIter(v, radix, kind, binding)
    first = min(parts, key=block.iters.index)
    iters = tuple(fused if i is first else i for i in block.iters if i is first or i not in parts)
    init = None if block.init is None else _substitute_store(block.init, old)
    return BlockContext.of(
        replace(block, iters=iters, body=_substitute_store(block.body, old), init=init), context.loops
    )


def _substitute_store(store: Store, values: dict[Var, Expr]) -> Store:
    indices = tuple(substitute(i, values) for i in store.indices)
    return Store(store.buffer, indices, substitute(store.value, values))
