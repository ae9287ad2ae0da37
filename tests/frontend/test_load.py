"""Models that load: constants, functions, sub-graphs, order, attributes, metadata."""


import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.frontend.onnx_models import add_initializer, model

from tilewright.errors import ModelError
from tilewright.expr.dtype import DTYPES
from tilewright.frontend.onnx import load_onnx
from tilewright.frontend.onnx.limits import MAX_FUNCTION_DEPTH


def test_path_bytes_and_proto_are_the_same(tmp_path):
    proto = model("a = Relu(x)  y = Add(a, w)")
    add_initializer(proto, "w", np.arange(4, dtype=np.float32))
    onnx.save(proto, tmp_path / "m.onnx")
    graphs = [load_onnx(s) for s in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), proto.SerializeToString(), proto)]
    for graph in graphs:
        assert [n.label for n in graph.nodes] == ["n0 (Relu)", "n1 (Add)"]
        np.testing.assert_array_equal(graph.constants["w"], np.arange(4, dtype=np.float32))
        assert graph.outputs == ("y",)


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("raw", [True, False])
def test_initializers_of_every_type(name, raw):
    dtype = DTYPES[name].numpy
    values = np.random.default_rng(3).integers(0, 2 if name == "bool" else 100, (2, 3)).astype(dtype)
    tensor = onnx.numpy_helper.from_array(values, "w")
    if not raw:
        bits = values.view(np.uint16) if name in ("float16", "bfloat16") else values.astype(np.int32)
        field = {"float32": "float_data", "float64": "double_data", "int64": "int64_data"}.get(name, "int32_data")
        field = "uint64_data" if name in ("uint32", "uint64") else field
        tensor.ClearField("raw_data")
        getattr(tensor, field).extend(
            (values if name.startswith(("float32", "float64", "uint", "int")) else bits).reshape(-1).tolist()
        )
    proto = model("y = Identity(w)", outputs="float y")
    proto.graph.output[0].type.tensor_type.elem_type = tensor.data_type
    proto.graph.initializer.append(tensor)
    actual = load_onnx(proto).constants["w"]
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, values)


def test_constants_of_every_form():
    proto = model(
        "a = Constant <value_float = 1.5> ()  b = Constant <value_ints = [1, 2]> ()  c = Constant <value_int = 3> () "
        "d = Constant <value_floats = [1.0, 2.0]> ()  e = Constant <value = int32[2] {7, 8}> ()  y = Relu(x)"
    )
    values = proto.graph.node[0].attribute[0]
    assert values.name == "value_float"
    sparse = onnx.SparseTensorProto(
        values=helper.make_tensor("s", TensorProto.FLOAT, [2], [5.0, 6.0]),
        indices=helper.make_tensor("i", TensorProto.INT64, [2], [1, 3]), dims=[2, 2],
    )  # fmt: skip
    proto.graph.sparse_initializer.append(sparse)
    constants = load_onnx(proto).constants
    assert {k: (v.dtype.name, v.tolist()) for k, v in constants.items()} == {
        "a": ("float32", 1.5), "b": ("int64", [1, 2]), "c": ("int64", 3), "d": ("float32", [1.0, 2.0]),
        "e": ("int32", [7, 8]), "s": ("float32", [[0.0, 5.0], [0.0, 6.0]]),
    }  # fmt: skip


def test_strings_are_left_to_the_reference_evaluator():
    proto = model('c = Constant <value_strings = ["a"]> ()  y = Relu(x)')
    graph = load_onnx(proto)
    assert [n.op_type for n in graph.nodes] == ["Constant", "Relu"]
    assert "c" not in graph.constants


def test_nodes_are_sorted():
    graph = load_onnx(model("y = Relu(b)  b = Abs(a)  a = Neg(x)"))
    assert [n.op_type for n in graph.nodes] == ["Neg", "Abs", "Relu"]


def test_nodes_in_order_keep_it():
    graph = load_onnx(model("a = Relu(x)  b = Abs(x)  c = Neg(b)  y = Add(a, c)"))
    assert [n.name for n in graph.nodes] == ["n0", "n1", "n2", "n3"]


def test_names_of_nodes_are_unique():
    proto = model("a = Relu(x)  b = Abs(a)  y = Relu(b)")
    for node, name in zip(proto.graph.node, ("same", "same", ""), strict=True):
        node.name = name
    assert [n.name for n in load_onnx(proto).nodes] == ["same", "same#1", "Relu#2"]


