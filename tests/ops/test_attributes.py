"""No attribute is passed over in silence.

Every one of every operator and schema version changes what is computed, sends the node to the reference evaluator, or
is declared to have no influence.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.ops.harness import NodeCase, define

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.ops.attributes import is_default
from tilewright.ops.definition import IGNORED_ATTRIBUTES, OPERATORS, operator

RNG = np.random.default_rng(41)

Sample = tuple[list[Any], dict[str, Any], int]
"""Inputs, attributes and number of outputs of a node."""


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


IMAGE = normal(2, 4, 6, 6)
KERNEL, BYTES = normal(4, 4, 3, 3), RNG.integers(0, 9, (2, 4, 6, 6)).astype(np.uint8)
BYTE_KERNEL = RNG.integers(0, 9, (4, 4, 3, 3)).astype(np.uint8)
HALVES = [normal(4), normal(4), normal(4), RNG.random(4).astype(np.float32)]
QKV = [normal(2, 4, 5, 8), normal(2, 4, 7, 8), normal(2, 4, 7, 8)]
FLAT = [normal(2, 5, 32), normal(2, 7, 32), normal(2, 7, 32)]
ONE = np.array(0.5, np.float32)
SCALES, SIZES = np.array([1, 1, 1.5, 1.5], np.float32), ints(2, 4, 9, 8)
ROI = np.array([0, 0, 0.1, 0.2, 1, 1, 0.7, 0.8], np.float32)
QCONV = [BYTES, ONE, np.uint8(3), BYTE_KERNEL, ONE, np.uint8(2), ONE, np.uint8(1)]

TWO = ("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "Greater", "PRelu", "Mod")

SAMPLES: dict[str, Sample] = {
    **{op: ([IMAGE, IMAGE], {}, 1) for op in TWO},
    **{op: ([IMAGE > 0, IMAGE > 0], {}, 1) for op in ("And", "Or", "Xor")},
    **{op: ([IMAGE], {"kernel_shape": [2, 2]}, 1) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{op: ([IMAGE, ints(1)], {}, 1) for op in ("CumSum", "CumProd", "Gather")},
    "AffineGrid": ([normal(2, 2, 3), ints(2, 1, 3, 4)], {}, 1),
    "Attention": (QKV, {}, 1),
    "BitCast": ([IMAGE], {"to": 6}, 1),
    "CausalConvWithState": ([normal(2, 4, 7), normal(4, 1, 2)], {}, 1),
    "LinearAttention": ([normal(2, 5, 32)] * 3, {"q_num_heads": 4, "kv_num_heads": 4, "update_rule": "linear"}, 1),
    "Multinomial": ([normal(2, 3)], {}, 1),
    "RandomNormal": ([], {"shape": [2, 3]}, 1),
    "RandomUniform": ([], {"shape": [2, 3]}, 1),
    "Col2Im": ([normal(1, 8, 9), ints(4, 4), ints(2, 2)], {}, 1),
    "DeformConv": ([normal(1, 2, 5, 5), normal(2, 2, 2, 2), normal(1, 8, 4, 4)], {}, 1),
    "MelWeightMatrix": ([np.int64(4), np.int64(16), np.int64(8000), ONE, np.float32(3000)], {}, 1),
    "STFT": ([normal(1, 20, 1), np.int64(4), None, np.int64(8)], {}, 1),
    "BatchNormalization": ([IMAGE, *HALVES], {}, 1),
    "BitShift": ([BYTES, BYTES], {"direction": "RIGHT"}, 1),
    "Cast": ([IMAGE], {"to": 11}, 1),
    "CastLike": ([IMAGE, np.float64(1)], {}, 1),
    "Concat": ([IMAGE, IMAGE], {"axis": 1}, 1),
    "Compress": ([IMAGE, IMAGE[0, 0, 0] > 0], {}, 1),
    "ConstantOfShape": ([ints(2, 3)], {}, 1),
    "MaxUnpool": ([IMAGE, np.zeros(IMAGE.shape, np.int64)], {"kernel_shape": [2, 2]}, 1),
    "ReverseSequence": ([IMAGE, ints(1, 2, 3, 4)], {"time_axis": 2}, 1),
    **{op: ([IMAGE, np.zeros((2, 2, 2, 2), np.int64), normal(2, 2, 2, 2)], {}, 1)
       for op in ("Scatter", "ScatterElements")},
    "ScatterND": ([IMAGE, np.zeros((3, 4), np.int64), normal(3)], {}, 1),
    "TensorScatter": ([IMAGE, IMAGE, ints(0, 0)], {}, 1),
    "Conv": ([IMAGE, KERNEL], {}, 1),
    "ConvInteger": ([BYTES, BYTE_KERNEL], {}, 1),
    "ConvTranspose": ([IMAGE, KERNEL], {"strides": [2, 2]}, 1),
    "DFT": ([normal(2, 5, 6, 2)], {}, 1),
    "DepthToSpace": ([IMAGE], {"blocksize": 2}, 1),
    "SpaceToDepth": ([IMAGE], {"blocksize": 2}, 1),
    "DequantizeLinear": ([BYTES, normal(4), np.zeros(4, np.uint8)], {}, 1),
    "QuantizeLinear": ([IMAGE, normal(4), np.zeros(4, np.uint8)], {}, 1),
    "Einsum": ([normal(3, 3)], {"equation": "ij->ji"}, 1),
    "EyeLike": ([normal(3, 4)], {}, 1),
    "GatherElements": ([IMAGE, np.zeros((2, 2, 2, 2), np.int64)], {}, 1),
    "GatherND": ([IMAGE, np.zeros((2, 3, 1), np.int64)], {}, 1),
    "Gemm": ([normal(4, 4), normal(4, 4), normal(4, 4)], {}, 1),
    "GridSample": ([IMAGE, normal(2, 3, 3, 2)], {}, 1),
    "GroupNormalization": ([IMAGE, normal(4), normal(4)], {"num_groups": 4}, 1),
    "InstanceNormalization": ([IMAGE, normal(4), normal(4)], {}, 1),
    "LayerNormalization": ([IMAGE, ONE], {}, 1),
    "RMSNormalization": ([IMAGE, ONE], {}, 1),
    "LRN": ([IMAGE], {"size": 3}, 1),
    "NonMaxSuppression": ([IMAGE[0, ..., :4], IMAGE[0, :, :1], ints(3)], {}, 1),
    "OneHot": ([np.zeros((2, 3), np.int64), ints(4), normal(2)], {}, 1),
    "Pad": ([IMAGE, ints(1, 1, 1, 1, 1, 1, 1, 1)], {}, 1),
    "QLinearConv": (QCONV, {}, 1),
    "Range": ([np.float16(0), np.float16(5), np.float16(0.3)], {}, 1),
    "Reshape": ([IMAGE, ints(4, 0, 6, 3)], {}, 1),
    "Resize": ([IMAGE, None, SCALES], {}, 1),
    "RoiAlign": ([IMAGE, normal(3, 4), ints(0, 0, 1)], {}, 1),
    "RotaryEmbedding": ([normal(2, 4, 5, 8), normal(2, 5, 4), normal(2, 5, 4)], {}, 1),
    "Split": ([IMAGE], {}, 2),
    "Squeeze": ([normal(2, 1, 1)], {}, 1),
    "TopK": ([IMAGE, ints(2)], {}, 2),
    "Unsqueeze": ([IMAGE], {"axes": [0]}, 1),
    "Upsample": ([IMAGE, SCALES], {}, 1),
}
"""Nodes that are lowered natively; other operators get one image."""

OLD: dict[tuple[str, int], Sample] = {
    ("Pad", 2): ([IMAGE], {"pads": [1] * 8}, 1),
    ("Slice", 1): ([IMAGE], {"starts": [1, 1], "ends": [2, 2]}, 1),
    ("Upsample", 7): ([IMAGE], {"scales": [1.0, 1.0, 2.0, 2.0]}, 1),
    ("Resize", 10): ([IMAGE, SCALES], {}, 1),
    ("GroupNormalization", 18): ([IMAGE, normal(4), normal(4)], {"num_groups": 4}, 1),
    ("DepthToSpace", 1): ([IMAGE], {"blocksize": 2}, 1),
}
"""Versions of operators with other inputs."""

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less")
LOGIC = ("And", "Or", "Xor")

WITH: dict[tuple[str, str], Sample] = {
    ("Attention", "q_num_heads"): (FLAT, {"q_num_heads": 4, "kv_num_heads": 4}, 1),
    ("Attention", "kv_num_heads"): (FLAT, {"q_num_heads": 4, "kv_num_heads": 4}, 1),
    ("ConvTranspose", "group"): ([IMAGE, KERNEL], {}, 1),
    ("DequantizeLinear", "block_size"): ([BYTES, normal(2, 2, 6, 6)], {"block_size": 2}, 1),
    ("QuantizeLinear", "block_size"): ([IMAGE, normal(2, 2, 6, 6)], {"block_size": 2}, 1),
    ("QuantizeLinear", "output_dtype"): ([IMAGE, normal(4)], {}, 1),
    ("Mod", "fmod"): ([BYTES.astype(np.int8), BYTES.astype(np.int8) + np.int8(1)], {}, 1),
    ("MaxPool", "storage_order"): ([IMAGE], {"kernel_shape": [2, 2]}, 2),
    ("AveragePool", "count_include_pad"): ([IMAGE], {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}, 1),
    **{(op, "ceil_mode"): ([IMAGE], {"kernel_shape": [3, 3], "strides": [2, 2]}, 1)
       for op in ("MaxPool", "AveragePool", "LpPool")},
    ("Pad", "value"): ([IMAGE], {"pads": [1] * 8}, 1),
    ("Resize", "cubic_coeff_a"): ([IMAGE, None, SCALES], {"mode": "cubic"}, 1),
    ("Resize", "antialias"): ([IMAGE, None, SCALES], {"mode": "linear"}, 1),
    ("Resize", "exclude_outside"): ([IMAGE, None, SCALES], {"mode": "cubic"}, 1),
    ("Resize", "extrapolation_value"): (
        [IMAGE, ROI, SCALES], {"coordinate_transformation_mode": "tf_crop_and_resize"}, 1),
    ("Resize", "keep_aspect_ratio_policy"): ([IMAGE, None, None, SIZES], {}, 1),
    ("Resize", "axes"): ([IMAGE, None, SCALES[2:]], {"axes": [2, 3]}, 1),
    ("RotaryEmbedding", "num_heads"): ([normal(2, 5, 32), normal(2, 5, 4), normal(2, 5, 4)], {"num_heads": 4}, 1),
    ("RotaryEmbedding", "rotary_embedding_dim"): ([normal(2, 4, 5, 8), normal(2, 5, 2), normal(2, 5, 2)],
                                                  {"rotary_embedding_dim": 4}, 1),
    ("Split", "split"): ([IMAGE], {"axis": 1}, 2),
    ("Split", "num_outputs"): ([IMAGE], {"axis": 2, "num_outputs": 2}, 2),
    **{(op, name): ([normal(2, 6, 6), normal(6)], given, 1)
       for op in ARITHMETIC for name, given in (("broadcast", {"axis": 1}), ("axis", {"broadcast": 1}))},
    **{(op, name): ([normal(2, 6, 6) > 0, normal(6) > 0], given, 1)
       for op in LOGIC for name, given in (("broadcast", {"axis": 1}), ("axis", {"broadcast": 1}))},
}  # fmt: skip
"""Nodes on which an attribute has an influence, where the operator's sample has none."""

