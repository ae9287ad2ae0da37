"""Statements whose accesses to a buffer go to another one."""

from collections.abc import Callable
from dataclasses import replace

from tilewright.expr.nodes import Buffer, Expr, Load
from tilewright.expr.traversal import replace_loads
from tilewright.loops.access import accesses
from tilewright.loops.ir import Block, For, If, Seq, Stmt, Store, map_children

Reindex = Callable[[tuple[Expr, ...]], tuple[Expr, ...]]
"""From the indices of an element of the old buffer to those in the new one."""


def redirect_accesses(block: Block, old: Buffer, new: Buffer, index: Reindex) -> Block:
    """A block whose accesses to `old` go to `new`, reindexed."""
    if all(a.buffer != old for a in accesses(block)):
        return block

    def load(node: Load) -> Expr:
        return Load(new, index(node.indices)) if node.buffer == old else node

    def store(s: Store) -> Store:
        indices = tuple(replace_loads(i, load) for i in s.indices)
        target, indices = (new, index(indices)) if s.buffer == old else (s.buffer, indices)
        return Store(target, indices, replace_loads(s.value, load))

    return replace(block, body=store(block.body), init=None if block.init is None else store(block.init))


def redirect_accesses_in(s: Stmt, old: Buffer, new: Buffer, index: Reindex = lambda i: i) -> Stmt:
    """`s` with all accesses to `old`, prefetches included, redirected to `new`."""
    match s:
        case For():
            hints = tuple(Load(new, index(p.indices)) if p.buffer == old else p for p in s.prefetches)
            body = redirect_accesses_in(s.body, old, new, index)
            return s if body is s.body and hints == s.prefetches else replace(s, body=body, prefetches=hints)
        case Seq() | If():
            return map_children(s, lambda c: redirect_accesses_in(c, old, new, index))
        case Block():
            return redirect_accesses(s, old, new, index)
