"""Canonical names, so that kernels that are equal up to names share one schedule and one piece of object code.

Parameters become p0, p1, ..., internal buffers t0, ... (in the order of first use), symbols s0, ... (likewise), loops
i0, ..., iteration variables v0, ..., blocks b0, ..., the function `kernel`. Index expressions are simplified again
under the new names, because the order of their terms depends on names. The text of the result is the kernel's identity.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.traversal import post_order as walk_expr
from tilewright.loops.access import accesses
from tilewright.loops.ir import Block, BlockIter, For, Func, Seq, Stmt, Store, seq, walk


@dataclass(frozen=True, slots=True)
class Canonical:
    """A function under canonical names.

    Attributes:
        func: the renamed function; it takes the parameters in the old order, and only the symbols that it uses.
        symbols: the old symbol for each of `func.symbols`.
    """

    func: Func
    symbols: tuple[Var, ...]


def canonicalized(func: Func) -> Canonical:
    """The function under canonical names, with what its symbols were before."""
    symbols = tuple(v for v in _variables(func) if v in func.symbols)
    names = _Names()
    for k, v in enumerate(symbols):
        names.variables[v] = v.renamed(f"s{k}")
    allocs = tuple(b for b in _used_buffers(func) if b in func.allocs)
    allocs = (*allocs, *(b for b in func.allocs if b not in allocs))
    for prefix, buffers in (("p", func.params), ("t", allocs)):
        for k, b in enumerate(buffers):
            names.buffers[b] = replace(b, name=f"{prefix}{k}", shape=tuple(names.expr(n) for n in b.shape))
    body = _renamed(func.body, names)
    result = Func(
        "kernel",
        tuple(names.buffers[b] for b in func.params),
        tuple(v.renamed(f"s{k}") for k, v in enumerate(symbols)),
        tuple(names.buffers[b] for b in allocs),
        body,
    )
    return Canonical(result, symbols)


def _expressions(func: Func) -> Iterable[Expr]:
    """Every expression of a function in a fixed order."""
    for b in func.params:
        yield from b.shape
    for s, _ in walk(func.body):
        if isinstance(s, For):
            yield from (s.extent, *s.prefetches)
        elif isinstance(s, Block):
            for i in s.iters:
                yield from (i.extent, i.binding)
            yield s.predicate
            for store in (s.init, s.body):
                if store is not None:
                    yield from (*store.indices, store.value)
    for b in func.allocs:
        yield from b.shape


def _variables(func: Func) -> tuple[Var, ...]:
    """The variables in the order of first use."""
    return tuple(dict.fromkeys(n for e in _expressions(func) for n in walk_expr(e) if isinstance(n, Var)))


def _used_buffers(func: Func) -> tuple[Buffer, ...]:
    blocks = (s for s, _ in walk(func.body) if isinstance(s, Block))
    return tuple(dict.fromkeys(a.buffer for b in blocks for a in accesses(b)))


class _Names:
    """New variables and buffers for old ones."""

    def __init__(self) -> None:
        self.variables: dict[Var, Var] = {}
        self.buffers: dict[Buffer, Buffer] = {}
        self.known: dict[Expr, Expr] = {}
        self.loops = self.iters = self.blocks = 0

    def expr(self, e: Expr) -> Expr:
        """The expression under new names, simplified under them."""
        found = self.known.get(e)
        if found is None:
            found = self.known[e] = self._expr(e)
        return found

    def _expr(self, e: Expr) -> Expr:
        if isinstance(e, Var):
            return self.variables.get(e, e)
        new = tuple(self.expr(c) for c in e.children())
        if isinstance(e, Load):
            return Load(self.buffers.get(e.buffer, e.buffer), new)
        return e.rebuild(new) if new else e

    def load(self, e: Load) -> Load:
        """The element under new names."""
        return Load(self.buffers.get(e.buffer, e.buffer), tuple(self.expr(i) for i in e.indices))

    def store(self, s: Store) -> Store:
        """The store under new names."""
        return Store(self.buffers.get(s.buffer, s.buffer), tuple(self.expr(i) for i in s.indices), self.expr(s.value))


def _renamed(s: Stmt, names: _Names) -> Stmt:
    match s:
        case Seq(stmts):
            return seq(*(_renamed(c, names) for c in stmts))
        case For():
            extent = names.expr(s.extent)
            var = Var(f"i{names.loops}")
            names.loops += 1
            names.variables[s.var] = var
            hints = tuple(names.load(p) for p in s.prefetches)
            return For(var, extent, s.kind, _renamed(s.body, names), hints)
        case Block():
            iters: list[BlockIter] = []
            for i in s.iters:
                names.variables[i.var] = Var(f"v{names.iters}")
                names.iters += 1
                iters.append(BlockIter(names.variables[i.var], names.expr(i.extent), i.kind, names.expr(i.binding)))
            name = f"b{names.blocks}"
            names.blocks += 1
            init = None if s.init is None else names.store(s.init)
            return Block(name, tuple(iters), names.store(s.body), init, names.expr(s.predicate))
