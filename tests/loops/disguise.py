"""The same computations under other names and in another order."""

import random
from collections.abc import Sequence

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, Buffer, Expr, Load, Symbol, Var
from tilewright.expr.traversal import free_vars, replace_loads
from tilewright.loops.ir import Func
from tilewright.loops.lowering import lower_to_loops


def disguised(stages: Sequence[Computation], rng: random.Random) -> tuple[Func, dict[Var, Var]]:
    """The function of stages with random names, parameters and symbols in random order, and operands exchanged; and its
    symbol for each of the stages."""
    words = [f"{chr(rng.choice(range(97, 123)))}_{k}" for k in range(200)]
    rng.shuffle(words)
    buffers = list(dict.fromkeys(b for s in stages for b in (*s.inputs, s.output)))
    variables = list(dict.fromkeys(v for s in stages for v in _used_variables(s)))
    symbols = [v for v in variables if isinstance(v, Symbol)]
    new_variables = {v: v.renamed(words.pop()) for v in variables}
    renamed: dict[Var, Expr] = dict(new_variables)
    renaming = {b: _rename_buffer(b, words.pop(), renamed) for b in buffers}

    def expression(e: Expr) -> Expr:
        return _exchanged(substitute(replace_loads(e, lambda x: Load(renaming[x.buffer], x.indices)), renamed), rng)

    def axes(old: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(Axis(new_variables[a.var], substitute(a.extent, renamed)) for a in old)

    new = [
        Computation(renaming[s.output], axes(s.axes), axes(s.reduce_axes), expression(s.body), s.reducer)
        for s in stages
    ]
    outputs = {s.output for s in stages}
    inputs = [renaming[b] for b in buffers if b not in outputs]
    rng.shuffle(inputs)
    order = [new_variables[v] for v in symbols]
    rng.shuffle(order)
    func = lower_to_loops(words.pop(), new, (*inputs, renaming[stages[-1].output]), order)
    return func, {v: new_variables[v] for v in symbols}


def plain(stages: Sequence[Computation]) -> Func:
    """The function of stages as they are."""
    outputs = {s.output for s in stages}
    inputs = dict.fromkeys(b for s in stages for b in s.inputs if b not in outputs)
    symbols = dict.fromkeys(v for s in stages for v in _used_variables(s) if isinstance(v, Symbol))
    return lower_to_loops("f", stages, (*inputs, stages[-1].output), list(symbols))


def _used_variables(s: Computation) -> list[Var]:
    sizes = [n for b in (*s.inputs, s.output) for n in b.shape] + [a.extent for a in (*s.axes, *s.reduce_axes)]
    used = sorted({v for e in (*sizes, s.body) for v in free_vars(e)}, key=lambda v: v.name)
    return [*(a.var for a in (*s.axes, *s.reduce_axes)), *used]


def _rename_buffer(b: Buffer, name: str, renamed: dict[Var, Expr]) -> Buffer:
    return Buffer(name, tuple(substitute(n, renamed) for n in b.shape), b.dtype)


def _exchanged(e: Expr, rng: random.Random) -> Expr:
    """`e` with operands of sums and products exchanged here and there, except in indices."""
    children = e.children() if isinstance(e, Load) else tuple(_exchanged(c, rng) for c in e.children())
    same = all(a is b for a, b in zip(children, e.children(), strict=True))
    result = e if same else e.rebuild(children)
    if isinstance(result, Binary) and result.op in ("add", "mul") and result.dtype is not int64 and rng.random() < 0.5:
        return Binary(result.op, result.b, result.a)
    return result
