"""Contractions of operands that are stored too: which pairs are found, and that one kernel computes what both did."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontend.onnx_models import model
from tests.graph.chains.chain_models import cached_attention
from tests.graph.kernels import feeds_of, outputs_of_kernels

from tilewright.frontend.onnx import load_onnx
from tilewright.graph.canonicalize.attention import canonicalize_attention
from tilewright.graph.chains.find import Dataflow, KernelChain
from tilewright.graph.chains.find_stored_operands import find_stored_operands
from tilewright.graph.chains.fuse import fused_kernel, with_fused
from tilewright.graph.fusion import FusionPattern
from tilewright.graph.kernel import Kernel
from tilewright.graph.lower import lower_graph
from tilewright.graph.partition import Partition, partition
from tilewright.graph.passes import simplify_graph


def pairs_of(source: onnx.ModelProto) -> tuple[Partition, Dataflow, list[KernelChain]]:
    """The partition of a model, whose pasts may be empty, its dataflow, and the pairs."""
    sizes = {d.dim_param for i in source.graph.input for d in i.type.tensor_type.shape.dim}
    graph = load_onnx(source, {"P": "0..1023"} if "P" in sizes else None)
    parts = partition(canonicalize_attention(lower_graph(simplify_graph(graph))))
    flow = Dataflow(parts)
    return parts, flow, list(find_stored_operands(flow))


def patterns(parts: Partition, flow: Dataflow, pairs: list[KernelChain]) -> list[tuple[FusionPattern, int]]:
    """The patterns of the pairs' kernels, and how many of their axes are rows."""
    kernels = [fused_kernel(x, flow, parts.program) for x in pairs]
    return [(k.fusion.pattern, k.fusion.outer_rank) for k in kernels if k is not None]


def test_keys_are_stored_and_summed_row_by_row_and_values_head_by_head() -> None:
    parts, flow, pairs = pairs_of(cached_attention())
    assert [x.links[0].producer for x in pairs] == [flow.writer_named(n) for n in ("keys", "values")]
    assert patterns(parts, flow, pairs) == [(FusionPattern.ROWWISE, 2), (FusionPattern.ROWWISE, 1)]


def test_values_of_heads_that_share_them_are_summed_head_by_head() -> None:
    parts, flow, pairs = pairs_of(cached_attention(shared_by=4))
    assert patterns(parts, flow, pairs) == [(FusionPattern.SEQUENCE, 1), (FusionPattern.ROWWISE, 1)]


@pytest.mark.parametrize(("outputs", "stored"), [("keys", ["keys"]), ("values", ["values"]), ("", [])])
def test_only_operands_that_something_else_reads_are_found(outputs: str, stored: list[str]) -> None:
    _, flow, pairs = pairs_of(cached_attention(outputs=outputs))
    assert [x.links[0].producer for x in pairs] == [flow.writer_named(n) for n in stored]


def test_views_may_lie_between() -> None:
    body = "s = Exp(x) three = Constant<value_ints = [6, 5, 8]>() r = Reshape(s, three) y = MatMul(r, w)"
    inputs, outputs = "float[2, 3, 5, 8] x, float[6, 8, 1] w", "float[6, 5, 1] y, float[2, 3, 5, 8] s"
    parts, flow, pairs = pairs_of(model(body, inputs=inputs, outputs=outputs))
    assert [len(x.members) for x in pairs] == [3]
    assert patterns(parts, flow, pairs) == [(FusionPattern.ROWWISE, 2)]


def test_an_operand_that_reaches_the_contraction_another_way_too_is_not_found() -> None:
    body = "s = Exp(x) p = Softmax<axis = -1>(s) y = MatMul(p, s)"
    _, _, pairs = pairs_of(model(body, inputs="float[8, 8] x", outputs="float[8, 8] y, float[8, 8] s"))
    assert pairs == []


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(2, 9), st.integers(1, 3), st.integers(1, 4), st.integers(0, 9))
def test_fused_pairs_compute_what_their_kernels_did(
    heads: int, size: int, shared_by: int, batch: int, past: int
) -> None:
    parts, flow, pairs = pairs_of(cached_attention(heads, size, shared_by))
    values = {v: {"B": batch, "P": past}[v.name] for v in parts.program.symbols if v.name in "BP"}
    feeds = feeds_of(parts.program, values)
    expected = outputs_of_kernels(parts, feeds, values)
    fused = [(x, k) for x in pairs if (k := fused_kernel(x, flow, parts.program)) is not None]
    assert len(fused) == 2
    merged = with_fused(parts, fused)
    assert merged is not None
    kernels = [[u for u in x.units if isinstance(u, Kernel)] for x in (parts, merged)]
    assert len(kernels[1]) == len(kernels[0]) - 2
    for one, other in zip(outputs_of_kernels(merged, feeds, values), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
