"""Canonical kernels: the same values, fewer axes, canonical names."""

import numpy as np
import pytest
from hypothesis import given, settings
from tests.graph.kernels import N, axes, buffer, feeds_of, pointwise, program, reduced, run_kernel
from tests.optimize import programs

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Var, const
from tilewright.expr.operations import cast, maximum, select
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.graph.kernel import Kernel

a, b, c, d, i, j, k = (Var(n) for n in "abcdijk")


def check(*stages: Computation) -> Kernel:
    """The kernel, which computes what the stages do for several sizes."""
    kernel = make_kernel(stages)
    p = program(stages, [stages[-1].output])
    for n in (1, 5):
        sizes = {N: n}
        feeds = feeds_of(p, sizes)
        result = run_kernel(kernel, feeds, sizes)
        for stage in stages:
            feeds[stage.output.name] = evaluate(stage, feeds, sizes)
        np.testing.assert_array_equal(result[stages[-1].output.name], feeds[stages[-1].output.name])
    return kernel


def text(kernel: Kernel) -> str:
    """Stages, parameters and arguments."""
    params = [f"{p} <- {x.name}" for p, x in zip(kernel.params, kernel.arguments, strict=True)]
    return "\n".join([*map(str, kernel.stages), *params, kernel.label])


def test_elementwise_axes_are_coalesced_to_one(golden) -> None:
    x, y = buffer("x", N, 3, 1, 7), buffer("y", N, 3, 1, 7)
    golden(text(check(pointwise(y, "abcd", maximum(x[a, b, c, d], 0.0)))))


def test_broadcast_axis_is_not_coalesced() -> None:
    x, bias, y = buffer("x", N, 3, 4, 7), buffer("bias", 1, 3, 1, 1), buffer("y", N, 3, 4, 7)
    kernel = check(pointwise(y, "abcd", x[a, b, c, d] + bias[const(0), b, const(0), const(0)]))
    assert [str(p) for p in kernel.params] == ["a0: float32[N, 3, 28]", "a1: float32[3]", "out: float32[N, 3, 28]"]


def test_transposed_axes_are_not_coalesced() -> None:
    x, y = buffer("x", 4, 7), buffer("y", 7, 4)
    assert [len(s.axes) for s in check(pointwise(y, "ab", x[b, a])).stages] == [2]


def test_transposed_blocks_are_coalesced_inside() -> None:
    x, y = buffer("x", 4, 5, 6, 7), buffer("y", 6, 7, 4, 5)
    kernel = check(pointwise(y, "abcd", x[c, d, a, b]))
    assert [str(p) for p in kernel.params] == ["a0: float32[20, 42]", "out: float32[42, 20]"]


def test_rows_of_another_length_prevent_coalescing() -> None:
    x, y = buffer("x", 4, 9), buffer("y", 4, 7)
    assert len(check(pointwise(y, "ab", x[a, b])).stages[0].axes) == 2


