"""Which chains of contractions a program has."""

import pytest
from tests.frontend.onnx_models import model
from tests.graph.chains.chain_models import attention, chains_of, labels, partition_of, two_products

from tilewright.graph.chains.find import find_links


def found(source) -> list[list[str]]:
    """The kernels with contractions of all chains."""
    flow, chains = chains_of(partition_of(source))
    return [labels(flow, x.contractions) for x in chains]


FIRST = "n0 (MatMul) + n1 (Relu)"


def test_two_products_are_a_chain() -> None:
    assert found(two_products()) == [[FIRST, "n2 (MatMul)"]]
    assert found(two_products(between="c = Identity(c0)")) == [["n0 (MatMul)", "n2 (MatMul)"]]


@pytest.mark.parametrize(
    "between", ["c = Softmax(c0)", "c = LayerNormalization(c0, ones)", "c1 = Exp(c0) c = Softmax(c1)"]
)
def test_row_reductions_and_element_wise_work_are_links(between: str) -> None:
    source = two_products(between=f"ones = Constant<value_floats = [{', '.join(['1.0'] * 24)}]>() {between}")
    flow, (chain,) = chains_of(partition_of(source))
    assert len(chain.contractions) == 2
    assert len(chain.members) > 2
    assert chain.members == tuple(range(len(flow.units)))


def test_transposes_of_operands_and_of_the_result_belong_to_attention() -> None:
    flow, (chain,) = chains_of(partition_of(attention()))
    assert labels(flow, chain.members) == [
        "n3 (Transpose)", "n5 (Transpose)", "n7 (Transpose)", "n8 (MatMul) + n10 (Mul)", "n12 (Softmax)",
        "n13 (MatMul)", "n14 (Transpose)",
    ]  # fmt: skip
    assert labels(flow, chain.without_moved().members) == [
        "n8 (MatMul) + n10 (Mul)", "n12 (Softmax)", "n13 (MatMul)",
    ]  # fmt: skip


def test_products_separated_by_a_transpose_are_a_chain() -> None:
    body = "c = MatMul(a, b) t = Transpose<perm = [1, 0]>(c) e = MatMul(t, d)"
    source = model(body, inputs="float[20, 8] a, float[8, 24] b, float[20, 4] d", outputs="float[24, 4] e")
    assert found(source) == [["n0 (MatMul)", "n2 (MatMul)"]]


def test_every_part_of_a_longer_chain_is_a_candidate() -> None:
    body = "c = MatMul(x, a) d = MatMul(c, a) e = MatMul(d, a) y = MatMul(e, a)"
    source = model(body, inputs="float[20, 8] x, float[8, 8] a", outputs="float[20, 8] y")
    chains = [[name[:2] for name in names] for names in found(source)]
    assert sorted(chains) == [
        ["n0", "n1"], ["n0", "n1", "n2"], ["n0", "n1", "n2", "n3"], ["n1", "n2"], ["n1", "n2", "n3"], ["n2", "n3"],
    ]  # fmt: skip


def test_a_path_outside_excludes_a_chain() -> None:
    # the third product needs both others, of which the second one is not in the chain of the first and the third
    body = "c = MatMul(x, a) d = MatMul(c, a) s = Add(c, d) y = MatMul(s, a)"
    source = model(body, inputs="float[20, 8] x, float[8, 8] a", outputs="float[20, 8] y")
    chains = [[name[:2] for name in names] for names in found(source)]
    assert ["n0", "n3"] not in chains
    assert ["n0", "n1", "n3"] in chains


def test_a_product_that_reads_another_one_twice_is_one_link() -> None:
    body = "c = MatMul(x, a) t = Transpose<perm = [1, 0]>(c) y = MatMul(t, c)"
    source = model(body, inputs="float[20, 8] x, float[8, 8] a", outputs="float[8, 8] y")
    flow, chains = chains_of(partition_of(source))
    assert len(find_links(flow)) == len(chains) == 1


def test_a_product_that_is_added_to_another_one_is_no_chain() -> None:
    body = "c = MatMul(x, a) d = MatMul(x, b) y = Add(c, d)"
    source = model(body, inputs="float[20, 8] x, float[8, 8] a, float[8, 8] b", outputs="float[20, 8] y")
    assert found(source) == []


def test_transposes_that_others_read_stay_outside() -> None:
    body = "t = Transpose<perm = [1, 0]>(x) z = Relu(t) c = MatMul(t, a) y = MatMul(c, b)"
    source = model(
        body, inputs="float[20, 30] x, float[20, 8] a, float[8, 8] b", outputs="float[30, 8] y, float[30, 20] z"
    )
    _, (chain,) = chains_of(partition_of(source))
    assert chain.moved == frozenset()


def test_transposes_that_are_outputs_stay_outside() -> None:
    body = "t = Transpose<perm = [1, 0]>(x) c = MatMul(t, a) e = MatMul(c, b) y = Transpose<perm = [1, 0]>(e)"
    inputs = "float[20, 30] x, float[20, 8] a, float[8, 8] b"
    for outputs, moved in (
        ("float[8, 30] y", 2),
        ("float[8, 30] y, float[30, 20] t", 1),
        ("float[8, 30] y, float[30, 8] e", 1),
    ):
        _, (chain,) = chains_of(partition_of(model(body, inputs=inputs, outputs=outputs)))
        assert len(chain.moved) == moved
