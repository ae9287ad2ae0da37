"""Blocks over fused variables: where several variables are digits of one index, that index is their one variable.

    block B(v0: M = f // 31, v1: 31 = f % 31)      becomes      block B(v: M*31 = f)

The points of both domains correspond one to one, so a block covers the one exactly where it covers the other. Parts of
a fused loop that was cut in the middle of a row are a box only so.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import BlockIter, IterKind, Store
from tilewright.verify.iter_split import IterSplit, match_iter_split


def fuse_iters(contexts: Sequence[BlockContext]) -> tuple[BlockContext, ...]:
    """The blocks over fused variables, in the same order; those of one buffer and domain have theirs fused alike.
    Bindings are simplified before.

    The bindings must be proved to stay in their domains.
    """
    contexts = [_simplify_bindings(context) for context in contexts]
    chains: dict[object, tuple[int, ...]] = {}
    for context in contexts:
        for kind in IterKind:
            chain = _fusable_iters([i for i in context.block.iters if i.kind is kind])
            key = _domain_key(context, kind)
            if len(chain) > len(chains.get(key, ())):
                chains[key] = chain
    if not any(chains.values()):
        return tuple(contexts)
    result = contexts
    for kind in IterKind:
        result = [
            _fuse(n, kind, chains.get(_domain_key(old, kind), ())) for n, old in zip(result, contexts, strict=True)
        ]
    return fuse_iters(result)


def _simplify_bindings(context: BlockContext) -> BlockContext:
    """The block with bindings that are as simple as its loops and its predicate allow: `i % 8` where i < 8 is `i`."""
    bindings = [simplify(i.binding, context.bounds) for i in context.block.iters]
    if all(e is i.binding for e, i in zip(bindings, context.block.iters, strict=True)):
        return context
    iters = tuple(replace(i, binding=e) for i, e in zip(context.block.iters, bindings, strict=True))
    return BlockContext.of(replace(context.block, iters=iters), context.loops)


def _domain_key(context: BlockContext, kind: IterKind) -> object:
    return context.block.body.buffer, kind, tuple(i.extent for i in context.block.iters if i.kind is kind)


def _fusable_iters(iters: Sequence[BlockIter]) -> tuple[int, ...]:
    """Places of variables that are neighbouring digits of one index, the lowest first: as many as there are."""
    found = [(k, d) for k, i in enumerate(iters) if (d := match_iter_split(i.binding)) is not None]
    by_lower: dict[tuple[Expr, Expr], tuple[int, IterSplit]] = {(d.source, d.lower_factor): (k, d) for k, d in found}
    best: tuple[int, ...] = ()
    for place, d in found:
        chain = [place]
        # The next digit counts how often this one, which takes all its values, starts again.
        while d.extent is not None and d.extent is iters[place].extent:
            following = by_lower.get((d.source, d.lower_factor * d.extent))
            if following is None or following[0] in chain:
                break
            place, d = following
            chain.append(place)
        best = max(best, tuple(chain), key=len)
    return best if len(best) > 1 else ()


def _fuse(context: BlockContext, kind: IterKind, chain: Sequence[int]) -> BlockContext:
    """The block with one variable for those at the places `chain` of a kind, the lowest digit first."""
    if not chain:
        return context
    block = context.block
    mine = [i for i in block.iters if i.kind is kind]
    parts = [mine[k] for k in chain]
    v = Var("+".join(i.var.name for i in parts))
    radix: Expr = const(1)
    binding: Expr = const(0)
    old: dict[Var, Expr] = {}
    for i in parts:
        binding = binding + i.binding * radix
        old[i.var] = v // radix if i is parts[-1] else v // radix % i.extent
        radix = radix * i.extent
    one = BlockIter(v, radix, kind, binding)
    first = min(parts, key=block.iters.index)
    iters = tuple(one if i is first else i for i in block.iters if i is first or i not in parts)
    init = None if block.init is None else _substitute_store(block.init, old)
    return BlockContext.of(
        replace(block, iters=iters, body=_substitute_store(block.body, old), init=init), context.loops
    )


def _substitute_store(store: Store, values: dict[Var, Expr]) -> Store:
    indices = tuple(substitute(i, values) for i in store.indices)
    return Store(store.buffer, indices, substitute(store.value, values))
