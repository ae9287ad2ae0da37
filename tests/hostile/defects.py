"""Defective models: each must be refused with an error that names the place, or work."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.hostile.case import CASES, Case, raises, works
from tests.hostile.work import compiled, model

import tilewright

VALUES = np.array([1.5, 2.5], np.float32)


def _constant(**attributes: object) -> None:
    node = helper.make_node("Constant", [], ["w"], name="c")
    for name, value in attributes.items():
        if isinstance(value, onnx.AttributeProto):
            node.attribute.append(value)
        else:
            node.attribute.append(helper.make_attribute(name, value))
    nodes = [node, helper.make_node("Add", ["x", "w"], ["y"])]
    compilation = compiled(model(nodes, {"x": [2]}))
    np.testing.assert_array_equal(compilation(VALUES), VALUES + VALUES)


def _tensor(**changes: object) -> TensorProto:
    tensor = numpy_helper.from_array(VALUES, "t")
    for name, value in changes.items():
        if isinstance(value, list):
            del getattr(tensor, name)[:]
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return tensor


def _sparse(values: TensorProto, indices: TensorProto, dims: list[int]) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=values, indices=indices, dims=dims)


def _array(values: object, dtype: str) -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), "i")


_PLACE = numpy_helper.from_array(np.array([0, 1]), "i")

_TENSORS = {
    "bytes": _tensor(raw_data=b"123"),
    "negative": _tensor(dims=[-2]),
    "product_wraps": _tensor(dims=[0, 1 << 62, 1 << 62], raw_data=b""),
    "huge": _tensor(dims=[1 << 62, 1 << 62]),
    "many_dims": _tensor(dims=[2, *[1] * 70]),
    "no_type": _tensor(data_type=0),
    "unknown_type": _tensor(data_type=99),
    "unknown_location": _tensor(data_location=1),
    "float8_short": _tensor(data_type=TensorProto.FLOAT8E4M3FN, raw_data=b"1"),
    "uint4_short": _tensor(data_type=TensorProto.UINT4, raw_data=b"", dims=[9]),
    "complex_short": _tensor(data_type=TensorProto.COMPLEX64, raw_data=b"123"),
    "strings_missing": _tensor(data_type=TensorProto.STRING, raw_data=b""),
    "int32_out_of_range": TensorProto(name="t", data_type=TensorProto.INT8, dims=[2], int32_data=[300, -300]),
}  # fmt: skip

_SPARSE = {
    "shape_of_rank_3_indices": _sparse(_tensor(), _array([[[0]], [[1]]], "int64"), [2]),
    "scalar_indices": _sparse(_tensor(), _array(0, "int64"), [2]),
    "float_indices": _sparse(_tensor(), _array([0, 1], "float32"), [2]),
    "bool_indices": _sparse(_tensor(), _array([True, False], "bool"), [2]),
    "int8_indices": _sparse(_tensor(), _array([0, 1], "int8"), [2]),
    "string_indices": _sparse(_tensor(), TensorProto(name="i", data_type=8, dims=[2], string_data=[b"0", b"1"]), [2]),
    "indices_out_of_range": _sparse(_tensor(), _array([0, 7], "int64"), [2]),
    "negative_indices": _sparse(_tensor(), _array([0, -1], "int64"), [2]),
    "repeated_indices": _sparse(_tensor(), _array([1, 1], "int64"), [2]),
    "columns_that_do_not_fit": _sparse(_tensor(), _array([[0, 0, 0], [0, 0, 1]], "int64"), [2]),
    "too_many_values": _sparse(_tensor(dims=[2]), _array([0], "int64"), [2]),
    "scalar_values": _sparse(numpy_helper.from_array(VALUES[0], "t"), _array([0, 1], "int64"), [2]),
    "matrix_of_values": _sparse(numpy_helper.from_array(VALUES.reshape(1, 2), "t"), _array([0, 1], "int64"), [2]),
    "float8_values": _sparse(_tensor(data_type=TensorProto.FLOAT8E4M3FN, raw_data=b"12"), _PLACE, [2]),
    "string_values": _sparse(TensorProto(name="t", data_type=8, dims=[2], string_data=[b"a", b"b"]), _PLACE, [2]),
    "dims_wrap": _sparse(_tensor(), _PLACE, [0, 1 << 62, 1 << 62]),
    "dims_huge": _sparse(_tensor(), _PLACE, [1 << 40]),
    "dims_negative": _sparse(_tensor(), _PLACE, [-2]),
    "dims_many": _sparse(_tensor(), _PLACE, [2, *[1] * 70]),
    "dims_none": _sparse(_tensor(), _PLACE, []),
    "values_dims_wrap": _sparse(_tensor(dims=[0, 1 << 62, 1 << 62], raw_data=b""), _array([], "int64"), [2]),
}  # fmt: skip


def _initializer(tensor: TensorProto | onnx.SparseTensorProto) -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [2]})
    if isinstance(tensor, TensorProto):
        proto.graph.initializer.add().CopyFrom(tensor)
        proto.graph.initializer[0].name = "w"
    else:
        proto.graph.sparse_initializer.add().CopyFrom(tensor)
        proto.graph.sparse_initializer[0].values.name = "w"
    compiled(proto)


def _in_branch(**attributes: object) -> None:
    """A defective Constant where only the reference evaluator sees it."""
    node = helper.make_node("Constant", [], ["t"], **attributes)
    out = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    then = helper.make_graph([node], "then", [], [out])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["t"])], "else", [], [out])
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["y"], then_branch=then, else_branch=other, name="if"),
    ]
    compiled(model(nodes, {"x": [1]}))(VALUES[:1])


for _name, _value in _TENSORS.items():
    CASES[f"constant_{_name}"] = Case(lambda _, v=_value: _constant(value=v), "ModelError", "")
    CASES[f"initializer_{_name}"] = Case(lambda _, v=_value: _initializer(v), "ModelError", "")
    CASES[f"branch_{_name}"] = Case(lambda _, v=_value: _in_branch(value=v), "ModelError", "")
for _name, _value in _SPARSE.items():
    CASES[f"sparse_constant_{_name}"] = Case(lambda _, v=_value: _constant(sparse_value=v), "ModelError", "")
    CASES[f"sparse_initializer_{_name}"] = Case(lambda _, v=_value: _initializer(v), "ModelError", "")
    CASES[f"sparse_branch_{_name}"] = Case(lambda _, v=_value: _in_branch(sparse_value=v), "ModelError", "")


@raises("ModelError", "Constant")
def constant_without_value(place: Path) -> None:
    _constant()


@raises("ModelError", "Constant")
def constant_with_two_values(place: Path) -> None:
    _constant(value=_tensor(), value_float=1.0)


@raises("ModelError", "Constant")
def constant_of_wrong_attribute_type(place: Path) -> None:
    _constant(value=onnx.AttributeProto(name="value", type=onnx.AttributeProto.FLOAT, f=1.0))


@raises("ModelError", "Constant")
def constant_without_tensor(place: Path) -> None:
    _constant(value=onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR))


@raises("ModelError", "dimensions")
def input_of_rank_65(place: Path) -> None:
    compiled(model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1] * 65}))


@raises("ModelError", "dimensions")
def unsqueezed_to_rank_100(place: Path) -> None:
    axes = numpy_helper.from_array(np.arange(1, 100), "a")
    compiled(model([helper.make_node("Unsqueeze", ["x", "a"], ["y"])], {"x": [3]}, [axes]))


@raises("ModelError", "dimensions")
def reshaped_to_rank_100(place: Path) -> None:
    target = numpy_helper.from_array(np.array([3, *[1] * 99]), "t")
    compiled(model([helper.make_node("Reshape", ["x", "t"], ["y"])], {"x": [3]}, [target]))


def _function_opset(version: int) -> None:
    proto = model([helper.make_node("F", ["x"], ["y"], domain="own")], {"x": [3]})
    proto.opset_import.add(domain="own", version=1)
    imports = [helper.make_opsetid("", version)]
    node = helper.make_node("Relu", ["a"], ["b"])
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], [node], imports))
    compiled(proto)


@raises("ModelError", "version")
def opset_of_a_function(place: Path) -> None:
    _function_opset(1 << 40)


@raises("ModelError", "version")
def opset_of_a_domain(place: Path) -> None:
    proto = model([helper.make_node("F", ["x"], ["y"], domain="own")], {"x": [3]})
    proto.opset_import.add(domain="own", version=1 << 40)
    node = helper.make_node("Relu", ["a"], ["b"])
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], [node], [helper.make_opsetid("", 21)]))
    compiled(proto)


@raises("ModelError", "version")
def opset_of_an_unused_domain(place: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": [3]})
    proto.opset_import.add(domain="ai.onnx.ml", version=1 << 40)
    compiled(proto)


@raises("ModelError", "no array can count")
def empty_and_huge(place: Path) -> None:
    """An empty tensor whose other sizes are beyond what strides can be counted in."""
    target = numpy_helper.from_array(np.array([0, 1 << 62, 1 << 62]), "t")
    compiled(model([helper.make_node("ConstantOfShape", ["t"], ["y"])], {"x": [3]}, [target]))


@raises("ModelError", "no array can count")
def empty_and_huge_by_expanding(place: Path) -> None:
    target = numpy_helper.from_array(np.array([1 << 62, 1 << 62, 1]), "t")
    nodes = [
        helper.make_node("Slice", ["x", "zero", "zero"], ["e"]),
        helper.make_node("Expand", ["e", "t"], ["y"]),
    ]
    zero = numpy_helper.from_array(np.array([0]), "zero")
    compiled(model(nodes, {"x": [3]}, [target, zero]))(np.ones(3, np.float32))


def _variadic(operator: str, count: int) -> None:
    names = [f"x{k}" for k in range(count)]
    compilation = compiled(model([helper.make_node(operator, names, ["y"])], {n: [3] for n in names}))
    xs = np.random.default_rng(1).normal(size=(count, 3)).astype(np.float32)
    reference = {"Sum": np.sum, "Max": np.max, "Min": np.min, "Mean": np.mean}[operator]
    np.testing.assert_allclose(compilation(*xs), reference(xs.astype(np.float64), 0), rtol=1e-4, atol=1e-5)


@works
def sum_of_300(place: Path) -> None:
    _variadic("Sum", 300)


@works
def max_of_300(place: Path) -> None:
    _variadic("Max", 300)


@works
def min_of_300(place: Path) -> None:
    _variadic("Min", 300)


@works
def mean_of_300(place: Path) -> None:
    _variadic("Mean", 300)


@works
def concat_of_300(place: Path) -> None:
    names = [f"x{k}" for k in range(300)]
    compilation = compiled(model([helper.make_node("Concat", names, ["y"], axis=0)], {n: [1] for n in names}))
    xs = np.random.default_rng(1).normal(size=(300, 1)).astype(np.float32)
    np.testing.assert_array_equal(compilation(*xs), xs.reshape(-1))


def _nested(depth: int, condition: bool | None) -> None:
    out = helper.make_tensor_value_info("t", TensorProto.FLOAT, [1])
    proto = model([helper.make_node("If", ["c"], ["y"], name="outer")], {"x": [1]})
    node = proto.graph.node[0]
    # from the outside in: what is put into another message is read again, which protobuf does to a depth of 100
    for level in range(depth):
        node.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(_leaf(out))
        inner = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        inner.name = "g"
        inner.output.add().CopyFrom(out)
        operator = "If" if level < depth - 1 else "Relu"
        node = inner.node.add(op_type=operator, input=["c" if operator == "If" else "x"], output=["t"])
    if condition is None:
        proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    else:
        proto.graph.initializer.append(numpy_helper.from_array(np.array(condition), "c"))
    compiled(proto)


def _leaf(out: onnx.ValueInfoProto) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "g", [], [out])


@raises("ModelError", "nested")
def nested_200_ifs(place: Path) -> None:
    _nested(200, None)


@raises("ModelError", "nested")
def nested_200_known_ifs(place: Path) -> None:
    _nested(200, True)


@raises("ModelError", "nested")
def nested_45_ifs(place: Path) -> None:
    _nested(45, None)


@works
def nested_12_ifs(place: Path) -> None:
    _nested(12, None)


@raises("ModelError", "memory")
def sparse_file_of_4_tib(place: Path) -> None:
    with (place / "model" / "w.bin").open("wb") as file:
        file.truncate(1 << 42)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 40], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    path = place / "model" / "m.onnx"
    onnx.save(model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [1 << 40]}, [tensor]), path)
    tilewright.compile(path)
