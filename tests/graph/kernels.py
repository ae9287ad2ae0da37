"""Programs of tensor expressions, and their evaluation before and after partition into kernels."""

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.expr.computation import Axis, Computation, Reducer, View
from tilewright.expr.dtype import float32
from tilewright.expr.evaluate import Environment, evaluate, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var, as_expr
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import Partition, partition
from tilewright.graph.program import Program

N = Symbol("N", 1, 64)


def buffer(name: str, *shape: Expr | int, dtype=float32) -> Buffer:
    """A buffer over sizes."""
    return Buffer(name, tuple(as_expr(n) for n in shape), dtype)


def axes(names: str, shape: Sequence[Expr | int]) -> tuple[Axis, ...]:
    """Axes with one-letter names."""
    return tuple(Axis(Var(n), as_expr(e)) for n, e in zip(names, shape, strict=True))


def pointwise(out: Buffer, names: str, body: Expr) -> Computation:
    """An element-wise computation over the output's shape."""
    return Computation(out, axes(names, out.shape), (), body, label=f"{out.name} (Op)")


def reduced(
    out: Buffer, names: str, inner: tuple[Axis, ...], body: Expr, reducer: Reducer = Reducer.SUM
) -> Computation:
    """A reduction over the axes `inner`."""
    return Computation(out, axes(names, out.shape), inner, body, reducer, f"{out.name} (Reduce)")


def program(
    steps: Sequence[Computation | View],
    outputs: Sequence[Buffer],
    constants: Mapping[str, np.ndarray] | None = None,
    symbols: Sequence[Var] = (N,),
) -> Program:
    """The program of the steps; what nothing writes is an input or a constant."""
    stored = constants or {}
    computed = {s.output for s in steps}
    read = dict.fromkeys(b for s in steps for b in s.inputs if b not in computed and b.name not in stored)
    return Program(
        "test", tuple(read), tuple((b.name, b) for b in outputs), stored, tuple(steps), tuple(symbols),
        input_names=tuple(b.name for b in read),
    )  # fmt: skip


def shape_of(b: Buffer, sizes: Mapping[Var, int]) -> tuple[int, ...]:
    """The shape in numbers."""
    env = Environment({v: np.int64(n) for v, n in sizes.items()}, {})
    return tuple(int(evaluate_expr(n, env)) for n in b.shape)


def feeds_of(p: Program, sizes: Mapping[Var, int]) -> dict[str, np.ndarray]:
    """Small whole numbers, none of them 0, for every input."""
    rng = np.random.default_rng(3)
    feeds: dict[str, np.ndarray] = {}
    for b in p.inputs:
        shape = shape_of(b, sizes)
        feeds[b.name] = (rng.integers(1, 4, shape) * rng.choice([-1, 1], shape)).astype(b.dtype.numpy)
    return feeds


def outputs_of(p: Program, feeds: Mapping[str, np.ndarray], sizes: Mapping[Var, int]) -> list[np.ndarray]:
    """The outputs of a program, every buffer written once and after what it needs."""
    arrays = {**p.constants, **feeds}
    for step in p.steps:
        assert isinstance(step, Computation | View)
        assert step.output.name not in arrays
        arrays[step.output.name] = evaluate(step, arrays, sizes)
    return [arrays[b.name] for _, b in p.outputs]


def outputs_of_kernels(parts: Partition, feeds: Mapping[str, np.ndarray], sizes: Mapping[Var, int]) -> list[np.ndarray]:
    """The outputs of a partition, kernel by kernel: a kernel sees nothing but its arguments."""
    arrays = {**parts.program.constants, **feeds}
    for unit in parts.units:
        if isinstance(unit, View):
            arrays[unit.output.name] = evaluate(unit, arrays, sizes)
            continue
        assert isinstance(unit, Kernel)
        assert arrays.keys().isdisjoint(b.name for b in unit.writes)
        arrays |= run_kernel(unit, arrays, sizes)
    return [arrays[b.name] for _, b in parts.program.outputs]


def run_kernel(kernel: Kernel, arrays: Mapping[str, np.ndarray], sizes: Mapping[Var, int]) -> dict[str, np.ndarray]:
    """What a kernel writes into its arguments; parameters are the arguments' memory under other shapes."""
    inside: dict[str, np.ndarray] = {}
    for p, a in zip(kernel.inputs, kernel.reads, strict=True):
        inside[p.name] = arrays[a.name].reshape(shape_of(p, sizes))
    for stage in kernel.stages:
        assert stage.output.shape == tuple(axis.extent for axis in stage.axes)
        inside[stage.output.name] = evaluate(stage, inside, sizes)
    pairs = zip(kernel.outputs, kernel.writes, strict=True)
    return {b.name: inside[p.name].reshape(shape_of(b, sizes)) for p, b in pairs}


def check_partition(p: Program, *kernels: str) -> Partition:
    """The partition of a program, checked to compute the same outputs by kernels with these labels."""
    result = partition(p)
    for n in (1, 6):
        feeds = feeds_of(p, {N: n})
        pairs = zip(outputs_of(p, feeds, {N: n}), outputs_of_kernels(result, feeds, {N: n}), strict=True)
        for before, after in pairs:
            np.testing.assert_array_equal(after, before)
    if kernels:
        assert [u.label for u in result.units if isinstance(u, Kernel)] == list(kernels)
    return result
