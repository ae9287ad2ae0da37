"""Strides of accesses and the operands of contractions."""

from dataclasses import replace

import pytest
from tests.optimize.programs import axes, buffer

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.dtype import float16, float32, int64
from tilewright.expr.nodes import Load, Symbol, Var, const
from tilewright.expr.operations import cast
from tilewright.loops.ir import Block, Store, blocks
from tilewright.loops.lowering import lower_to_loops
from tilewright.optimize.strides import (
    contraction_operands,
    flat_index,
    is_literal,
    load_stride,
    store_stride,
)

N = Symbol("N", 1, 64)
a, b, i = Var("a"), Var("b"), Var("i")
x, w, index = buffer("x", (N, 7)), buffer("w", (7, 5)), buffer("index", (N,), int64)


def stride_of(load: object, var: Var) -> str:
    assert isinstance(load, Load)
    return str(load_stride(load, var))


@pytest.mark.parametrize(
    ("load", "var", "expected"),
    [
        (x[a, b], a, "7"),
        (x[a, b], b, "1"),
        (x[a, b], i, "0"),
        (x[a, 6 - b], b, "-1"),
        (x[a * 2, b], a, "14"),
        (x[a, b // 2], b, "None"),
        (x[index[a], b], a, "None"),
        (x[index[a], b], b, "1"),
        (buffer("z", (7, N))[b, a], b, "N"),
    ],
)
def test_strides_of_loads(load: object, var: Var, expected: str) -> None:
    assert stride_of(load, var) == expected


def block(body: object, reducer: Reducer = Reducer.SUM) -> Block:
    out = buffer("out", (N, 5))
    stage = Computation(out, axes("ab", (N, 5)), axes("i", (7,)), body, reducer)  # type: ignore[arg-type]
    (node,) = blocks(lower_to_loops("f", [stage], (*stage.inputs, out), (N,)).body)
    return node


def test_summed_product_of_two_loads_is_a_contraction() -> None:
    node = block(x[a, i] * w[i, b])
    pair = contraction_operands(node)
    assert pair is not None
    assert [p.buffer.name for p in pair] == ["x", "w"]
    assert str(store_stride(node, node.iters[0].var)) == "5"


def test_contraction_operands_without_casts() -> None:
    half = buffer("h", (N, 7), float16)
    pair = contraction_operands(block(cast(float32, half[a, i]) * w[i, b]))
    assert pair is not None
    assert [p.buffer.name for p in pair] == ["h", "w"]


def test_other_blocks_are_not_contractions() -> None:
    assert contraction_operands(block(x[a, i] * w[i, b], Reducer.MAX)) is None
    assert contraction_operands(block(x[a, i] + w[i, b])) is None
    assert contraction_operands(block(x[a, i] * x[a, i])) is None
    assert contraction_operands(block(x[a, i] * const(2, float32))) is None
    node = block(x[a, i] * w[i, b])
    store = node.body
    shifted = Load(store.buffer, (store.indices[0], store.indices[1] - 1))
    scan = replace(node, body=Store(store.buffer, store.indices, shifted + x[a, i] * w[i, b]))
    assert contraction_operands(scan) is None, "it adds to another element"


def test_flat_index_and_is_literal() -> None:
    assert str(flat_index((a, b), w.shape)) == "a * 5 + b"
    assert is_literal(const(1), 1)
    assert not is_literal(N, 1)
    assert not is_literal(None, 0)
