"""Stages to be rewritten for layouts, and their comparison before and after."""

from collections.abc import Mapping, Sequence

import numpy as np
from tests.layout.strategies import numbers

from tilewright.expr.computation import Axis, Computation, Reducer, Stage, View
from tilewright.expr.dtype import float32
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Binary, Buffer, Expr, Var, as_expr
from tilewright.expr.traversal import loads, post_order
from tilewright.layout.layout import Layout
from tilewright.layout.primitives import StoreAt, Unfold
from tilewright.layout.rewrite_stage import rewrite_stage
from tilewright.loops.lowering import lower_to_loops
from tilewright.verify.verifier import verify

Size = Expr | int


def buffer(name: str, *shape: Size, dtype=float32) -> Buffer:
    """A buffer over sizes."""
    return Buffer(name, tuple(as_expr(n) for n in shape), dtype)


def axis(name: str, extent: Size) -> Axis:
    """An axis."""
    return Axis(Var(name), as_expr(extent))


def convolution(
    shape: Sequence[Size], i: Size, kernel: Sequence[int], *, stride: int = 1, dilation: int = 1, groups: int = 1
) -> Computation:
    """A 2-D convolution of [n, i, ...] to the shape [n, o, h, w] without padding."""
    n, o, h, w = shape
    sizes = [(m - 1) * stride + (k - 1) * dilation + 1 for m, k in zip((h, w), kernel, strict=True)]
    source, weights = buffer("Inp", n, i, *sizes), buffer("Ker", o, as_expr(i) // groups, *kernel)
    axes = (axis("n", n), axis("o", o), axis("h", h), axis("w", w))
    inner = (axis("i", as_expr(i) // groups), axis("rh", kernel[0]), axis("rw", kernel[1]))
    (b, f, y, x), (c, p, q) = (a.var for a in axes), (a.var for a in inner)
    channel = c if groups == 1 else f // (as_expr(o) // groups) * (as_expr(i) // groups) + c
    value = source[b, channel, y * stride + p * dilation, x * stride + q * dilation] * weights[f, c, p, q]
    return Computation(buffer("Conv", n, o, h, w), axes, inner, value, Reducer.SUM)


def matmul(m: Size, n: Size, k: Size) -> Computation:
    """C[m, n] = sum over k of A[m, k] * B[k, n]."""
    axes, inner = (axis("m", m), axis("n", n)), (axis("k", k),)
    a, b = buffer("A", m, k), buffer("B", k, n)
    value = a[axes[0].var, inner[0].var] * b[inner[0].var, axes[1].var]
    return Computation(buffer("C", m, n), axes, inner, value, Reducer.SUM)


def reads_once(c: Computation) -> bool:
    """Whether no index of a read divides: its loads walk the buffers directly."""
    divisions = (e for x in loads(c.body) for i in x.indices for e in post_order(i) if isinstance(e, Binary))
    return not any(e.op in ("floordiv", "mod", "min") for e in divisions)


def lowered(stage: Stage, symbols: Sequence[Var] = ()):
    """The verified loops of a stage."""
    assert isinstance(stage, Computation)
    func = lower_to_loops("kernel", [stage], [*stage.inputs, stage.output], symbols)
    verify(func, registers=False)
    return func


def check_same(
    stage: Stage, layouts: Mapping[str, Layout], sizes: Mapping[Var, int] | None = None, *, verified: bool = True
) -> Stage:
    """The stage over stored tensors computes what the stage computes, as it is stored; its loops pass the verifier."""
    # min(x // S, T - 1) of an access outside a sliding window is often too much for proofs of bounds
    verified = verified or not any(isinstance(p, Unfold) for x in layouts.values() for p in x.primitives)
    symbols = dict(sizes or {})
    rng = np.random.default_rng(2)
    arrays: dict[str, np.ndarray] = {}
    attached = [Buffer(a.other, Layout.of(a.other_shape).shape, float32) for x in layouts.values() for a in x.attached]
    for b in {b.name: b for b in (*stage.inputs, *attached)}.values():
        arrays[b.name] = (rng.integers(1, 5, numbers(b.shape, symbols)) * 2 - 5).astype(b.dtype.numpy)
    plain = [buffer(n, *x.shape) for n, x in layouts.items() if n not in arrays and n != stage.output.name]
    for b in plain:  # carries what is attached to it, though the stage does not read the rest
        arrays[b.name] = np.ones(numbers(b.shape, symbols), np.float32)
    changed = rewrite_stage(stage, layouts)
    stored = {n: layouts[n].transform(a, arrays, symbols) if n in layouts else a for n, a in arrays.items()}
    result, expected = evaluate(changed, stored, symbols), evaluate(stage, arrays, symbols)
    output_layout = layouts.get(stage.output.name)
    if output_layout is not None:
        np.testing.assert_array_equal(result, output_layout.transform(expected, arrays, symbols))
        if not any(isinstance(p, StoreAt) for p in output_layout.primitives):
            np.testing.assert_array_equal(output_layout.restore(result, symbols), expected)
    else:
        np.testing.assert_array_equal(result, expected)
    if verified and isinstance(changed, Computation):
        lowered(changed, tuple(symbols))
    assert isinstance(changed, View) == (changed is stage and isinstance(stage, View))
    return changed
