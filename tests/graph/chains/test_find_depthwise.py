"""Chains around depthwise convolutions, found by dataflow."""

import pytest
from tests.frontend.onnx_models import model
from tests.graph.chains.chain_models import labels, partition_of
from tests.graph.chains.conv_models import inverted_residual, two_windows

from tilewright.graph.chains.find import Dataflow
from tilewright.graph.chains.find_depthwise import find_depthwise_chains
from tilewright.graph.chains.fuse import fused_kernel
from tilewright.graph.fusion import FusionPattern


def found(source: object) -> list[list[str]]:
    flow = Dataflow(partition_of(source))  # type: ignore[arg-type]
    return [labels(flow, x.contractions) for x in find_depthwise_chains(flow)]


def test_an_inverted_residual_and_its_second_half_are_chains() -> None:
    expand, depthwise, project = "n2 (Conv) + n3 (Clip)", "n4 (Conv) + n5 (Relu)", "n6 (Conv) + n7 (Add)"
    assert found(inverted_residual()) == [[depthwise, project], [expand, depthwise, project]]


@pytest.mark.parametrize(("tap", "count"), [("e", 1), ("d", 0)])
def test_an_intermediate_that_something_else_reads_ends_a_chain(tap: str, count: int) -> None:
    assert len(found(inverted_residual(tap=tap))) == count


def test_a_depthwise_convolution_that_a_pool_reads_is_no_chain() -> None:
    body = "d = Conv<group = 4>(x, w) p = GlobalAveragePool(d) y = Mul(d, p)"
    inputs = "float[1, 4, 9, 9] x, float[4, 1, 3, 3] w"
    assert found(model(body, inputs=inputs, outputs="float[1, 4, 7, 7] y")) == []


def test_chains_without_a_depthwise_convolution_are_links_of_contractions() -> None:
    assert found(two_windows()) == []


def test_a_depthwise_convolution_and_one_contraction_are_a_fused_chain() -> None:
    parts = partition_of(inverted_residual())
    flow = Dataflow(parts)
    for chain in find_depthwise_chains(flow):
        kernel = fused_kernel(chain, flow, parts.program)
        assert kernel is not None
        assert kernel.fusion.pattern is FusionPattern.CHAIN
