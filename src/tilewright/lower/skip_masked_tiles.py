"""Skips fully masked tiles of attention: those of keys that a causal mask or a sliding window excludes as a whole.

    for k in serial(8):                              for k in serial(8):
        block S: S[..] = select(.., .., -inf)            if k * 128 <= i * 64 + 63:
        block m: m[..] = max(m[..], S[..])      ->           block S: ...
        block P: P[..] = exp(S[..] - m[..])                  ...
        block O: O[..] = O[..] + P[..] * V[..]           else:
                                                             block O_masked_total: ...
                                                             block O_masked_add: ...

The other arm adds 0 times the values, which is NaN where one of them is not finite, as it is without the branch. What
it consists of, and why it is the same, is in `verify/masked_iterations.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.expr.nodes import Buffer
from tilewright.loops.ir import Block, For, Func, If, LoopKind, Stmt, map_children, walk
from tilewright.verify.masked_iterations import masked_iterations


def skip_masked_tiles(func: Func) -> Func:
    """The function with branches around the iterations of serial loops whose scores may all be masked.

    Args:
        func: a scheduled function, without branches.
    """
    skipping = _Skipping(func)
    body = skipping.statement(func.body, ())
    return func if body is func.body else replace(func, body=body, allocs=(*func.allocs, *skipping.added))


@dataclass(slots=True)
class _Skipping:
    """The pass over one function.

    Attributes:
        func: the function.
        added: new buffers.
    """

    func: Func
    added: list[Buffer] = field(default_factory=list[Buffer])

    def statement(self, s: Stmt, enclosing: Sequence[For]) -> Stmt:
        """A statement in some loops."""
        match s:
            case Block():
                return s
            case For():
                found = masked_iterations(self.func, s, enclosing)
                if found is not None and self._is_new(found.rest, found.totals):
                    self.added += found.totals
                    return replace(s, body=If(found.is_live, s.body, found.rest))
                if s.kind is LoopKind.VECTORIZED:
                    return s
                body = self.statement(s.body, (*enclosing, s))
                return s if body is s.body else replace(s, body=body)
            case _:
                return map_children(s, lambda c: self.statement(c, enclosing))

    def _is_new(self, rest: Stmt, totals: Sequence[Buffer]) -> bool:
        """Whether the names of new buffers, blocks and loops are not taken."""
        taken = {x.name for x in (*self.func.params, *self.func.allocs, *self.added)}
        used = {x for s, _ in walk(self.func.body) for x in _names(s)}
        return taken.isdisjoint(b.name for b in totals) and used.isdisjoint(x for s, _ in walk(rest) for x in _names(s))


def _names(s: Stmt) -> tuple[str, ...]:
    """The names that a statement defines, without those inside of it."""
    if isinstance(s, For):
        return (s.var.name,)
    return (s.name, *(i.var.name for i in s.iters)) if isinstance(s, Block) else ()