OTHER: dict[str, Any] = {
    "alpha": 0.3, "beta": 0.7, "bias": 0.7, "gamma": 0.9, "lambd": 0.9, "epsilon": 0.01, "momentum": 0.5, "ratio": 0.3,
    "scale": 0.3, "softcap": 2.0, "value": 0.7, "min": -0.3, "max": 0.3, "cubic_coeff_a": -0.5,
    "extrapolation_value": 0.7, "auto_pad": "SAME_UPPER", "pads": [1, 0, 1, 1], "strides": [2, 3],
    "dilations": [2, 1], "kernel_shape": [3, 1],
    "output_padding": [1, 0], "output_shape": [9, 9], "group": 2, "p": 3, "size": 5, "num_groups": 2, "blocksize": 3,
    "block_size": 3, "axis": 2, "axes": [1], "starts": [0, 1], "ends": [2, 3], "perm": [1, 0, 3, 2], "split": [1, 3],
    "scales": [1.0, 1.0, 3.0, 2.0], "direction": "LEFT", "equation": "ij->ij", "approximate": "tanh", "seed": 3,
    "mode": "linear", "padding_mode": "border", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric",
    "keep_aspect_ratio_policy": "not_larger", "round_mode": "down", "dtype": 7, "to": 7, "output_dtype": 3,
    "precision": 11, "stash_type": 11, "softmax_precision": 11, "k": 1, "start": 1, "end": 2, "batch_dims": 1,
    "num_outputs": 3, "num_heads": 8, "rotary_embedding_dim": 2, "q_num_heads": 8, "kv_num_heads": 2,
    "reduction": "add", "output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.5,
    "qk_matmul_output_mode": 2, "left_window_size": 2, "right_window_size": 1,
}  # fmt: skip
"""Values that are not the defaults; flags that are 0 or 1 are turned."""

