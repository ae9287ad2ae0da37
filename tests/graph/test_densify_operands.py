"""Densified operands: programs with dense copies against programs with strided reads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.driver.models import array, model, value
from tests.graph.running import program_of, run_program

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Buffer, Var, const
from tilewright.graph.alternatives import apply_alternatives
from tilewright.graph.densify_operands import dense_copies, strided_loads
from tilewright.graph.partition import partition
from tilewright.graph.program import Program


def convolution(x, w, constant_weights=True, **attributes):
    """x -> Conv -> Relu -> y; the weights are a constant or an input."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["t"], name="conv", **attributes),
        helper.make_node("Relu", ["t"], ["y"], name="relu"),
    ]
    inputs = [value("x", list(x)), *([] if constant_weights else [value("w", list(w.shape))])]
    return model(nodes, inputs, [value("y", [f"d{k}" for k in range(len(x))])], {"w": w} if constant_weights else {})


def densified(program):
    """The program with copies of all strided operands."""
    most = {}
    for a in dense_copies(program, 1.0):
        most[a.before[-1].output] = a  # all combinations of a sum's operands, the full one last
    return apply_alternatives(program, list(most.values()))


def copied(program):
    result = densified(program)
    assert result is not program
    return result


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 2),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    strides=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    groups=st.integers(1, 2),
    constant_weights=st.booleans(),
    data=st.data(),
)
def test_densified_sums_are_equal(batch, sizes, strides, groups, constant_weights, data):
    strides = strides[: len(sizes)]
    pads = data.draw(st.integers(0, 1))
    w = array(1, 4, 3, *[1] * len(sizes))
    attributes = {"strides": strides, "pads": [pads] * 2 * len(sizes), "group": groups}
    source = convolution((batch, 3 * groups, *sizes), w, constant_weights, **attributes)
    program = program_of(source)
    result = densified(program)
    outputs = [(n + 2 * pads - 1) // s + 1 for n, s in zip(sizes, strides, strict=True)]
    skipping = any(s > 1 and n > 1 for s, n in zip(strides, outputs, strict=True))
    assert (result is not program) >= skipping
    feeds = {"x": array(2, batch, 3 * groups, *sizes)} | ({} if constant_weights else {"w": w})
    (actual,), (expected,) = run_program(result, feeds), run_program(program, feeds)
    np.testing.assert_array_equal(actual, expected)
    partition(result)


def test_copy_holds_each_read_element_once():
    program = program_of(convolution((1, 8, 9, 7), array(1, 4, 8, 1, 1), strides=[2, 3]))
    copy, total = (s for s in copied(program).steps if isinstance(s, Computation) and s.label.startswith("conv"))
    assert not copy.is_reduction
    assert [str(n) for n in copy.output.shape] == ["1", "8", "5", "3"]
    assert copy.output in total.inputs
    assert not strided_loads(total, program.constants)
    assert [b.name for b in copy.inputs] == ["x"]


def test_symbolic_sizes():
    source = convolution(("n", 4, "h", "w"), array(1, 4, 4, 1, 1), strides=[2, 2])
    program = program_of(source, {"n": "1..3", "h": "1..20", "w": "1..20"})
    result = copied(program)
    for n, h, w in ((1, 1, 1), (2, 7, 4), (3, 20, 13)):
        feeds = {"x": array(h, n, 4, h, w)}
        np.testing.assert_array_equal(run_program(result, feeds)[0], run_program(program, feeds)[0])


@pytest.mark.parametrize(
    ("weights", "attributes"),
    [
        (array(1, 4, 8, 1, 1), {}),
        (array(1, 4, 8, 3, 3), {"strides": [2, 2]}),  # windows read what lies between
        (array(1, 4, 8, 2, 2), {"dilations": [2, 2]}),
    ],
)
def test_dense_operands_are_not_copied(weights, attributes):
    program = program_of(convolution((1, 8, 9, 9), weights, **attributes))
    assert not list(dense_copies(program, 1.0))


def test_alternatives_round_alike():
    program = program_of(convolution((1, 8, 9, 9), array(1, 4, 8, 1, 1), strides=[2, 2]))
    (only,) = dense_copies(program, 1.0)
    assert only.before[0] in program.steps
    assert only.after[-1].output == only.before[0].output
    assert (only.name, only.error_growth, only.label) == ("dense copy of x", 1.0, "conv (Conv)")


def test_every_combination_of_operands_is_proposed():
    i, j, r = Var("i"), Var("j"), Var("r")
    x, v, y = (
        Buffer(n, tuple(map(const, shape)), float32) for n, shape in (("x", (7, 4)), ("v", (4, 13)), ("y", (4, 5)))
    )
    axes = (Axis(i, const(4)), Axis(j, const(5)))
    product = Computation(y, axes, (Axis(r, const(4)),), x[i * 2, r] * v[r, j * 3], Reducer.SUM, "product")
    program = Program("two", (x, v), (("y", y),), {}, (product,), (), input_names=("x", "v"))
    alternatives = list(dense_copies(program, 1.0))
    assert [a.name for a in alternatives] == ["dense copy of x", "dense copy of v", "dense copy of x and v"]
    feeds = {"x": array(1, 7, 4), "v": array(2, 4, 13)}
    (expected,) = run_program(program, feeds)
    for a in alternatives:
        (actual,) = run_program(apply_alternatives(program, [a]), feeds)
        np.testing.assert_array_equal(actual, expected)


def test_two_sums_of_one_operand_get_two_copies():
    nodes = [helper.make_node("Conv", ["x", k], [f"y{k}"], name=k, strides=[2, 2]) for k in "uv"]
    constants = {k: array(1, 4, 8, 1, 1) for k in "uv"}
    outputs = [value(f"y{k}", [1, 4, 5, 5]) for k in "uv"]
    program = program_of(model(nodes, [value("x", [1, 8, 9, 9])], outputs, constants))
    result = copied(program)
    assert len({s.output.name for s in result.steps}) == len(result.steps) == 4
    feeds = {"x": array(3, 1, 8, 9, 9)}
    for actual, expected in zip(run_program(result, feeds), run_program(program, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)
