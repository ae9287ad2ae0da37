"""Random kernels for property tests, and the check that a schedule preserves their semantics.

All values are small whole numbers, so that sums are exact in every order and results can be compared for equality.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32, int32
from tilewright.expr.evaluate import Environment, evaluate, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var, as_expr, const
from tilewright.expr.operations import binary, conjunction, maximum, select, unary
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.graph.kernel import Kernel
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine import Target
from tilewright.optimize.interface import Optimizer
from tilewright.optimize.rule import Rule
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import replay
from tilewright.verify.verifier import verify

TARGETS = ("x86-64-v4", "x86-64-v3", "x86-64")


@dataclass(frozen=True)
class Program:
    """Stages of one kernel, sizes for the symbols, names of the constant buffers and of outputs besides the last."""

    stages: Sequence[Computation]
    sizes: Mapping[Var, int] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        lines = [*map(str, self.stages), f"sizes {dict(self.sizes)}", f"constants {sorted(self.constants)}"]
        buffers = dict.fromkeys(b for s in self.stages for b in (*s.inputs, s.output))
        return "\n  ".join(["Program:", *lines, *map(str, buffers)])


def shape_of(b: Buffer, sizes: Mapping[Var, int]) -> tuple[int, ...]:
    """The shape as numbers."""
    env = Environment({v: np.int64(n) for v, n in sizes.items()}, {})
    return tuple(int(evaluate_expr(n, env)) for n in b.shape)


def data_for(b: Buffer, sizes: Mapping[Var, int], rng: np.random.Generator) -> np.ndarray:
    """Small nonzero whole numbers."""
    values = rng.integers(1, 4, shape_of(b, sizes)) * rng.choice([-1, 1], shape_of(b, sizes))
    return values.astype(b.dtype.numpy)


def scheduled(
    program: Program, target: str, optimizer: Optimizer | None = None, *, any_kind: bool = False
) -> tuple[Kernel, Func, Schedule]:
    """The kernel, its untransformed function and the schedule of an optimizer, by default the rule.

    Args:
        program: the program.
        target: the target of code generation.
        optimizer: must apply, unless
        any_kind: of kernels may be among the programs; the rule then schedules kernels to which it does not apply.
    """
    outputs = [s.output for s in program.stages if s.output.name in program.outputs]
    kernel = make_kernel(program.stages, (*outputs, program.stages[-1].output))
    func = lower_to_loops("kernel", kernel.stages, kernel.params, tuple(program.sizes))
    pairs = zip(kernel.params, kernel.arguments, strict=True)
    fixed = frozenset(p.name for p, a in pairs if a.name in program.constants)
    task = Task(func, fixed, Target.parse(target), kernel.fusion)
    schedule = (optimizer or Rule()).optimize(task)
    assert schedule is not None or any_kind, f"{optimizer} does not apply"
    schedule = schedule or Rule().optimize(task)
    assert schedule is not None
    return kernel, func, schedule


def check(program: Program, target: str, optimizer: Optimizer | None = None, *, any_kind: bool = False) -> Schedule:
    """Schedules a program and compares: evaluate == interpret(untransformed) == interpret(scheduled)."""
    kernel, func, schedule = scheduled(program, target, optimizer, any_kind=any_kind)
    verify(func)
    verify(schedule.func)
    assert replay(func, schedule.trace) == schedule.func
    rng = np.random.default_rng(7)
    sizes = program.sizes
    inputs = dict(zip(kernel.inputs, kernel.reads, strict=True))
    outputs = {stage.output for stage in program.stages}
    read = dict.fromkeys(b for stage in program.stages for b in stage.inputs if b not in outputs)
    arrays = {b.name: data_for(b, sizes, rng) for b in read}
    feeds = {p.name: arrays[a.name].reshape(shape_of(p, sizes)) for p, a in inputs.items()}
    for stage in program.stages:
        arrays[stage.output.name] = evaluate(stage, arrays, sizes)
    for f in (func, schedule.func):
        results = {p.name: np.full(shape_of(p, sizes), 99, p.dtype.numpy) for p in kernel.outputs}
        interpret(f, {**feeds, **results}, sizes, seed=3)
        for p, b in zip(kernel.outputs, kernel.writes, strict=True):
            np.testing.assert_array_equal(results[p.name].ravel(), arrays[b.name].ravel())
    return schedule


def axes(names: Sequence[str], extents: Sequence[Expr | int]) -> tuple[Axis, ...]:
    """Axes by name."""
    return tuple(Axis(Var(n), as_expr(e)) for n, e in zip(names, extents, strict=True))


def buffer(name: str, shape: Sequence[Expr | int], dtype=float32) -> Buffer:
    """A buffer over sizes."""
    return Buffer(name, tuple(as_expr(n) for n in shape), dtype)


SYMBOLS = (Symbol("M", 1, 40), Symbol("N", 1, 40), Symbol("P", 3, 24))


@st.composite
def extents(draw, count: int, most: int = 20) -> tuple[list[Expr], dict[Var, int]]:
    """Sizes, some of them symbols (one symbol may occur twice), and values for the symbols."""
    shape: list[Expr] = []
    sizes: dict[Var, int] = {}
    for _ in range(count):
        symbol = draw(st.sampled_from([None, None, None, *SYMBOLS]))
        if symbol is None:
            shape.append(const(draw(st.integers(1, most))))
        else:
            shape.append(symbol)
            if symbol not in sizes:
                sizes[symbol] = draw(st.integers(symbol.lo or 1, max(most, symbol.lo or 1)))
    return shape, sizes


@st.composite
def elementwise(draw) -> Program:
    """Element-wise over 1 to 4 axes; operands are broadcast, transposed, shifted with a guard, or reversed."""
    rank = draw(st.integers(0, 4))
    shape, sizes = draw(extents(rank, 20 if rank < 3 else 7))
    names = "abcd"[:rank]
    variables = [Var(n) for n in names]
    dtype = draw(st.sampled_from([float32, int32]))
    body: Expr = const(1, dtype)
    for k in range(draw(st.integers(1, 3))):
        body = binary(
            draw(st.sampled_from(["add", "mul", "max", "sub"])), body, draw(_operand(f"x{k}", variables, shape, dtype))
        )
    body = select(body > 0, body, unary("neg", body)) if draw(st.booleans()) else body
    out = buffer("y", shape, dtype)
    return Program([Computation(out, axes(names, shape), (), body)], sizes)


@st.composite
def _operand(draw, name: str, variables: Sequence[Var], shape: Sequence[Expr], dtype) -> Expr:
    order = draw(st.permutations(range(len(variables))))
    axes_read = order[: draw(st.integers(0, len(order)))] if draw(st.booleans()) else list(order)
    if draw(st.booleans()):
        axes_read = sorted(axes_read)
    indices: list[Expr] = []
    dims: list[Expr] = []
    guards: list[Expr] = []
    for k in axes_read:
        how = draw(st.sampled_from(["plain"] * 6 + ["shift", "reverse", "repeat", "one"]))
        v, n = variables[k], shape[k]
        dims.append(const(1) if how == "one" else n)
        if how == "shift":
            guards.append(v >= 1)
        shown = {"plain": v, "shift": v - 1, "reverse": n - 1 - v, "repeat": v // 2, "one": const(0)}
        indices.append(shown[how])
    value = buffer(name, dims, dtype)[tuple(indices)]
    return select(conjunction(*guards), value, const(2, dtype)) if guards else value


@st.composite
def reduction(draw) -> Program:
    """A reduction over any axes of 1 to 4, with or without an epilogue."""
    rank = draw(st.integers(1, 4))
    shape, sizes = draw(extents(rank, 20 if rank < 3 else 7))
    over = draw(st.sets(st.integers(0, rank - 1), min_size=1))
    reducer = draw(st.sampled_from([Reducer.SUM, Reducer.MAX, Reducer.MIN]))
    names = "abcd"[:rank]
    every = axes(names, shape)
    spatial = tuple(a for k, a in enumerate(every) if k not in over)
    inner = tuple(a for k, a in enumerate(every) if k in over)
    order = draw(st.permutations(range(rank))) if draw(st.booleans()) else list(range(rank))
    x = buffer("x", [shape[k] for k in order])
    body = x[tuple(every[k].var for k in order)]
    if draw(st.booleans()):
        body = body * body
    return Program(draw(with_epilogue(spatial, inner, body, reducer)), sizes)


@st.composite
def with_epilogue(
    draw, spatial: Sequence[Axis], inner: Sequence[Axis], body: Expr, reducer: Reducer
) -> list[Computation]:
    """The reduction, and possibly an element-wise computation of its results."""
    shape = [a.extent for a in spatial]
    first = Computation(buffer("t", shape), tuple(spatial), tuple(inner), body, reducer)
    if draw(st.booleans()):
        return [first]
    fresh = tuple(Axis(Var(f"e{k}"), a.extent) for k, a in enumerate(spatial))
    index = tuple(a.var for a in fresh)
    bias = draw(st.sets(st.integers(0, len(spatial) - 1))) if spatial else set()
    row = buffer("bias", [shape[k] for k in sorted(bias)])
    value = first.output[index] + row[tuple(index[k] for k in sorted(bias))]
    if draw(st.booleans()):
        value = value + buffer("residual", shape)[index]
    value = maximum(value, const(0, float32)) if draw(st.booleans()) else value
    return [first, Computation(buffer("y", shape), fresh, (), value)]


@st.composite
def gemm(draw) -> Program:
    """[batch x] M x N x K with any operand transposed, either constant, the output in any order of axes."""
    (m, n, k, b), sizes = draw(extents(4))
    batched, shared = draw(st.booleans()), draw(st.booleans())
    b = const(draw(st.integers(1, 3))) if not isinstance(b, Var) else b
    if not batched:
        sizes = {v: s for v, s in sizes.items() if v in (m, n, k)}
    M, N, K, B = (Axis(Var(name), extent) for name, extent in zip("mnkb", (m, n, k, b), strict=True))
    left = [M, K] if draw(st.booleans()) else [K, M]
    right = [K, N] if draw(st.booleans()) else [N, K]
    out = [M, N]
    if batched:
        left = [B, *left]
        right = right if shared else [B, *right]
        out = draw(st.permutations([B, M, N]))
    elif draw(st.booleans()):
        out = [N, M]
    x, w = (buffer(name, [a.extent for a in dims]) for name, dims in (("x", left), ("w", right)))
    body = x[tuple(a.var for a in left)] * w[tuple(a.var for a in right)]
    constants = draw(st.sampled_from([(), ("w",), ("x",)]))
    stages = draw(with_epilogue(out, [K], body, Reducer.SUM))
    return Program(stages, sizes, frozenset(constants))


@st.composite
def conv(draw) -> Program:
    """Convolution with stride, dilation, padding and groups."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    o, i = draw(st.integers(1, 18 // groups)), draw(st.integers(1, 3))
    (n, h, w), sizes = draw(extents(3, 4))
    n = const(draw(st.integers(1, 2))) if not isinstance(n, Var) else n
    h, w = (x + 4 for x in (h, w))
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    stride = [draw(st.integers(1, 2)) for _ in range(2)]
    dilation = [draw(st.integers(1, 2)) for _ in range(2)]
    pad = draw(st.integers(0, 1))
    outs = [
        (size + 2 * pad - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip((h, w), kernel, stride, dilation, strict=True)
    ]
    N, OUT, Y, X = axes("noyx", (n, o * groups, *outs))
    IN, KY, KX = axes(("i", "ky", "kx"), (i, *kernel))
    y = Y.var * stride[0] + KY.var * dilation[0] - pad
    x = X.var * stride[1] + KX.var * dilation[1] - pad
    channel = IN.var if groups == 1 else OUT.var // o * i + IN.var
    image = buffer("x", (n, i * groups, h, w))[N.var, channel, y, x]
    if pad:
        image = select(conjunction(y >= 0, y < h, x >= 0, x < w), image, const(0, float32))
    body = image * buffer("w", (o * groups, i, *kernel))[OUT.var, IN.var, KY.var, KX.var]
    stages = draw(with_epilogue([N, OUT, Y, X], [IN, KY, KX], body, Reducer.SUM))
    return Program(stages, sizes, draw(st.sampled_from([frozenset(), frozenset({"w"})])))


@st.composite
def pool(draw) -> Program:
    """Maxima or sums of windows, with padding."""
    (c, h, w), sizes = draw(extents(3, 6))
    h, w = (x + 3 for x in (h, w))
    kernel, stride, pad = draw(st.integers(2, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 1))
    reducer = draw(st.sampled_from([Reducer.MAX, Reducer.SUM]))
    outs = [(size + 2 * pad - kernel) // stride + 1 for size in (h, w)]
    C, Y, X = axes("cyx", (c, *outs))
    KY, KX = axes(("ky", "kx"), (kernel, kernel))
    y, x = Y.var * stride + KY.var - pad, X.var * stride + KX.var - pad
    value = buffer("x", (c, h, w))[C.var, y, x]
    if pad:
        value = select(conjunction(y >= 0, y < h, x >= 0, x < w), value, reducer.identity(float32))
    return Program(draw(with_epilogue([C, Y, X], [KY, KX], value, reducer)), sizes)
