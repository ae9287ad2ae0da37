"""Shape abstraction: compound sizes of a kernel become symbols, such as n0 for (h + 15)//16.

The verifier then proves facts about variables instead of nested divisions, code is smaller, and layers whose sizes
differ only in their formulas share a kernel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, Load, Symbol, Var, const
from tilewright.expr.traversal import free_vars, post_order
from tilewright.graph.program import Program, step_outputs
from tilewright.tile.shape_samples import Ranges, ranges_from_divisions

_POLYNOMIAL = ("add", "sub", "mul")


@dataclass(frozen=True, slots=True, eq=False)
class AbstractedKernel:
    """A kernel over its own symbols.

    Attributes:
        stages: the computations.
        params: the parameters.
        sizes: the value of every new symbol over the program's symbols.
        correlated: whether sizes that depend on a common symbol became independent, which may lose proofs.
    """

    stages: tuple[Computation, ...]
    params: tuple[Buffer, ...]
    sizes: Mapping[Var, Expr]
    correlated: bool


def abstract_sizes(stages: Sequence[Computation], params: Sequence[Buffer], symbols: Sequence[Var]) -> AbstractedKernel:
    """Replaces compound sizes (quotients, remainders, minima, ... of symbols) by symbols with the same range.

    A quotient that is a function of another size stays one: if (h + 3)//4 becomes n0, (h + 7)//8 becomes (n0 + 1)//2;
    and if h itself is a size, quotients of h stay as they are. This keeps the relations that proofs need.
    """
    collector = _CompoundSizes(frozenset(symbols))
    for e in _expressions(stages, params):
        collector.collect(e)
    mapping: dict[Expr, Expr] = {}
    sizes: dict[Var, Expr] = {}
    compounds = [e for e in collector.compound if not free_vars(e) <= collector.bare_symbols]
    for e in sorted(compounds, key=_divisor):
        abstract = _in_terms_of_sizes(e, sizes)
        if abstract is None:
            low, high = interval(e)
            abstract = Symbol(f"n{len(sizes)}", low, high)
            sizes[abstract] = e
        mapping[e] = abstract
    rewriter = _Rewriter(mapping)
    new_params = tuple(rewriter.buffer(p) for p in params)
    new_stages = tuple(rewriter.stage(s) for s in stages)
    return AbstractedKernel(new_stages, new_params, sizes, _has_correlated_sizes(new_stages, new_params, sizes))


def implied_ranges(program: Program) -> Ranges:
    """Ranges of undeclared symbols that the shapes of a program's tensors imply (`ranges_from_divisions`)."""
    buffers = (*program.inputs, *(b for step in program.steps for b in step_outputs(step)))
    return ranges_from_divisions(program.symbols, dict.fromkeys(n for b in buffers for n in b.shape))


def _expressions(stages: Sequence[Computation], params: Sequence[Buffer]) -> list[Expr]:
    """All expressions of a kernel: sizes of buffers, extents of axes, bodies."""
    dims = [n for b in (*params, *(s.output for s in stages)) for n in b.shape]
    return dims + [a.extent for s in stages for a in (*s.axes, *s.reduce_axes)] + [s.body for s in stages]


def _divisor(e: Expr) -> int:
    """The literal divisor of a quotient; 0 for everything else."""
    return int(e.b.value) if isinstance(e, Binary) and e.op == "floordiv" and isinstance(e.b, Const) else 0


def _in_terms_of_sizes(e: Expr, sizes: Mapping[Var, Expr]) -> Expr | None:
    """(x + a)//(d*m) as (n + k)//m where n is (x + b)//d and a - b = k*d; None if there is no such n."""
    d = _divisor(e)
    if d <= 0 or not isinstance(e, Binary):
        return None
    for n, other in sizes.items():
        inner = _divisor(other)
        if inner > 0 and d % inner == 0 and isinstance(other, Binary):
            shift = e.a - other.a
            if (shift % inner) is const(0):
                return (n + shift // inner) // (d // inner)
    return None


def _has_correlated_sizes(stages: Sequence[Computation], params: Sequence[Buffer], sizes: Mapping[Var, Expr]) -> bool:
    """Whether two symbols of the kernel depend on a common symbol of the program."""
    expressions = _expressions(stages, params)
    used = {v for e in expressions for v in free_vars(e)}
    sources = [v for symbol in sorted(used, key=lambda v: v.name) for v in free_vars(sizes.get(symbol, symbol))]
    return len(sources) != len(set(sources))


class _CompoundSizes:
    """Collects the maximal compound expressions over symbols alone, and the symbols that occur outside of them."""

    def __init__(self, symbols: frozenset[Var]) -> None:
        self._symbols = symbols
        self._closed: dict[Expr, bool] = {}
        self._seen: set[Expr] = set()
        self.compound: dict[Expr, None] = {}
        self.bare_symbols: set[Var] = set()

    def collect(self, e: Expr) -> None:
        for node in post_order(e):
            if node not in self._closed:
                self._closed[node] = self._is_closed(node)
        self._collect(e)

    def _is_closed(self, e: Expr) -> bool:
        if isinstance(e, Var):
            return e in self._symbols
        return not isinstance(e, Load) and all(self._closed[c] for c in e.children())

    def _collect(self, e: Expr) -> None:
        if e in self._seen:
            return
        self._seen.add(e)
        if isinstance(e, Var) and e in self._symbols:
            self.bare_symbols.add(e)
        polynomial = isinstance(e, Binary) and e.op in _POLYNOMIAL
        if self._closed[e] and e.dtype == int64 and not polynomial and e.children() and free_vars(e):
            self.compound[e] = None
            return
        for c in e.children():
            self._collect(c)


class _Rewriter:
    """Replaces expressions everywhere in a kernel."""

    def __init__(self, mapping: Mapping[Expr, Expr]) -> None:
        self._done: dict[Expr, Expr] = dict(mapping)
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
        if e not in self._done:
            old = e.children()
            new = tuple(self.expression(c) for c in old)
            if isinstance(e, Load):
                self._done[e] = Load(self.buffer(e.buffer), new)
            else:
                same = all(a is b for a, b in zip(old, new, strict=True))
                self._done[e] = e if same else e.rebuild(new)
        return self._done[e]