@pytest.mark.parametrize(
    "body",
    [
        lambda x: select(a < b, x[a, b], 0.0),
        lambda x: x[a, b] * cast(x.dtype, a),
        lambda x: x[a, 6 - b],
        lambda x: x[a, const(0)],
        lambda x: x[a, b] + x[b // 2, b],
    ],
    ids=["condition", "value", "reversed", "one column", "used twice"],
)
def test_other_uses_of_a_variable_prevent_coalescing(body) -> None:
    x, y = buffer("x", 4, 7), buffer("y", 4, 7)
    assert len(check(pointwise(y, "ab", body(x))).stages[0].axes) == 2


def test_gathered_rows_prevent_coalescing() -> None:
    from tilewright.expr.dtype import int64

    x, index, y = buffer("x", 4, 7), buffer("index", 3, 7, dtype=int64), buffer("y", 3, 7)
    stage = pointwise(y, "ab", x[index[a, b], b])
    assert len(make_kernel([stage]).stages[0].axes) == 2


def test_adjacent_reduction_axes_are_coalesced(golden) -> None:
    x, y = buffer("x", N, 3, 4, 7), buffer("y", N, 3)
    golden(text(check(reduced(y, "ab", axes("ij", (4, 7)), x[a, b, i, j]))))


def test_reduction_axes_around_a_spatial_axis_are_not_coalesced() -> None:
    x, y = buffer("x", 4, 3, 7), buffer("y", 3)
    assert len(check(reduced(y, "a", axes("ij", (4, 7)), x[i, a, j], Reducer.MAX)).stages[0].reduce_axes) == 2


def test_unit_reductions_keep_one_axis() -> None:
    x, y = buffer("x", 4, 1, 1), buffer("y", 4)
    assert str(check(reduced(y, "a", axes("ij", (1, 1)), x[a, i, j])).stages[0]) == (
        "out[i0] = sum(a0[i0] for r0 in 1)  for i0 in 4"
    )


def test_pointwise_convolution_becomes_a_matrix_product(golden) -> None:
    x, w, bias = buffer("x", N, 3, 4, 5), buffer("w", 8, 3, 1, 1), buffer("bias", 8)
    t, y = buffer("t", N, 8, 4, 5), buffer("y", N, 8, 4, 5)
    first = reduced(t, "abcd", axes("ijk", (3, 1, 1)), x[a, i, c + j, d + k] * w[b, i, j, k])
    last = pointwise(y, "abcd", maximum(t[a, b, c, d] + bias[b], 0.0))
    kernel = check(first, last)
    golden(text(kernel))


def test_all_stages_are_coalesced_alike() -> None:
    x, row = buffer("x", 4, 7, 3), buffer("row", 7)
    t, y = buffer("t", 4, 7), buffer("y", 4, 7)
    first = reduced(t, "ab", axes("i", (3,)), x[a, b, i])
    kernel = check(first, pointwise(y, "ab", t[a, b] + row[b]))
    assert [len(s.axes) for s in kernel.stages] == [2, 2]
    kernel = check(first, pointwise(y, "ab", t[a, b] * 2.0))
    assert [len(s.axes) for s in kernel.stages] == [1, 1]


def test_equal_kernels_of_different_layers_are_equal() -> None:
    def layer(name: str, left, right) -> Kernel:
        x, y = buffer(f"{name}.x", N, 8), buffer(f"{name}.y", N, 8)
        return make_kernel([Computation(y, axes(left, y.shape), (), x[Var(left[0]), Var(left[1])] + 1.0)])

    one, two = layer("one", "ab", None), layer("two", "xy", None)
    assert one.stages == two.stages
    assert one.params == two.params
    assert one.arguments != two.arguments


def test_input_read_twice_is_one_parameter() -> None:
    x, y = buffer("x", 4, 7), buffer("y", 4, 7)
    kernel = check(pointwise(y, "ab", x[a, b] * x[a, const(0)]))
    assert [x.name for x in kernel.arguments] == ["x", "y"]


@pytest.mark.parametrize("kind", ["elementwise", "reduction", "gemm", "conv", "pool"])
def test_results_are_unchanged(kind: str) -> None:
    @settings(max_examples=30)
    @given(getattr(programs, kind)())
    def run(p: programs.Program) -> None:
        kernel = make_kernel(p.stages)
        rng = np.random.default_rng(1)
        outputs = {s.output for s in p.stages}
        read = dict.fromkeys(x for s in p.stages for x in s.inputs if x not in outputs)
        inputs = {x.name: programs.data_for(x, p.sizes, rng) for x in read}
        result = run_kernel(kernel, inputs, p.sizes)
        for stage in p.stages:
            inputs[stage.output.name] = evaluate(stage, inputs, p.sizes)
        np.testing.assert_array_equal(result[p.stages[-1].output.name], inputs[p.stages[-1].output.name])

    run()
