"""Invalid models: messages name the place, and all problems are reported together."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.frontend.onnx_models import add_initializer, model, problems

from tilewright.errors import ModelError, ModelFileError, OptionError
from tilewright.frontend.onnx import load_onnx
from tilewright.ops.library import OPERATORS

RELU = model("y = Relu(x)")


def test_missing_file(tmp_path):
    with pytest.raises(ModelFileError, match=r"^\[model-file\] file '.*none\.onnx': does not exist$"):
        load_onnx(tmp_path / "none.onnx")


def test_folder(tmp_path):
    with pytest.raises(ModelFileError, match=r"is a folder; name the \.onnx file inside it"):
        load_onnx(tmp_path)


def test_name_with_nul():
    with pytest.raises(ModelFileError, match=r"can't be read \(embedded null byte\)"):
        load_onnx("a\0b")


def test_empty_file(tmp_path):
    path = tmp_path / "a.onnx"
    path.touch()
    with pytest.raises(ModelFileError, match=r"a\.onnx': is empty$"):
        load_onnx(str(path))


def test_not_onnx(tmp_path):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    with pytest.raises(ModelFileError, match=r"a\.onnx': is not an ONNX model or is truncated \(264 bytes\)"):
        load_onnx(path)


def test_lfs_pointer():
    with pytest.raises(ModelFileError, match="is a Git LFS pointer, not the model itself; run `git lfs pull`"):
        load_onnx(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")


def test_truncated_anywhere():
    rng = np.random.default_rng(7)
    proto = model("y = Add(x, w)")
    add_initializer(proto, "w", rng.normal(size=(4,)).astype(np.float32))
    content = proto.SerializeToString()
    for length in range(1, len(content)):
        with pytest.raises((ModelFileError, ModelError)):
            load_onnx(content[:length])
    with pytest.raises(
        ModelFileError, match=rf"model: is not an ONNX model or is truncated \({len(content) - 3} bytes\)"
    ):
        load_onnx(content[:-3])


def test_wrong_argument():
    with pytest.raises(OptionError, match="argument 'model': expected a path, bytes or a ModelProto, got int"):
        load_onnx(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [0, -1, 29, 1000])
def test_opset(version):
    proto = model("y = Relu(x)")
    proto.opset_import[0].version = version
    expected = f"[opset] model: expected version 1 to 28 of the standard operator set, got {version}"
    assert problems(proto)[0].startswith(expected)


@pytest.mark.parametrize("version", [1, 6, 7, 13, 28])
def test_opsets_that_load(version):
    proto = model("y = Relu(x)")
    proto.opset_import[0].version = version
    assert load_onnx(proto).nodes[0].opset == version


def test_dangling_input():
    assert problems(model("y = Add(x, lost)")) == [
        "[dangling] node n0 (Add): input 1 'lost' is produced by no node, input or initializer"
    ]


def test_dangling_output():
    assert problems(model("z = Relu(x)")) == ["[dangling] output 'y': is produced by no node, input or initializer"]


def test_dangling_capture():
    proto = model(
        "y = If (c) <then_branch = t () => (float[2] a) { a = Relu(lost) }, "
        "else_branch = e () => (float[2] b) { b = Abs(x) }>",
        inputs="bool c, float[2] x",
        outputs="float[2] y",
    )
    assert problems(proto) == ["[dangling] node n0 (If): its sub-graph uses 'lost', which nothing produces"]


def test_cycle():
    assert problems(model("a = Add(x, c)  b = Relu(a)  c = Abs(b)  y = Relu(x)")) == [
        "[cycle] model: nodes feed each other: n1 (Relu) -> n2 (Abs) -> n0 (Add) -> n1 (Relu)"
    ]


def test_two_cycles_and_a_node_after_them():
    actual = problems(model("a = Relu(b)  b = Abs(a)  c = Relu(d)  d = Abs(c)  e = Add(b, d)  y = Add(x, e)"))
    assert [p.count("feed each other") for p in actual] == [1, 1]
    assert "n0 (Relu)" in actual[0]
    assert "n2 (Relu)" in actual[1]
    assert not any("n4" in p for p in actual)


def test_self_loop():
    assert problems(model("y = Add(x, y)")) == ["[cycle] model: nodes feed each other: n0 (Add) -> n0 (Add)"]


def test_value_with_two_producers():
    assert problems(model("y = Relu(x)  y = Abs(x)")) == [
        "[duplicate] node n1 (Abs): produces 'y', which node n0 (Relu) produces too; a value has one producer"
    ]


def test_node_that_writes_an_input():
    assert problems(model("x = Abs(x)  y = Relu(x)"))[0] == (
        "[duplicate] node n0 (Abs): produces 'x', which an input or initializer produces too; a value has one producer"
    )


def test_two_inputs_of_one_name():
    proto = model("y = Relu(x)")
    proto.graph.input.append(proto.graph.input[0])
    assert problems(proto) == ["[duplicate] input 'x': the model has two inputs of this name"]


def test_two_outputs_of_one_name():
    proto = model("y = Relu(x)")
    proto.graph.output.append(proto.graph.output[0])
    assert problems(proto) == ["[duplicate] output 'y': the model has two outputs of this name"]


def test_two_initializers_of_one_name():
    proto = model("y = Add(x, w)")
    add_initializer(proto, "w", np.ones(4, np.float32))
    add_initializer(proto, "w", np.ones(4, np.float32))
    assert problems(proto) == ["[duplicate] initializer 'w': the model has two initializers of this name"]


def test_no_outputs():
    proto = model("y = Relu(x)")
    del proto.graph.output[:]
    assert problems(proto) == ["[output] model: has no outputs"]


def test_types_that_differ():
    proto = model("y = Add(x, z)", inputs="float[N, 4] x, int64[N, 4] z")
    assert problems(proto) == [
        "[type] node n0 (Add): input 1 'z' has type tensor(int64), expected tensor(float) like input 0; insert a Cast"
    ]


def test_types_that_differ_after_a_cast():
    assert problems(model("a = Cast <to = 7> (x)  y = Mul(x, a)")) == [
        "[type] node n1 (Mul): input 1 'a' has type tensor(int64), expected tensor(float) like input 0; insert a Cast"
    ]


def test_type_that_the_operator_does_not_take():
    assert problems(model("y = Erf(x)", inputs="bool[N, 4] x", outputs="bool[N, 4] y"))[0].startswith(
        "[type] node n0 (Erf): input 0 'x' has type tensor(bool), expected tensor(bfloat16), tensor(double)"
    )


def test_wrong_declared_type_is_a_problem():
    assert problems(model("y = Relu(x)", outputs="int32[N, 4] y")) == [
        "[type] node n0 (Relu): computes 'y' as tensor(float), but the model declares it as tensor(int32)"
    ]


def in_domain(op_type: str, domain: str):
    proto = model(f"y = {op_type}(x)")
    proto.graph.node[0].domain = domain
    proto.opset_import.append(helper.make_opsetid(domain, 2))
    return proto


def test_unknown_operator():
    assert problems(model("y = Relux(x)")) == [
        "[operator] node n0 (Relux): operator 'Relux' does not exist in version 18 of 'ai.onnx'; did you mean 'Relu'?"
    ]


def test_misspelled_operator_that_others_stand_for():
    (actual,) = problems(in_domain("DynamicQuantizeLstm", "com.microsoft"))
    assert actual.endswith("; did you mean 'DynamicQuantizeLSTM'?")


def test_operator_newer_than_the_opset():
    assert problems(model("y = Gelu(x)", opset=18)) == [
        "[operator] node n0 (Gelu): operator 'Gelu' does not exist in version 18 of 'ai.onnx'; it exists from version "
        "20 on: convert the model with onnx.version_converter"
    ]


def test_unknown_operator_of_a_known_domain():
    (actual,) = problems(in_domain("FusedRelu6", "com.microsoft"))
    assert re.match(
        r"\[operator\] node n0 \(FusedRelu6\): operator 'FusedRelu6' does not exist in version 2 of 'com.microsoft'; "
        r"known there: Attention, BiasGelu, .* DynamicQuantizeLSTM, .*; give the model a function of this name, or "
        r"export it from standard operators, or "
        r"register it with tilewright.register_operator$",
        actual,
    )


def test_operator_of_an_unknown_domain():
    (actual,) = problems(in_domain("MyOp", "my.domain"))
    assert actual == (
        "[operator] node n0 (MyOp): expected an operator of a known domain ('ai.onnx', 'ai.onnx.ml', "
        "'ai.onnx.preview', 'ai.onnx.preview.training', 'com.microsoft') or a function of the model, got 'MyOp' of "
        "'my.domain'; give the model a function of this name, or export it from standard operators, or register it "
        "with tilewright.register_operator"
    )


def test_operator_of_an_unknown_domain_that_is_registered(monkeypatch):
    """What the message advises helps."""
    monkeypatch.setitem(OPERATORS, ("my.domain", "MyOp"), OPERATORS["", "Relu"])
    assert load_onnx(in_domain("MyOp", "my.domain")).nodes[0].domain == "my.domain"


def test_operator_that_was_removed():
    assert problems(model("y = Upsample(x, x)", opset=12)) == [
        "[operator] node n0 (Upsample): operator 'Upsample' was removed in version 10, the model uses 12"
    ]


def test_domain_without_import():
    proto = model("y = Relu(x)")
    proto.graph.node[0].domain = "com.example"
    assert problems(proto) == ["[operator] node n0 (Relu): the model does not import the operator set 'com.example'"]


def test_operator_in_the_wrong_domain():
    assert problems(in_domain("Relu", "com.example")) == [
        "[operator] node n0 (Relu): operator 'Relu' does not exist in version 2 of 'com.example'; the domain 'ai.onnx' "
        "has one: name it in the node"
    ]


def test_too_few_inputs():
    assert problems(model("y = Add(x)")) == ["[arity] node n0 (Add): expected 2 inputs, got 1"]


def test_too_many_inputs():
    assert problems(model("y = Relu(x, x)")) == ["[arity] node n0 (Relu): expected 1 input, got 2"]


def test_omitted_required_input():
    proto = model("y = Add(x, x)")
    proto.graph.node[0].input[1] = ""
    assert problems(proto) == ["[arity] node n0 (Add): input 1 ('B') is required"]


def test_missing_attribute():
    assert problems(model("y = Cast(x)"))[0] == "[attribute] node n0 (Cast): attribute 'to' is required"


def test_unknown_attribute():
    assert problems(model("y = Softmax <axes = 1> (x)")) == [
        "[attribute] node n0 (Softmax): attribute 'axes' is not known; the operator has: axis"
    ]


def test_attribute_of_another_type():
    assert problems(model("y = Softmax <axis = 1.5> (x)")) == [
        "[attribute] node n0 (Softmax): attribute 'axis': expected INT, got FLOAT"
    ]


@pytest.mark.parametrize(("dims", "count"), [([5], 20), ([3], 12), ([1 << 40, 1 << 40], 4 << 80)])
def test_initializer_of_another_size_than_its_data(dims, count):
    proto = model("y = Add(x, w)")
    tensor = add_initializer(proto, "w", np.ones(4, np.float32))
    tensor.dims[:] = dims
    assert problems(proto) == [
        f"[initializer] initializer 'w': expected {count} bytes of data for float{dims}, got 16 bytes"
    ]


def test_initializer_with_another_count_of_values():
    proto = model("y = Add(x, w)")
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0]))
    proto.graph.initializer[0].dims[0] = 6
    assert problems(proto) == ["[initializer] initializer 'w': expected 6 elements of data for float[6], got 4"]


def test_initializer_with_a_negative_dimension():
    proto = model("y = Add(x, w)")
    add_initializer(proto, "w", np.ones(4, np.float32)).dims[0] = -4
    assert problems(proto) == ["[initializer] initializer 'w': has the negative dimension -4"]


def test_constant_of_another_size_than_its_data():
    proto = model("c = Constant <value = float[2] {1.0, 2.0}> ()  y = Add(x, c)")
    proto.graph.node[0].attribute[0].t.dims[0] = 4
    assert problems(proto) == ["[initializer] constant 'c': expected 4 elements of data for float[4], got 2"]


def test_attribute_tensor_of_another_size():
    proto = model("s = Shape(x)  y = ConstantOfShape <value = float[1] {1.0}> (s)", outputs="float[N, 4] y")
    proto.graph.node[1].attribute[0].t.dims[0] = 3
    assert problems(proto) == [
        "[initializer] node n1 (ConstantOfShape), attribute 'value': expected 3 elements of data for float[3], got 1"
    ]


def test_undeclared_input_type():
    proto = model("y = Relu(x)")
    proto.graph.input[0].ClearField("type")
    assert problems(proto) == ["[type] input 'x': the model declares no type"]


def test_input_without_a_shape():
    proto = model("y = Relu(x)")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert problems(proto) == [
        "[shape] input 'x': the model declares no shape; give its shape, e.g. shapes={'x': [1, 3, 224, 224]}"
    ]
    assert str(load_onnx(proto, {"x": [2, "*"]}).inputs[0].type) == "float32[2, x_1]"


def test_functions_that_call_each_other():
    proto = model("y = Relu(x)")
    proto.opset_import.append(helper.make_opsetid("f", 1))
    for name, other in (("A", "B"), ("B", "A")):
        body = [helper.make_node(other, ["x"], ["y"], domain="f")]
        proto.functions.append(helper.make_function("f", name, ["x"], ["y"], body, [helper.make_opsetid("f", 1)]))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "A", "f"
    assert problems(proto)[0].startswith("[function] model: functions can't be inlined (")


def test_all_problems_are_reported_together():
    proto = model("a = Add(x, lost)  b = Relux(x)  c = Softmax <axes = 1> (x)  d = Cast <to = 7> (x)  y = Mul(x, d)")
    add_initializer(proto, "w", np.ones(4, np.float32)).dims[0] = 9
    codes = [p.split("]")[0][1:] for p in problems(proto)]
    assert sorted(codes) == ["attribute", "dangling", "initializer", "operator", "type"]
    with pytest.raises(ModelError, match=r"^\[model\] model: 5 problems\n  \[initializer\] "):
        load_onnx(proto)


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(model("y = Add(x, lost)"), path)
    with pytest.raises(ModelError, match=r"^\[model\] file '.*net\.onnx': 1 problem\n  \[dangling\] node n0 \(Add\)"):
        load_onnx(path)


def test_the_model_is_not_changed():
    proto = model("y = Celu(x)")
    before = proto.SerializeToString(deterministic=True)
    load_onnx(proto)
    assert proto.SerializeToString(deterministic=True) == before