def test_attributes():
    body = 'y = Conv <auto_pad = "VALID", dilations = [1, 1], group = 1> (x, w)'
    (node,) = load_onnx(model(body, inputs="float[1,1,4,4] x, float[1,1,3,3] w", outputs="float y")).nodes
    assert node.attributes == {"auto_pad": "VALID", "dilations": (1, 1), "group": 1}
    assert not node.has_opaque_attributes


def test_initializer_that_is_an_input_is_a_constant():
    proto = model("y = Add(x, w)", inputs="float[N, 4] x, float[4] w")
    add_initializer(proto, "w", np.ones(4, np.float32))
    graph = load_onnx(proto)
    assert [v.name for v in graph.inputs] == ["x"]
    assert "w" in graph.constants


def test_model_functions_are_inlined():
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        g (float[N] x) => (float[N] y) { y = own.twice(x) }
        <domain: "own", opset_import: ["" : 18]>
        twice (a) => (b) { c = Relu(a)  b = Add(c, c) }
    """)
    assert [n.op_type for n in load_onnx(proto).nodes] == ["Relu", "Add"]


FUNCTIONS = """
    <ir_version: 10, opset_import: ["" : 18, "own" : 1]>
    g (float[N] x) => (float[N] y) {{ {call} }}
    <domain: "own", opset_import: ["" : 18, "own" : 1]>
    outermost <alpha> (a) => (b) {{ b = own.outer <alpha: float = @alpha> (a) }}
    <domain: "own", opset_import: ["" : 18, "own" : 1]>
    outer <{outer}> (a) => (b) {{ b = own.inner {passed} (a) }}
    <domain: "own", opset_import: ["" : 18]>
    inner <alpha: float = 0.25> (a) => (b) {{ b = LeakyRelu <alpha: float = @alpha> (a) }}
"""


@pytest.mark.parametrize(
    ("call", "outer", "passed", "alpha"),
    [
        ("y = own.inner (x)", "alpha", "", 0.25),
        ("y = own.inner <alpha = 2.0> (x)", "alpha", "", 2),
        ("y = own.outer (x)", "alpha: float = 0.5", "", 0.25),
        ("y = own.outer (x)", "alpha: float = 0.5", "<alpha: float = @alpha>", 0.5),
        ("y = own.outer <alpha = 2.0> (x)", "alpha", "<alpha: float = @alpha>", 2),
        # a reference without a value leaves the attribute out, so that the callee's default counts
        ("y = own.outer (x)", "alpha", "<alpha: float = @alpha>", 0.25),
        ("y = own.outermost (x)", "alpha", "<alpha: float = @alpha>", 0.25),
        ("y = own.outermost <alpha = 2.0> (x)", "alpha", "<alpha: float = @alpha>", 2),
    ],
)
def test_defaults_of_function_attributes(call, outer, passed, alpha):
    (node,) = load_onnx(onnx.parser.parse_model(FUNCTIONS.format(call=call, outer=outer, passed=passed))).nodes
    assert (node.op_type, node.attributes) == ("LeakyRelu", {"alpha": alpha})


def test_tensors_as_defaults_of_function_attributes():
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = own.shifted (x) },
                        else_branch = e () => (float[2] a) { a = Neg(x) }>
        }
        <domain: "own", opset_import: ["" : 18]>
        shifted <value: tensor = float[1] {2}> (a) => (b) {
            size = Shape(a)  shift = ConstantOfShape <value: tensor = @value> (size)  b = Add(a, shift)
        }
    """)
    (node,) = load_onnx(proto).nodes
    (filled,) = (n for n in node.subgraphs["then_branch"].nodes if n.op_type == "ConstantOfShape")
    assert filled.attributes["value"] == 2


def test_functions_of_the_standard_domain_have_two_names_for_it():
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[N] x) => (float[N] y) { y = ai.onnx.Own (x) }
        <domain: "", opset_import: ["" : 18]>
        Own <alpha: float = 0.25> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }
    """)
    (node,) = load_onnx(proto).nodes
    assert node.attributes == {"alpha": 0.25}


def _chain(depth: int) -> onnx.ModelProto:
    """Functions that call one another in a row."""
    functions = "".join(f"""
        <domain: "own", opset_import: ["" : 18, "own" : 1]>
        f{k} (a) => (b) {{ b = {f"own.f{k + 1}" if k + 1 < depth else "Relu"} (a) }}""" for k in range(depth))
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        g (float[N] x) => (float[N] y) {{ y = own.f0 (x) }} {functions}""")