OTHER_OF: dict[tuple[str, str], Any] = {
    **{(op, "axes"): [1, 2] for op in ("MeanVarianceNormalization", "Slice")},
    **{(op, "axis"): 1 for op in (*ARITHMETIC, *LOGIC)},
    ("ConstantOfShape", "value"): helper.make_tensor("v", 1, [1], [7.0]),
    ("LpNormalization", "p"): 1,
    ("Resize", "axes"): [1, 2],
    ("Unsqueeze", "axes"): [1],
    ("OneHot", "axis"): 0,
    ("CausalConvWithState", "activation"): "silu",
    ("LinearAttention", "update_rule"): "delta",
    ("RandomNormal", "shape"): [3, 2],
    ("RandomUniform", "shape"): [3, 2],
    ("RoiAlign", "mode"): "max",
    ("ReverseSequence", "batch_axis"): 3,
    ("ReverseSequence", "time_axis"): 3,
    ("TensorScatter", "mode"): "circular",
    ("TensorScatter", "axis"): 1,
    ("RoiAlign", "coordinate_transformation_mode"): "output_half_pixel",
    ("GroupNormalization", "num_groups"): 2,
    ("GridSample", "mode"): "nearest",
    ("SpaceToDepth", "mode"): "CRD",
    ("DepthToSpace", "mode"): "CRD",
    ("Pad", "mode"): "edge",
    ("Pad", "pads"): [2] * 8,
}  # fmt: skip


