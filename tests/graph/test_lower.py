"""Lowering: shapes, types and values over symbols; constants; problems of all nodes together."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from tests.frontend.onnx_models import add_initializer, model
from tests.graph.running import assert_same, program_of, run_program

from tilewright.errors import InternalError, ModelError, ShapeWarning
from tilewright.expr import dtype
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.computation import View
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.ir import TensorType
from tilewright.graph.lower import lower_graph
from tilewright.graph.program import Fallback
from tilewright.ops.definition import OPERATORS

RNG = np.random.default_rng(21)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def with_constants(proto, **arrays):
    for name, array in arrays.items():
        add_initializer(proto, name, np.asarray(array))
    return proto


def untyped(proto):
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


def test_shape_arithmetic_is_folded():
    proto = untyped(with_constants(
        model("""s = Shape(x)  n = Gather(s, zero)  h = Gather(s, one)  w = Gather(s, two)  hw = Mul(h, w)
                 a = Unsqueeze(n, axes)  b = Unsqueeze(hw, axes)  t = Concat <axis = 0> (a, b)  y = Reshape(x, t)""",
              inputs="float[N, H, W] x", outputs="float y"),
        zero=0, one=1, two=2, axes=[0],
    ))  # fmt: skip
    program = program_of(proto)
    assert [type(s) for s in program.steps] == [View]
    assert str(program.outputs[0][1]).endswith("float32[N, H * W]")
    assert not program.constants
    assert_same(proto, {"x": normal(2, 3, 5)})


def test_known_values_become_constants():
    proto = untyped(with_constants(
        model("s = Shape(x)  f = Cast <to = 1> (s)  r = Sqrt(f)  y = Mul(v, r)",
              inputs="float[3, 4] x", outputs="float y"),
        v=np.array([2.0, 3.0], np.float32),
    ))  # fmt: skip
    program = program_of(proto)
    assert not program.steps
    (value,) = program.constants.values()
    np.testing.assert_allclose(value, np.sqrt([3.0, 4.0]) * [2.0, 3.0], rtol=1e-6)
    assert program.outputs[0][1].name in program.constants


def test_symbolic_values_are_computed():
    proto = untyped(model("s = Shape(x)  f = Cast <to = 1> (s)  y = Sqrt(f)", outputs="float y"))
    program = program_of(proto)
    assert program.steps
    assert_same(proto, {"x": normal(9, 4)})


def test_scalar_constants_become_literals():
    proto = with_constants(model("a = Add(x, three)  b = Clip(a, lo, hi)  y = Div(b, six)"),
                           three=np.float32([3]), lo=np.float32(0), hi=np.float32(6), six=np.float32([6]))  # fmt: skip
    assert not program_of(proto).constants
    assert_same(proto, {"x": normal(5, 4)})


def test_names():
    proto = model("a = Relu(x)  y = Neg(a)")
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = "/a/relu_0"
    proto.graph.node[0].input[0] = proto.graph.input[0].name = "x.1"
    program = program_of(proto)
    assert [b.name for b in program.inputs] == ["x1_"]
    assert program.input_names == ("x.1",)
    assert [n for n, _ in program.outputs] == ["y"]
    assert program.values["/a/relu_0"].name == "a_relu0"
    assert [s.label for s in program.steps] == ["n0 (Relu)", "n1 (Neg)"]


def test_outputs_may_be_inputs_constants_and_shared():
    proto = with_constants(
        model("a = Relu(x)  b = Identity(a)  d = Identity(x)",
              outputs="float[N, 4] a, float[N, 4] b, float[N, 4] x, float[2] c, float[N, 4] d"),
        c=np.float32([1, 2]),
    )  # fmt: skip
    program = program_of(proto)
    feeds = {"x": normal(3, 4)}
    results = run_program(program, feeds)
    relu = np.maximum(feeds["x"], 0)
    for actual, expected in zip(results, [relu, relu, feeds["x"], np.float32([1, 2]), feeds["x"]], strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_dead_steps_are_dropped():
    proto = model("a = Relu(x)  b = MatMul(a, x)  y = Neg(x)", inputs="float[4, 4] x", outputs="float[4, 4] y")
    assert [s.label for s in program_of(proto, simplify=False).steps] == ["n2 (Neg)"]


def test_equated_symbols_are_unified():
    proto = model("y = Add(x, z)", inputs="float[?, A] x, float[?, B] z", outputs="float[C, D] y")
    program = program_of(proto)
    assert [str(b) for b in program.inputs] == ["x: float32[x_0, A]", "z: float32[x_0, A]"]
    assert not program.constraints
    assert [s.name for s in program.symbols] == ["x_0", "A"]


def test_symbols_are_solved_to_literals():
    proto = untyped(
        with_constants(model("y = MatMul(x, w)", inputs="float[N, K] x", outputs="float y"), w=normal(6, 2))
    )
    assert str(program_of(proto).inputs[0]) == "x: float32[N, 6]"


def test_ranges_are_narrowed():
    proto = untyped(with_constants(model("y = Conv(x, w)", inputs="float[1, 1, H, W] x", outputs="float y"),
                                   w=normal(1, 1, 5, 3)))  # fmt: skip
    program = program_of(proto)
    assert [(s.name, s.lo) for s in program.symbols] == [("H", 5), ("W", 3)]
    assert not program.constraints


def test_excluded_declared_sizes_are_logged(caplog):
    proto = untyped(with_constants(model("y = Conv <pads = [1, 1, 1, 1]> (x, w)", inputs="float[1, 1, H, W] x",
                                         outputs="float y"), w=normal(1, 1, 3, 3)))  # fmt: skip
    program = lower_graph(load_onnx(proto, {"H": "0..50", "W": "1..50"}))
    assert [(s.name, s.lo) for s in program.symbols] == [("H", 1), ("W", 1)]
    (record,) = caplog.records
    assert record.getMessage() == (
        "node n0 (Conv): dimension 0: a window of 3 does not fit the padded size H + 2, "
        "so 'H' can only be 1..50, where 0..50 was declared"
    )


def test_default_ranges_are_narrowed_silently(caplog):
    proto = untyped(with_constants(model("a = Conv(x, w)  b = Conv(a, u)  y = Reshape(b, s)",
                                         inputs="float[1, 1, H, 9] x", outputs="float y"),
                                   w=normal(1, 1, 3, 3), u=normal(1, 1, 5, 5), s=[1, -1, 12]))  # fmt: skip
    program = lower_graph(load_onnx(proto))
    assert [(s.name, s.lo) for s in program.symbols] == [("H", 7)]
    assert not caplog.records


def test_unsolved_constraints_stay():
    proto = untyped(with_constants(model("a = Reshape(x, s)  y = Relu(a)", inputs="float[N] x", outputs="float y"),
                                   s=[-1, 4]))  # fmt: skip
    program = program_of(proto)
    (constraint,) = program.constraints
    assert constraint.message.startswith("node n0 (Reshape): ")
    assert_same(proto, {"x": normal(12)})


def test_lowering_is_deterministic():
    proto = with_constants(model("a = MatMul(x, w)  b = Softmax(a)  y = Add(a, b)"), w=normal(4, 4))
    texts = ["\n".join(map(str, program_of(proto).steps)) for _ in range(2)]
    assert texts[0] == texts[1]


def problems(proto, shapes=None):
    with pytest.raises(ModelError) as error:
        lower_graph(load_onnx(proto, shapes))
    return [str(p) for p in error.value.problems]


def test_shapes_that_do_not_fit():
    proto = untyped(model("y = Add(x, z)", inputs="float[2, 3] x, float[2, 4] z", outputs="float y"))
    (actual,) = problems(proto)
    assert actual.startswith("[shape] node n0 (Add): ")
    assert "3" in actual
    assert "4" in actual


def test_all_problems_are_reported_together():
    proto = untyped(with_constants(
        model("""a = Add(x, z)  b = MatMul(x, z)  c = Relu(a)  d = Transpose <perm = [0, 0]> (x)
                 e = Concat <axis = 5> (x, x)  y = Neg(x)""", inputs="float[2, 3] x, float[2, 4] z", outputs="float y"),
    ))  # fmt: skip
    actual = problems(proto)
    assert [p[: p.index(":")] for p in actual] == [
        "[shape] node n0 (Add)", "[shape] node n1 (MatMul)", "[shape] node n3 (Transpose)", "[shape] node n4 (Concat)",
    ]  # fmt: skip


def test_problems_do_not_hide_later_ones():
    proto = model("a = Add(x, z)  y = MatMul(a, z)", inputs="float[2, 3] x, float[2, 4] z", outputs="float[2, 4] y")
    value = proto.graph.value_info.add(name="a")
    value.CopyFrom(proto.graph.input[0])
    value.name = "a"
    assert [p[: p.index(":")] for p in problems(proto)] == ["[shape] node n0 (Add)", "[shape] node n1 (MatMul)"]


@pytest.mark.parametrize("declared", ["float[N, 5]", "float[4]", "float[7, 4, 1]"])
def test_wrong_declared_shape_of_an_output_warns(declared):
    proto = model("y = Relu(x)", inputs="float[N, 4] x", outputs=f"{declared} y")
    with pytest.warns(ShapeWarning) as warned:
        program = lower_graph(load_onnx(proto))
    message = declared.replace("float", "float32")
    assert [str(w.message) for w in warned] == [
        "shapes that the model declares are not what it computes, which counts: 'y' is float32[N, 4], declared "
        + message
    ]
    assert str(program.outputs[0][1]) == "y: float32[N, 4]"


def test_wrong_declared_shapes_of_inner_values_warn():
    names = [f"a{k}" for k in range(10)]
    body = "".join(f"{b} = Neg({a})  " for a, b in zip(["x", *names], [*names, "y"], strict=False))
    proto = model(body, inputs="float[N, 4] x", outputs="float[N, 4] y")
    proto.graph.value_info.extend(helper.make_tensor_value_info(n, 1, ["N", 5 + k]) for k, n in enumerate(names))
    message = r"'a0' is float32\[N, 4\], declared float32\[N, 5\]; .*; and 2 more$"
    with pytest.warns(ShapeWarning, match=message) as warned:
        lower_graph(load_onnx(proto))
    assert len(warned) == 1


def test_wrong_declared_shape_of_a_fallback_warns():
    """Exporters write the sizes of one run of the network."""
    proto = model("a = NonZero(x)  y = Neg(a)", inputs="float[3, 4] x", outputs="int64[2, 7] y")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", 7, [2, 7]))
    assert_same(proto, {"x": np.arange(12, dtype=np.float32).reshape(3, 4)})
    proto.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value = 3
    with pytest.warns(ShapeWarning, match=r"'a' is int64\[2, a_n1\], declared int64\[3, 7\]"):
        assert_same(proto, {"x": np.arange(12, dtype=np.float32).reshape(3, 4)})


def test_wrong_declared_type_is_a_problem():
    """ONNX's types are checked when a model is loaded; this is about those that only the definitions tell."""
    graph = load_onnx(model("y = Relu(x)", inputs="float[N, 4] x", outputs="float[N, 4] y"))
    other = TensorType(dtype.float64, graph.declared_types["y"].shape)
    with pytest.raises(ModelError, match=r"\[type\] node n0 \(Relu\): computes 'y' as float32\[N, 4\], but the model"):
        lower_graph(replace(graph, declared_types={"y": other}))


