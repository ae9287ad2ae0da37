"""Tensors that name files: in branches, functions and attributes, and of types that only the evaluator knows."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.hostile.case import CASES, Case, raises, works

import tilewright

DATA = np.random.default_rng(21).normal(size=(3, 4)).astype(np.float32)
IN_FOLDER = "external data must lie in the model's folder"
Make = Callable[[TensorProto], onnx.ModelProto]


def external(name: str, location: str = "w.bin", kind: int = TensorProto.FLOAT) -> TensorProto:
    """A tensor of shape [3, 4] that lies in a file."""
    tensor = TensorProto(name=name, data_type=kind, dims=DATA.shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def model(
    nodes: Iterable[onnx.NodeProto],
    initializers: Iterable[TensorProto] = (),
    functions: Iterable[onnx.FunctionProto] = (),
    inputs: str = "cx",
) -> onnx.ModelProto:
    """Nodes from x [3, 4] and a condition c to y [3, 4]."""
    types = {"c": (TensorProto.BOOL, []), "x": (TensorProto.FLOAT, [3, 4])}
    values = [helper.make_tensor_value_info(name, *types[name]) for name in inputs]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])
    graph = helper.make_graph(list(nodes), "g", values, [out], list(initializers))
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def branch(nodes: Iterable[onnx.NodeProto], output: str, initializers: Iterable[TensorProto] = ()) -> onnx.GraphProto:
    """A branch of a conditional."""
    out = helper.make_tensor_value_info(output, TensorProto.FLOAT, [3, 4])
    return helper.make_graph(list(nodes), output, [], [out], list(initializers))


def constant(output: str, tensor: TensorProto) -> onnx.NodeProto:
    """A Constant node."""
    return helper.make_node("Constant", [], [output], value=tensor)


def conditional(then: onnx.GraphProto) -> list[onnx.NodeProto]:
    """c ? then : x."""
    other = branch([helper.make_node("Identity", ["x"], ["e"])], "e")
    return [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]


def in_branch_constant(tensor: TensorProto) -> onnx.ModelProto:
    return model(conditional(branch([constant("t", tensor)], "t")))


def in_branch_initializer(tensor: TensorProto) -> onnx.ModelProto:
    tensor.name = "w"
    return model(conditional(branch([helper.make_node("Identity", ["w"], ["t"])], "t", [tensor])))


def in_nested_branch(tensor: TensorProto) -> onnx.ModelProto:
    inner = branch([constant("t", tensor)], "t")
    outer = branch([helper.make_node("If", ["c"], ["u"], then_branch=inner, else_branch=inner)], "u")
    return model(conditional(outer))


def in_known_branch(tensor: TensorProto) -> onnx.ModelProto:
    proto = in_branch_initializer(tensor)
    del proto.graph.input[0]
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    return proto


def in_loop(tensor: TensorProto) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(n, k, s)
        for n, k, s in (("i", TensorProto.INT64, []), ("k", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [3, 4]))
    ]
    out = [helper.make_tensor_value_info("k2", TensorProto.BOOL, []), helper.make_tensor_value_info("t", 1, [3, 4])]
    nodes = [helper.make_node("Identity", ["k"], ["k2"]), constant("t", tensor)]
    body = helper.make_graph(nodes, "body", values, out)
    count = numpy_helper.from_array(np.array(1), "n")
    return model([helper.make_node("Loop", ["n", "c", "x"], ["y"], body=body)], [count])


def in_function(tensor: TensorProto) -> onnx.ModelProto:
    function = helper.make_function("own", "F", [], ["o"], [constant("o", tensor)], [helper.make_opsetid("", 21)])
    return model([helper.make_node("F", [], ["y"], domain="own")], functions=[function])


def in_branch_of_function(tensor: TensorProto) -> onnx.ModelProto:
    nodes = conditional(branch([constant("t", tensor)], "t"))
    nodes[0].output[:] = ["o"]
    function = helper.make_function("own", "F", ["c", "x"], ["o"], nodes, [helper.make_opsetid("", 21)])
    return model([helper.make_node("F", ["c", "x"], ["y"], domain="own")], functions=[function])


def in_attribute_of_call(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["o"])
    node.attribute.add(name="value", ref_attr_name="given", type=onnx.AttributeProto.TENSOR)
    function = helper.make_function("own", "F", [], ["o"], [node], [helper.make_opsetid("", 21)], ["given"])
    return model([helper.make_node("F", [], ["y"], domain="own", given=tensor)], functions=[function])


def in_default_of_function(tensor: TensorProto) -> onnx.ModelProto:
    proto = in_attribute_of_call(tensor)
    default = proto.graph.node[0].attribute.pop()
    del proto.functions[0].attribute[:]
    proto.functions[0].attribute_proto.append(default)
    return proto


def at_top(tensor: TensorProto) -> onnx.ModelProto:
    return model([constant("t", tensor), helper.make_node("CastLike", ["t", "x"], ["y"])])


def as_initializer(tensor: TensorProto) -> onnx.ModelProto:
    tensor.name = "t"
    return model([helper.make_node("CastLike", ["t", "x"], ["y"])], [tensor])


HOLDERS: tuple[Make, ...] = (in_branch_constant, in_branch_initializer, in_nested_branch, in_known_branch, in_loop,
                             in_function, in_branch_of_function, in_attribute_of_call, in_default_of_function,
                             at_top, as_initializer)  # fmt: skip


def compiled(place: Path, proto: onnx.ModelProto) -> tilewright.Executable:
    """The model compiled from a file in its folder, and saved and loaded once."""
    path = place / "model" / "m.onnx"
    onnx.save(proto, path)
    executable = tilewright.compile(path, optimizer="rule", target="x86-64-v3")
    executable.save(place / "model" / "m.tw")
    return tilewright.load(place / "model" / "m.tw")


def _honest(make: Make) -> Callable[[Path], None]:
    def run(place: Path) -> None:
        (place / "model" / "w.bin").write_bytes(DATA.tobytes())
        (place / "elsewhere" / "w.bin").write_bytes(bytes(DATA.nbytes))
        compilation = compiled(place, make(external("t")))
        (place / "model" / "w.bin").unlink()
        x = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
        feeds = {"c": np.array(True), "x": x}
        y = compilation.run({spec.name: feeds[spec.name] for spec in compilation.inputs})["y"]
        np.testing.assert_array_equal(y, DATA)

    return run


def _stolen(make: Make, link: bool, kind: int) -> Callable[[Path], None]:
    def run(place: Path) -> None:
        secret = place / "elsewhere" / ("secret.bin" if link else "w.bin")
        secret.write_bytes(DATA.tobytes())
        if link:
            (place / "elsewhere" / "w.bin").symlink_to("secret.bin")
        compiled(place, make(external("t", kind=kind))).run({"c": np.array(True), "x": DATA})

    return run


KINDS = {"float": TensorProto.FLOAT, "float8": TensorProto.FLOAT8E4M3FN, "uint4": TensorProto.UINT4}

for _make in HOLDERS:
    if _make is not in_default_of_function:
        CASES[f"honest_{_make.__name__}"] = Case(_honest(_make), "works", "")
    for _name, _kind in KINDS.items():
        CASES[f"stolen_{_name}_{_make.__name__}"] = Case(
            _stolen(_make, _name == "float8", _kind), "ModelError", "'w.bin' with its data does not exist"
        )


@raises("ModelError", "is a link that leads out")
def link_from_the_folder(place: Path) -> None:
    (place / "elsewhere" / "secret.bin").write_bytes(DATA.tobytes())
    (place / "model" / "w.bin").symlink_to(place / "elsewhere" / "secret.bin")
    compiled(place, in_branch_constant(external("t")))


@raises("ModelError", "a model in memory has no folder")
def branch_in_memory(place: Path) -> None:
    (place / "elsewhere" / "w.bin").write_bytes(DATA.tobytes())
    tilewright.compile(in_branch_constant(external("t")).SerializeToString())


@raises("ModelError", "a string")
def external_strings(place: Path) -> None:
    (place / "elsewhere" / "w.bin").write_bytes(DATA.tobytes())
    (place / "model" / "w.bin").write_bytes(DATA.tobytes())
    compiled(place, in_branch_constant(external("t", kind=TensorProto.STRING)))


@raises("ModelError", "does not exist")
def sparse_in_a_branch(place: Path) -> None:
    (place / "elsewhere" / "w.bin").write_bytes(DATA.tobytes())
    values, indices = external("t"), numpy_helper.from_array(np.arange(12), "i")
    values.dims[:] = [12]
    node = helper.make_node("Constant", [], ["t"], sparse_value=helper.make_sparse_tensor(values, indices, [3, 4]))
    compiled(place, model(conditional(branch([node], "t")))).run({"c": np.array(True), "x": DATA})


@works
def sparse_with_external_values(place: Path) -> None:
    (place / "model" / "w.bin").write_bytes(DATA.tobytes())
    values, indices = external("w"), numpy_helper.from_array(np.arange(12), "i")
    values.dims[:] = [12]
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], inputs="x")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    np.testing.assert_array_equal(compiled(place, proto)(DATA), DATA + DATA)


@raises("ModelError", "does not exist")
def list_of_tensors(place: Path) -> None:
    (place / "elsewhere" / "w.bin").write_bytes(DATA.tobytes())
    node = helper.make_node("Identity", ["x"], ["y"])
    node.attribute.add(name="__notes", type=onnx.AttributeProto.TENSORS).tensors.append(external("t"))
    compiled(place, model([node], inputs="x"))


@works
def the_callers_model_stays(place: Path) -> None:
    (place / "model" / "w.bin").write_bytes(DATA.tobytes())
    proto = in_branch_constant(external("t"))
    before = proto.SerializeToString(deterministic=True)
    from tilewright.frontend.onnx import load_onnx

    load_onnx(proto, folder=place / "model")
    assert proto.SerializeToString(deterministic=True) == before