OLDEST = 7
"""The oldest operator set whose definitions are known to take the samples."""


def audited() -> Iterator[tuple[str, int, str, int]]:
    """Operator, schema version and attribute for all operators with a definition, and an operator set that has it."""
    history: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if (schema.domain, schema.name) in OPERATORS and not schema.domain:
            history.setdefault(schema.name, []).append(schema)
    for op, schemas in sorted(history.items()):
        schemas.sort(key=lambda schema: schema.since_version)
        for schema, later in zip(schemas, [*schemas[1:], None], strict=True):
            if not schema.deprecated:
                last = 10**6 if later is None else later.since_version - 1
                for name in schema.attributes:
                    yield op, schema.since_version, name, min(max(schema.since_version, OLDEST), last)


def sample(op: str, version: int, name: str) -> Sample:
    chosen = OLD.get((op, version)) or WITH.get((op, name)) or SAMPLES.get(op)
    inputs, attributes, outputs = chosen or ([IMAGE], {}, 1)
    declared = onnx.defs.get_schema(op, version, "").attributes
    return inputs, {k: v for k, v in attributes.items() if k in declared}, outputs


def other(op: str, version: int, name: str) -> Any:
    """A value of an attribute that is not its default."""
    if (op, name) in OTHER_OF:
        return OTHER_OF[op, name]
    if name in OTHER:
        return OTHER[name]
    default = onnx.defs.get_schema(op, version, "").attributes[name].default_value
    return 1 - helper.get_attribute_value(default) if default.name else 1