def test_the_depth_of_functions_is_limited():
    assert [n.op_type for n in load_onnx(_chain(MAX_FUNCTION_DEPTH)).nodes] == ["Relu"]
    with pytest.raises(ModelError, match=r"expected at most 64 that call each other, got 65"):
        load_onnx(_chain(MAX_FUNCTION_DEPTH + 1))


def test_functions_that_nothing_calls_do_not_matter():
    proto = model("y = Relu(x)")
    body = [helper.make_node("unused", ["a"], ["b"], domain="own")]
    proto.functions.append(helper.make_function("own", "unused", ["a"], ["b"], body, [helper.make_opsetid("own", 1)]))
    assert [n.op_type for n in load_onnx(proto).nodes] == ["Relu"]


CROPPED = "size = Constant <value_ints = [4]> ()  b = CenterCropPad <axes = [0]> (x, size)"


def test_operators_that_onnx_defines_by_functions_are_inlined():
    ops = [n.op_type for n in load_onnx(model(f"{CROPPED}  y = Identity(b)")).nodes]
    assert "CenterCropPad" not in ops
    assert {"Pad", "Slice"} <= set(ops)


def test_large_initializers_stay_out_of_inlining():
    proto = model(f"{CROPPED.replace('(x,', '(w,')}  y = Add(x, b)")
    add_initializer(proto, "w", np.zeros(4, np.float32))
    graph = load_onnx(proto)
    assert [v.name for v in graph.inputs] == ["x"]
    assert "w" in graph.constants


BRANCHES = """y = If (c) <then_branch = t () => (float[N, 4] a) { b = Relu(x)  a = Mul(b, x) },
                         else_branch = e () => (float[N, 4] a) { a = Neg(x) }>"""


def test_captured_values_are_inputs():
    graph = load_onnx(model(BRANCHES, inputs="bool c, float[N, 4] x"))
    (node,) = graph.nodes
    assert node.inputs == ("c", "x")
    assert node.captures == ("x",)
    assert node.arguments == ("c",)
    assert node.has_opaque_attributes


def test_captured_values_are_ordered():
    proto = model(
        BRANCHES.replace("(x)", "(z)").replace(", x)", ", z)") + " z = Abs(x)", inputs="bool c, float[N, 4] x"
    )
    assert [n.op_type for n in load_onnx(proto).nodes] == ["Abs", "If"]


def test_subgraphs_are_converted():
    (node,) = load_onnx(model(BRANCHES, inputs="bool c, float[N, 4] x")).nodes
    then, other = node.subgraphs["then_branch"], node.subgraphs["else_branch"]
    assert [n.op_type for n in then.nodes] == ["Relu", "Mul"]
    assert (other.inputs, other.outputs, [n.inputs for n in other.nodes]) == ((), ("a",), [("x",)])


def test_functions_are_inlined_in_subgraphs():
    """HannWindow is a function of ONNX."""
    text = BRANCHES.replace("b = Relu(x)", "size = Constant <value_int = 4> ()  b = HannWindow(size)")
    (node,) = load_onnx(model(text, inputs="bool c, float[N, 4] x")).nodes
    assert "Cos" in [n.op_type for n in node.subgraphs["then_branch"].nodes]


def test_metadata():
    proto = model("y = Relu(x)")
    proto.producer_name, proto.doc_string, proto.model_version = "maker", "text", 3
    helper.set_model_props(proto, {"character": "a\nb", "graph_name": "mine"})
    actual = load_onnx(proto).metadata
    assert actual["producer_name"] == "maker"
    assert actual["description"] == "text"
    assert actual["model_version"] == "3"
    assert actual["custom:character"] == "a\nb"
    assert (actual["graph_name"], actual["custom:graph_name"]) == ("g", "mine")


def test_ai_onnx_is_the_standard_domain():
    proto = model("y = Relu(x)")
    proto.opset_import[0].domain = proto.graph.node[0].domain = "ai.onnx"
    graph = load_onnx(proto)
    assert graph.nodes[0].domain == ""
    assert graph.opsets == {"": 18}
