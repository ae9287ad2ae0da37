"""Chains as kernels: they compute what their units compute, without views and transposes."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.frontend.onnx_models import model
from tests.graph.chains.chain_models import attention, chains_of, merged_heads, partition_of, two_products
from tests.graph.kernels import feeds_of, outputs_of_kernels

from tilewright.expr.nodes import Const, Var
from tilewright.graph.chains.fuse import fused_kernel, with_fused
from tilewright.graph.fusion import FusionPattern, StageRole
from tilewright.graph.kernel import Kernel


def check_all(source: onnx.ModelProto, sizes: dict[str, int] | None = None) -> list[Kernel]:
    """The kernels of all chains of a model, each checked in place of the kernels that it replaces."""
    parts = partition_of(source)
    flow, chains = chains_of(parts)
    values: dict[Var, int] = {v: (sizes or {})[v.name] for v in parts.program.symbols}
    feeds = feeds_of(parts.program, values)
    expected = outputs_of_kernels(parts, feeds, values)
    kernels: list[Kernel] = []
    for chain in (c for x in chains for c in {x, x.without_moved()}):
        kernel = fused_kernel(chain, flow, parts.program)
        assert kernel is not None
        assert kernel.fusion.pattern is FusionPattern.CHAIN
        merged = with_fused(parts, [(chain, kernel)])
        assert merged is not None
        assert len(merged.units) < len(parts.units)
        for one, other in zip(outputs_of_kernels(merged, feeds, values), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        kernels.append(kernel)
    return kernels


def shapes(kernel: Kernel) -> list[list[object]]:
    return [[n.value if isinstance(n, Const) else str(n) for n in p.shape] for p in kernel.params]


def test_two_products() -> None:
    (kernel,) = check_all(two_products())
    assert [x.role for x in kernel.fusion.stages] == [
        StageRole.CONTRACTION, StageRole.ELEMENTWISE, StageRole.CONTRACTION,
    ]  # fmt: skip
    assert shapes(kernel) == [[20, 8], [8, 24], [24, 8], [20, 8]]


def test_attention_reads_and_writes_what_the_exporter_transposes() -> None:
    kernel = max(check_all(attention()), key=lambda k: len(k.params[0].shape))
    assert shapes(kernel) == [[2, 10, 3, 8]] * 4
    assert "Transpose" not in str(kernel.stages)


def test_attention_with_a_mask_for_all_heads() -> None:
    assert all(shapes(k)[-1] in ([2, 10, 3, 8], [2, 3, 10, 8]) for k in check_all(attention(mask=True)))


def test_symbolic_sequences() -> None:
    kernels = check_all(attention("N", mask=True), {"N": 7})
    assert any(s == [2, "N", 3, 8] for k in kernels for s in shapes(k))


def test_an_axis_of_batch_and_heads_is_split_where_the_mask_needs_it() -> None:
    (kernel,) = check_all(merged_heads())
    assert [2, 10, 10] in shapes(kernel)
    assert shapes(kernel)[0] == [2, 3, 10, 8]
    assert [b.shape[0].value for b in kernel.arguments] == [6, 6, 2, 6, 6]


def test_views_of_the_same_shape_vanish() -> None:
    body = """
        three = Constant<value_ints = [4, 5, 24]>() two = Constant<value_ints = [20, 24]>()
        c = MatMul(a, b) c1 = Reshape(c, three) c2 = Relu(c1) c3 = Reshape(c2, two) e = MatMul(c3, d)"""
    source = model(body, inputs="float[20, 8] a, float[8, 24] b, float[24, 6] d", outputs="float[20, 6] e")
    (kernel,) = check_all(source)
    assert shapes(kernel)[-1] == [20, 6]


def test_a_reshape_across_rows_is_refused() -> None:
    body = "c = MatMul(a, b) s = Constant<value_ints = [15, 32]>() c1 = Reshape(c, s) e = MatMul(c1, d)"
    source = model(body, inputs="float[20, 8] a, float[8, 24] b, float[32, 6] d", outputs="float[15, 6] e")
    parts = partition_of(source)
    flow, (chain,) = chains_of(parts)
    assert fused_kernel(chain, flow, parts.program) is None


@pytest.mark.parametrize("outputs", ["float[20, 6] e, float[20, 24] c", "float[20, 6] e, float[4, 5, 24] v"])
def test_intermediates_that_are_outputs_are_stored(outputs: str) -> None:
    body = "c0 = MatMul(a, b) c = Relu(c0) s = Constant<value_ints = [4, 5, 24]>() v = Reshape(c, s) e = MatMul(c, d)"
    source = model(body, inputs="float[20, 8] a, float[8, 24] b, float[24, 6] d", outputs=outputs)
    (kernel,) = check_all(source)
    assert len(kernel.writes) == 2


def test_products_separated_by_a_transpose() -> None:
    body = "c = MatMul(a, b) t = Transpose<perm = [1, 0]>(c) e = MatMul(t, d)"
    source = model(body, inputs="float[20, 8] a, float[8, 24] b, float[20, 4] d", outputs="float[24, 4] e")
    (kernel,) = check_all(source)
    assert len(kernel.stages) == 2


def test_a_transposed_result_with_an_epilogue() -> None:
    body = "c = MatMul(a, b) e0 = MatMul(c, d) e = Add(e0, bias) y = Transpose<perm = [1, 0]>(e)"
    inputs = "float[20, 8] a, float[8, 24] b, float[24, 6] d, float[6] bias"
    kernels = check_all(model(body, inputs=inputs, outputs="float[6, 20] y"))
    assert [6, 20] in [shapes(k)[-1] for k in kernels]


STEPS = [
    "{y} = MatMul({x}, w) ",
    "{y} = MatMul(w, {x}) ",
    "{y} = Relu({x}) ",
    "{y} = Softmax({x}) ",
    "{y} = Add({x}, bias) ",
    "{y} = Transpose<perm = [0, 2, 1]>({x}) ",
    "{y}r = Reshape({x}, merged) {y}m = MatMul({y}r, v) {y} = Reshape({y}m, split) ",
    "{y}r = Reshape({x}, halves) {y}s = Softmax({y}r) {y} = Reshape({y}s, split) ",
    "{y} = MatMul({x}, {x}) ",
    "{y} = Add({x}, {z}) ",
]


@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=9), st.data())
def test_random_chains(steps: list[str], data: st.DataObject) -> None:
    body, names = "", ["x"]
    for k, step in enumerate(steps):
        body += step.format(x=names[-1], y=f"t{k}", z=data.draw(st.sampled_from(names)))
        names.append(f"t{k}")
    constants = """merged = Constant<value_ints = [16, 8]>() split = Constant<value_ints = [2, 8, 8]>()
        halves = Constant<value_ints = [2, 2, 4, 8]>() """
    stored = data.draw(st.sets(st.sampled_from(names[1:]), max_size=2)) | {names[-1]}
    inputs = "float[2, 8, 8] x, float[2, 8, 8] w, float[8, 8] v, float[8] bias"
    outputs = ", ".join(f"float[2, 8, 8] {n}" for n in sorted(stored))
    parts = partition_of(model(constants + body, inputs=inputs, outputs=outputs))
    flow, chains = chains_of(parts)
    feeds = {n: x / 16 for n, x in feeds_of(parts.program, {}).items()}
    expected = outputs_of_kernels(parts, feeds, {})
    for chain in (c for x in chains for c in {x, x.without_moved()}):
        kernel = fused_kernel(chain, flow, parts.program)
        if kernel is None:
            continue
        merged = with_fused(parts, [(chain, kernel)])
        assert merged is not None
        for one, other in zip(outputs_of_kernels(merged, feeds, {}), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