def lowered(op: str, opset: int, inputs: list[Any], attributes: Mapping[str, Any], outputs: int) -> str | None:
    """All that a definition says, as text; None where it sends the node to the reference evaluator."""
    constants = [k for k, x in enumerate(inputs) if x is not None and np.ndim(x) <= 1]
    try:
        d, results = define(NodeCase(op, inputs, attributes, opset=opset, outputs=outputs), constants=constants)
    except UnsupportedError:
        return None
    except ShapeError as error:
        return str(error)
    return "\n".join(map(str, (*d.stages, *d.constraints, *((r.dtype, r.shape, r.buffer.name) for r in results))))


@pytest.mark.parametrize(("op", "version", "name", "opset"), list(audited()))
def test_every_attribute_affects_the_result_or_falls_back(op, version, name, opset):
    inputs, attributes, outputs = sample(op, version, name)
    plain = lowered(op, opset, inputs, attributes, outputs)
    changed = lowered(op, opset, inputs, {**attributes, name: other(op, version, name)}, outputs)
    native = plain is not None and not plain.startswith("[shape]")
    assert native or opset < OLDEST, f"the sample is no native node: {plain}"
    if native and changed == plain:
        assert name in IGNORED_ATTRIBUTES["", op], f"{op}-{version} ignores {name}"


def test_unread_attributes_with_other_values_than_the_default_fall_back(monkeypatch):
    monkeypatch.setitem(OPERATORS, ("", "LRN"), OPERATORS["", "LRN"])
    monkeypatch.setitem(IGNORED_ATTRIBUTES, ("", "LRN"), IGNORED_ATTRIBUTES["", "LRN"])
    operator("LRN", ignores=("size",))(lambda d: d.view(d.input(0), d.input(0).shape))
    default = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    for harmless in ({}, {"size": 7}, default, {"__note": 3}):
        define(NodeCase("LRN", [IMAGE], harmless))
    for name in default:
        with pytest.raises(UnsupportedError, match=rf"^\[unsupported\] node node \(LRN\): attribute {name}=0.5 "):
            define(NodeCase("LRN", [IMAGE], {**default, name: 0.5}))
    with pytest.raises(UnsupportedError, match="attribute gamma=1 is not supported"):
        define(NodeCase("LRN", [IMAGE], {"gamma": 1}))


def test_contrib_operators_fall_back_on_unsupported_attribute_values():
    inputs = [normal(2, 6), normal(6)]
    for attributes in ({}, {"stash_type": 1, "axis": -1, "epsilon": 0.01}):
        define(NodeCase("SimplifiedLayerNormalization", inputs, attributes))
    with pytest.raises(UnsupportedError, match="stash_type 10 is not float32 or float64"):
        define(NodeCase("SimplifiedLayerNormalization", inputs, {"stash_type": 10}))
    with pytest.raises(UnsupportedError, match=r"attribute beta=0\.5 is not supported"):
        define(NodeCase("QuickGelu", inputs[:1], {"beta": 0.5}, domain="com.microsoft"))


def test_defaults_are_compared_by_type_and_value():
    assert is_default("", "MeanVarianceNormalization", 13, "axes", (0, 2, 3))
    assert not is_default("", "MeanVarianceNormalization", 13, "axes", (0, 2))
    assert is_default("", "Resize", 19, "mode", "nearest")
    assert not is_default("", "Resize", 19, "mode", "cubic")
    assert not is_default("", "Resize", 19, "mode", 0)
    assert is_default("", "ArgMax", 13, "keepdims", 1)
    assert not is_default("", "ArgMax", 13, "keepdims", True)
    assert not is_default("", "Dropout", 13, "seed", 0)
    assert not is_default("", "ArgMax", 13, "unknown", 0)
    assert not is_default("com.microsoft", "Gelu", 1, "alpha", 0)
