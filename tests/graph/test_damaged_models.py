"""Damaged models never crash: they load, or they raise an error that is meant for the user."""

import warnings
from collections import Counter

import numpy as np
import onnx
import pytest
from tests.frontend.onnx_models import add_initializer, model

from tilewright.errors import FallbackWarning, ModelError, ModelFileError
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.lower import lower_graph
from tilewright.graph.passes import simplify_graph

NAMES = (
    "Add MatMul Reshape Gather Concat Conv Gemm Transpose Expand Squeeze Slice Tile Pad Resize Split Where Range Cast "
    "Softmax LayerNormalization ConstantOfShape MaxPool OneHot CumSum GatherND BatchNormalization"
)
OPS = NAMES.split()
EXTREMES = [-(2**62), -5, -1, 0, 1, 2, 3, 7, 100, 2**40]


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    proto = model(
        """a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = BatchNormalization (a, s, s, s, s)  c = Relu(b)  d = Reshape(c, t)
           e = Transpose <perm = [1, 0]> (d)  f = MatMul(d, e)  y = Softmax <axis = -1> (f)""",
        inputs="float[N, 4, H, 8] x",
        outputs="float y",
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    weights = {"w": rng.normal(size=(4, 4, 3, 3)), "s": np.abs(rng.normal(size=4))}
    for name, array in weights.items():
        add_initializer(proto, name, array.astype(np.float32))
    add_initializer(proto, "t", np.array([0, -1]))
    return proto


def outcome(content: bytes) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        try:
            lower_graph(simplify_graph(load_onnx(content)))
        except (ModelError, ModelFileError) as error:
            return type(error).__name__
    return "loads"


def change_bytes(rng: np.random.Generator) -> bytes:
    content = bytearray(network().SerializeToString())
    for _ in range(rng.integers(1, 4)):
        position = rng.integers(len(content))
        if rng.integers(2):
            content[position] ^= 1 << rng.integers(8)
        else:
            del content[position]
    return bytes(content)


def change_fields(rng: np.random.Generator) -> bytes:
    proto = network()
    graph = proto.graph
    values = [o for n in graph.node for o in n.output] + ["x", "w", "s", "t"]
    for _ in range(rng.integers(1, 4)):
        node = graph.node[rng.integers(len(graph.node))]
        match rng.integers(6):
            case 0 if node.attribute:
                attribute = node.attribute[0]
                if attribute.ints:
                    attribute.ints[rng.integers(len(attribute.ints))] = rng.choice(EXTREMES)
                else:
                    attribute.i = rng.choice(EXTREMES)
            case 1 if node.input:
                node.input[rng.integers(len(node.input))] = str(rng.choice(values))
            case 2:
                node.op_type = str(rng.choice(OPS))
            case 3:
                tensor = graph.initializer[rng.integers(3)]
                array = onnx.numpy_helper.to_array(tensor)
                array = rng.choice(EXTREMES, array.shape) if tensor.name == "t" else np.concatenate([array, array])
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
            case 4:
                dims = graph.input[0].type.tensor_type.shape.dim
                dims[rng.integers(len(dims))].dim_value = rng.choice(EXTREMES)
            case _:
                node.input.append(str(rng.choice(values)))
    return proto.SerializeToString()


@pytest.mark.parametrize("change", [change_bytes, change_fields])
def test_damage(change):
    rng = np.random.default_rng(12)
    actual = Counter(outcome(change(rng)) for _ in range(200))
    assert actual["loads"] > 5
    assert actual["ModelError"] > 5
