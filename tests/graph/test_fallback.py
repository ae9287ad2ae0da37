"""Nodes without a definition run on ONNX's reference evaluator; one warning names all of them."""

import numpy as np
import onnx
import pytest
from tests.frontend.onnx_models import add_initializer, model, untyped
from tests.graph.running import assert_same, program_of

from tilewright.errors import FallbackWarning, ModelError
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.lower import lower_graph
from tilewright.graph.program import Fallback, RoutineStep, SizesStep

RNG = np.random.default_rng(31)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def fallbacks(program) -> list[Fallback]:
    return [s for s in program.steps if isinstance(s, Fallback)]


VECTORIZER = (
    'TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0, ngram_counts = [0],'
    " ngram_indexes = [0, 1], pool_int64s = [2, 3]>"
)
"""An operator on numbers without native code, whose result has two columns."""


def test_one_warning_names_all_nodes():
    proto = untyped(model(f"a = Neg(x)  b = {VECTORIZER} (a)  c = StringConcat(s, s)  y = Neg(b)",
                          inputs="int64[N, 5] x, string[N] s", outputs="float y, string c", opset=20))  # fmt: skip
    with pytest.warns(FallbackWarning) as warned:
        lower_graph(load_onnx(proto))
    assert [str(w.message) for w in warned] == [
        "2 nodes on ONNX's reference evaluator, which is slow: n1 (TfIdfVectorizer): no native definition; "
        "n2 (StringConcat): works on elements without a native type"
    ]


def test_data_dependent_sizes_get_symbols():
    proto = untyped(model("a = Relu(x)  b = NonZero(a)  y = Neg(b)", inputs="float[N, 3] x", outputs="int64 y"))
    program = assert_same(proto, {"x": normal(4, 3)})
    (step,) = [s for s in program.steps if isinstance(s, SizesStep)]
    assert str(program.values["b"]) == "b_2: int64[2, b_n1]"
    assert [(v.name, v.lo) for v in step.data_symbols] == [("b_n1", 0)]
    assert step.data_symbols[0] in program.symbols


@pytest.mark.parametrize(
    ("body", "types"),
    [
        ("a = NonZero(q)", {"a": "int64[2, a_n1]"}),
        ("a, b, c, d = Unique(q)", {"a": "string[a_n0]", "b": "int64[a_n0]", "c": "int64[N * 3]", "d": "int64[a_n0]"}),
        ("a, b = Unique <axis = 1> (q)", {"a": "string[N, a_n1]", "b": "int64[a_n1]"}),
        ("a = Compress <axis = 0> (x, k)  b = Compress <axis = 0> (q, k)",
         {"a": "float32[a_n0, 3]", "b": "string[a_n0, 3]"}),
    ],
)  # fmt: skip
def test_data_dependent_sizes_of_strings(body, types):
    outputs = ", ".join(f"{text.split('[')[0].replace('float32', 'float')} {name}" for name, text in types.items())
    proto = untyped(model(f"q = Cast <to = 8> (x)  {body}", inputs="float[N, 3] x, bool[N] k", outputs=outputs))
    program = program_of(proto)
    assert {name: str(program.values[name]).split(": ")[1] for name in types} == types


def test_sizes_over_the_inputs_symbols_are_kept():
    body = f"a = {VECTORIZER} (x)  y = Neg(a)"
    proto = untyped(model(body, inputs="int64[N, 5] x", outputs="float y"))
    program = assert_same(proto, {"x": np.arange(20).reshape(4, 5) % 4})
    assert str(fallbacks(program)[0].outputs[0]) == "a: float32[N, 2]"


def test_constant_values_reach_shape_inference():
    proto = untyped(model("k = Constant <value_ints = [2]> ()  v, i = TopK(x, k)  y = Neg(v)",
                          inputs="float[N, 5] x", outputs="float y"))  # fmt: skip
    program = assert_same(proto, {"x": normal(4, 5)})
    (step,) = [s for s in program.steps if isinstance(s, RoutineStep)]
    assert [str(b) for b in step.outputs] == ["v: float32[N, 2]", "v_1: int64[N, 2]"]
    assert [b.name for b in step.inputs] == ["x"]


def test_fallback_model_is_named_like_the_buffers():
    proto = untyped(
        model("a = Relu(x)  b = Cast <to = 8> (a)  y = Identity(b)", inputs="float[N, 5] x", outputs="string y")
    )
    step = fallbacks(program_of(proto))[0]
    actual = onnx.ModelProto.FromString(step.model)
    onnx.checker.check_model(actual)
    assert [v.name for v in actual.graph.input] == [b.name for b in step.inputs] == ["a"]
    assert [v.name for v in actual.graph.output] == [b.name for b in step.outputs]
    assert step.label == "n1 (Cast)"


def test_unsupported_definition_falls_back():
    proto = untyped(model("y = Reshape(x, s)", inputs="float[N, 4] x, int64[K] s", outputs="float y"))
    with pytest.warns(
        FallbackWarning, match=r"1 node on ONNX's reference evaluator, which is slow: n0 \(Reshape\): input 1"
    ):
        program = lower_graph(load_onnx(proto))
    assert [type(s) for s in program.steps] == [Fallback]


