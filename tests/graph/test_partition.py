"""Partition into kernels: the same outputs, and which computations share a kernel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.kernels import (
    N,
    axes,
    buffer,
    check_partition,
    feeds_of,
    outputs_of,
    outputs_of_kernels,
    pointwise,
    program,
    reduced,
)

from tilewright.expr.computation import Computation, Reducer, View
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.operations import maximum, unary
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import partition
from tilewright.graph.program import Program

a, b, i = (Var(n) for n in "abi")
x, w, s, t, y, z = (buffer(n, N, 8) for n in "xwstyz")
m = buffer("m", 8, 8)


def product(out: Buffer, left: Buffer) -> Computation:
    """out = left @ m"""
    return reduced(out, "ab", axes("i", (8,)), left[a, i] * m[i, b])


def test_contraction_is_fused_with_its_epilogue() -> None:
    bias = buffer("bias", 8)
    parts = check_partition(
        program([product(t, x), pointwise(y, "ab", maximum(t[a, b] + bias[b], 0.0))], [y]), "t (Reduce) + y (Op)"
    )
    (kernel,) = parts.units
    assert isinstance(kernel, Kernel)
    assert [p.name for p in kernel.arguments] == ["x", "m", "bias", "y"]


def test_unit_dimensions_do_not_prevent_an_epilogue() -> None:
    e, f, bias = Var("e"), Var("f"), buffer("bias", 8)
    first, last = buffer("first", N, 1, 8), buffer("last", N, 1, 8)
    steps = [
        Computation(first, axes("abe", first.shape), axes("i", (8,)), x[a, i] * m[i, e], Reducer.SUM, "first (Reduce)"),
        Computation(last, axes("abf", last.shape), (), first[a, const(0), f] + bias[f], label="last (Op)"),
    ]
    check_partition(program(steps, [last]), "first (Reduce) + last (Op)")


def test_result_with_other_readers_is_not_fused() -> None:
    steps = [product(t, x), pointwise(y, "ab", maximum(t[a, b], 0.0))]
    check_partition(program(steps, [t, y]), "t (Reduce)", "y (Op)")
    steps.append(product(z, t))
    check_partition(program(steps, [y, z]), "t (Reduce)", "y (Op)", "z (Reduce)")


def test_result_read_at_other_indices_is_not_fused() -> None:
    check_partition(program([product(t, x), pointwise(y, "ab", t[a, b] + t[a, const(0)])], [y]), "t (Reduce)", "y (Op)")
    check_partition(program([product(t, x), pointwise(y, "ab", t[a, 7 - b] * 1.5)], [y]), "t (Reduce)", "y (Op)")


def test_broadcast_result_is_fused_rowwise() -> None:
    r = buffer("r", N)
    steps = [reduced(r, "a", axes("i", (8,)), x[a, i], Reducer.MAX), pointwise(y, "ab", x[a, b] - r[a])]
    check_partition(program(steps, [y]), "r (Reduce) + y (Op)")


def test_contraction_is_preferred_for_fusion() -> None:
    steps = [
        product(s, x),
        reduced(t, "ab", axes("i", (3,)), buffer("v", N, 8, 3)[a, b, i], Reducer.MAX),
        pointwise(y, "ab", s[a, b] + t[a, b]),
    ]
    parts = check_partition(program(steps, [y]), "t (Reduce)", "s (Reduce) + y (Op)")
    # The contraction comes later now: what it shares the kernel with must be there.
    assert [u.writes[-1].name for u in parts.units if isinstance(u, Kernel)] == ["t", "y"]


def test_epilogue_with_an_indirect_dependence_comes_after_it() -> None:
    r = buffer("r", N)
    steps = [
        product(t, x),
        reduced(r, "a", axes("i", (8,)), t[a, i], Reducer.MAX),
        pointwise(y, "ab", t[a, b] - r[a]),
    ]
    check_partition(program(steps, [y]), "t (Reduce)", "r (Reduce) + y (Op)")


def test_views_keep_their_position() -> None:
    flat = buffer("flat", N * 8)
    steps = [product(t, x), View(flat, t), pointwise(buffer("q", N * 8), "a", maximum(flat[a], 0.0))]
    parts = check_partition(program(steps, [steps[-1].output]))
    assert [type(u).__name__ for u in parts.units] == ["Kernel", "View", "Kernel"]


def test_common_elementwise_producer_is_inlined_first() -> None:
    steps = [
        pointwise(s, "ab", unary("neg", x[a, b])),
        product(t, w),
        pointwise(y, "ab", t[a, b] + s[a, b]),
    ]
    check_partition(program(steps, [y]), "t (Reduce) + y (Op)")


@st.composite
def random_programs(draw) -> Program:
    """Element-wise steps, row reductions and contractions over [N, 7] that read what came before."""
    full: list[Buffer] = [x, w]
    rows: list[Buffer] = [buffer("rows", N)]
    steps: list[Computation | View] = []
    for k in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["op", "op", "op", "row", "product", "view"]))
        source = draw(st.sampled_from(full))
        if kind == "op":
            out = buffer(f"v{k}", N, 8)
            steps.append(pointwise(out, "ab", draw(_body(full, rows))))
            full.append(out)
        elif kind == "row":
            out = buffer(f"v{k}", N)
            reducer = draw(st.sampled_from([Reducer.SUM, Reducer.MAX]))
            steps.append(reduced(out, "a", axes("i", (8,)), source[a, i], reducer))
            rows.append(out)
        elif kind == "product":
            out = buffer(f"v{k}", N, 8)
            steps.append(reduced(out, "ab", axes("i", (8,)), maximum(source[a, i], -9.0) * 0.5))
            if draw(st.booleans()):
                steps[-1] = product(out, source)
            full.append(out)
        else:
            out = buffer(f"v{k}", N, 8)
            flat = buffer(f"f{k}", N * 8)
            steps += [View(flat, source), View(out, flat)]
            full.append(out)
    result = [step.output for step in steps]
    outputs = draw(st.sets(st.sampled_from(range(len(result)))))
    return program(steps, [*(result[k] for k in sorted(outputs)), result[-1]])


@st.composite
def _body(draw, full: list[Buffer], rows: list[Buffer]) -> Expr:
    value = draw(st.sampled_from(full))[a, b]
    for _ in range(draw(st.integers(0, 2))):
        other = draw(
            st.sampled_from(
                [
                    draw(st.sampled_from(full))[a, b],
                    draw(st.sampled_from(full))[a, 7 - b],
                    draw(st.sampled_from(full))[N - 1 - a, b],
                    draw(st.sampled_from(rows))[a],
                    const(0.5, x.dtype),
                ]
            )
        )
        value = value + other if draw(st.booleans()) else maximum(value, other)
    return value


@pytest.mark.parametrize("size", [1, 5])
def test_results_are_unchanged(size: int) -> None:
    @settings(max_examples=60)
    @given(random_programs())
    def run(p: Program) -> None:
        parts = partition(p)
        feeds = feeds_of(p, {N: size})
        pairs = zip(outputs_of(p, feeds, {N: size}), outputs_of_kernels(parts, feeds, {N: size}), strict=True)
        for before, after in pairs:
            np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)

    run()