def test_size_outside_the_range():
    proto = untyped(
        with_constants(model("y = MatMul(x, w)", inputs="float[N, K] x", outputs="float y"), w=normal(6, 2))
    )
    (actual,) = problems(proto, {"K": "1..5"})
    assert "n0 (MatMul)" in actual


def test_exception_in_a_definition_is_internal(monkeypatch):
    def broken(d):
        raise KeyError("what")

    monkeypatch.setitem(OPERATORS, ("", "Relu"), broken)
    with pytest.raises(
        InternalError, match=r"\[internal\] node n0 \(Relu\): KeyError: 'what'; this is a fault of tilewright"
    ):
        lower_graph(load_onnx(model("y = Relu(x)")))


def test_a_size_in_int32_is_what_the_number_of_elements_leaves():
    """Exporters of TensorFlow multiply sizes in int32, whose product might be negative as far as its range tells."""
    body = """s = Shape(x)  t = Cast<to=6>(s)  a = Slice(t, zero, two)  p = ReduceProd<keepdims=1>(a, zero)
              q = Cast<to=7>(p)  d = Concat<axis=0>(q, four)  y = Reshape(x, d)"""
    proto = model(body, inputs="float[N, M, 4] x", outputs="float[K, 4] y")
    for name, value in (("zero", 0), ("two", 2), ("four", 4)):
        add_initializer(proto, name, np.array([value]))
    program = program_of(proto)
    n, m = program.symbols
    ((_, y),) = program.outputs
    assert can_prove(y.shape[0].equals(n * m))
    assert not [s for s in program.steps if isinstance(s, Fallback)]
    assert any("int32" in str(c.condition) for c in program.constraints)