def test_sequences_pass_between_fallback_steps():
    body = """a = Relu(x)  s = SequenceConstruct(a, x)  b = Neg(a)  t = SequenceInsert(s, b)
              y = ConcatFromSequence <axis = 0> (t)  z = Abs(y)"""
    proto = untyped(model(body, inputs="float[3, 4] x", outputs="float z"))
    program = assert_same(proto, {"x": normal(3, 4)})
    assert [[n.op_type for n in s.nodes] for s in fallbacks(program)] == [
        ["SequenceConstruct"], ["SequenceInsert"], ["ConcatFromSequence"]
    ]  # fmt: skip
    assert [str(s.outputs[0]) for s in fallbacks(program)][:2] == ["s: any[]", "t: any[]"]


def test_nodes_between_fallbacks_stay_native():
    body = """s = SequenceConstruct(x, x)  a = SequenceAt(s, zero)  b = Relu(a)  t = SequenceInsert(s, b)
              y = ConcatFromSequence <axis = 0> (t)"""
    proto = untyped(model(body, inputs="float[N, 4] x", outputs="float y"))
    add_initializer(proto, "zero", np.array(0))
    program = assert_same(proto, {"x": normal(3, 4)})
    assert "Relu" not in [n.op_type for s in fallbacks(program) for n in s.nodes]
    # The sequence's type tells rank and sizes of its elements.
    assert str(fallbacks(program)[1].outputs[0]) == "a: float32[a_n0, 4]"


def test_strings_pass_between_fallback_steps():
    body = """s = Cast <to = 8> (x)  t = StringConcat(s, s)  u = Cast <to = 1> (t)  y = Neg(u)"""
    proto = untyped(model(body, inputs="int32[N] x", outputs="float y", opset=20))
    program = assert_same(proto, {"x": np.array([1, 2, 3], np.int32)})
    assert [str(s.outputs[0]) for s in fallbacks(program)] == ["s_v2: string[N]", "t: string[N]", "u: float32[N]"]


def test_output_that_is_not_a_tensor():
    program = program_of(model("s = SequenceConstruct(x, x)", outputs="seq(float[N, 4]) s"))
    assert [(name, str(b)) for name, b in program.outputs] == [("s", "s: any[]")]


def test_operator_without_definition_and_evaluator():
    proto = untyped(model("y = MaxRoiPool <pooled_shape = [2, 2]> (x, r)", inputs="float[1, 2, 8, 8] x, float[3, 5] r",
                          outputs="float y"))  # fmt: skip
    with pytest.raises(ModelError, match=r"\[unsupported\] node n0 \(MaxRoiPool\): no native definition, and ONNX's "
                                         r"reference evaluator can't run it either"):  # fmt: skip
        program_of(proto)


def test_unused_attribute_falls_back():
    """The statistics of GroupNormalization in another type than float32."""
    types = {"inputs": "float[N, 4, 3] x, float[4] s, float[4] b", "outputs": "float[N, 4, 3] y", "opset": 21}
    proto = model("y = GroupNormalization <num_groups = 2, stash_type = 11> (x, s, b)", **types)
    with pytest.warns(FallbackWarning) as warned:
        lower_graph(load_onnx(proto))
    assert [str(w.message) for w in warned] == [
        "1 node on ONNX's reference evaluator, which is slow: n0 (GroupNormalization): "
        "attribute stash_type=11 is not supported"
    ]
    feeds = {"x": normal(2, 4, 3), "s": normal(4), "b": normal(4)}
    assert_same(proto, feeds)
    plain = model("y = GroupNormalization <num_groups = 2, stash_type = 1> (x, s, b)", **types)
    assert not fallbacks(program_of(plain))


def test_attribute_of_a_non_tensor_type_falls_back():
    proto = untyped(model("a = Shape(x)  b = ConstantOfShape(a)  y = Cast <to = 1> (b)", inputs="float[2, 3] x",
                          outputs="float y", opset=21))  # fmt: skip
    value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT8E4M3FN, [1], [3.0])
    proto.graph.node[1].attribute.append(onnx.helper.make_attribute("value", value))
    program = assert_same(proto, {"x": normal(2, 3)})
    assert [n.name for s in fallbacks(program) for n in s.nodes] == ["n1", "n2"]


def test_unnamed_outputs_are_not_inputs_of_later_nodes():
    """The Clip leaves its lower limit out; the Unique before it leaves its second output out, as nobody uses that."""
    proto = untyped(model("s = SequenceConstruct(x)  a = SequenceAt(s, zero)"
                          "  q = Cast <to = 8> (a)  w, indices, back = Unique(q)  v = Cast <to = 1> (w)"
                          "  c = Clip(back, , high)"
                          "  t = SequenceConstruct(c, back)  y = SequenceAt(t, zero)  z = SequenceLength(t)",
                          inputs="float[5, 2, 4] x", outputs="int64 y, float v"))  # fmt: skip
    for name, array in {"zero": np.array(0), "high": np.array(3)}.items():
        add_initializer(proto, name, array)
    program = assert_same(proto, {"x": normal(5, 2, 4)})
    (unique,) = [n for s in fallbacks(program) for n in s.nodes if n.op_type == "Unique"]
    assert unique.outputs == ("w", "", "back")
