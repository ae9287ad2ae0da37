"""Compound sizes become symbols of the kernel: [(h + 15)//16, w*2] is handed over as [n0, w*2] with n0 computed by the caller.

Proofs about products and quotients of loops then meet variables where they would meet nested divisions, code is smaller, and layers
that differ only in how their sizes come about share one kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.bounds import interval
from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, Expr, Load, Var, free_vars, walk

_POLYNOMIAL = ("add", "sub", "mul")


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A kernel over symbols of its own.

    Attributes:
        stages: the computations.
        params: the parameters.
        sizes: the value of every new symbol over the program's.
        related: whether sizes that were related have become independent, so that some proofs may be lost.
    """

    stages: tuple[Computation, ...]
    params: tuple[Buffer, ...]
    sizes: Mapping[Var, Expr]
    related: bool


def with_own_sizes(stages: Sequence[Computation], params: Sequence[Buffer], symbols: Sequence[Var]) -> Sized:
    """Replaces every compound size (a quotient, remainder, minimum, ... of symbols) by a symbol with the same range."""
    known = frozenset(symbols)
    found: dict[Expr, Var] = {}

    def symbol(e: Expr) -> Expr:
        if e not in found:
            low, high = interval(e)
            found[e] = Var(f"n{len(found)}", low, high)
        return found[e]

    change = _Rewriter(known, symbol)
    new_params = tuple(change.buffer(p) for p in params)
    new_stages = tuple(change.stage(s) for s in stages)
    sizes = {v: e for e, v in found.items()}
    return Sized(new_stages, new_params, sizes, _related(new_stages, new_params, sizes))


def _related(stages: Sequence[Computation], params: Sequence[Buffer], sizes: Mapping[Var, Expr]) -> bool:
    """Whether a symbol of the program has a part in two symbols of the kernel, itself included."""
    expressions = [n for b in (*params, *(s.output for s in stages)) for n in b.shape]
    expressions += [a.extent for s in stages for a in (*s.axes, *s.reduce_axes)] + [s.body for s in stages]
    used = {v for e in expressions for v in free_vars(e)}
    parts = [v for own in sorted(used, key=lambda v: v.name) for v in free_vars(sizes.get(own, own))]
    return len(parts) != len(set(parts))


class _Rewriter:
    """Applies `symbol` to the largest compound parts that are made of symbols alone."""

    def __init__(self, known: frozenset[Var], symbol: Callable[[Expr], Expr]) -> None:
        self._known, self._symbol = known, symbol
        self._done: dict[Expr, Expr] = {}
        self._closed: dict[Expr, bool] = {}
        self._buffers: dict[Buffer, Buffer] = {}

    def buffer(self, b: Buffer) -> Buffer:
        if b not in self._buffers:
            self._buffers[b] = replace(b, shape=tuple(self.expression(n) for n in b.shape))
        return self._buffers[b]

    def stage(self, s: Computation) -> Computation:
        def axis(a: Axis) -> Axis:
            return Axis(a.var, self.expression(a.extent))

        axes, inner = tuple(map(axis, s.axes)), tuple(map(axis, s.reduce_axes))
        return replace(s, output=self.buffer(s.output), axes=axes, reduce_axes=inner, body=self.expression(s.body))

    def expression(self, e: Expr) -> Expr:
        for node in walk(e):
            if node not in self._closed:
                self._closed[node] = self._is_closed(node)
        return self._rewritten(e)

    def _is_closed(self, e: Expr) -> bool:
        if isinstance(e, Var):
            return e in self._known
        return not isinstance(e, Load) and all(self._closed[c] for c in e.children())

    def _rewritten(self, e: Expr) -> Expr:
        if e not in self._done:
            polynomial = isinstance(e, Binary) and e.op in _POLYNOMIAL
            compound = self._closed[e] and e.dtype == int64 and bool(e.children()) and not polynomial
            if compound and free_vars(e):
                self._done[e] = self._symbol(e)
            else:
                old = e.children()
                new = tuple(self._rewritten(c) for c in old)
                if isinstance(e, Load):
                    self._done[e] = Load(self.buffer(e.buffer), new)
                else:
                    same = all(a is b for a, b in zip(old, new, strict=True))
                    self._done[e] = e if same else e.rebuild(new)
        return self._done[e]
