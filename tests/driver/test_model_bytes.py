"""Positions of tensors in a model's file, and weights as views of bytes."""

import gc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.driver import models

from tilewright.driver.model_cache.tensor_positions import PositionError, TensorPosition, tensor_positions
from tilewright.driver.model_cache.weight_sources import FileBlocks, FileView, file_block, weight_of
from tilewright.machine.alignment import BUFFER_ALIGNMENT


def positions(data):
    return list(tensor_positions(memoryview(data)))


@pytest.mark.parametrize("make", [models.mlp, models.convnet, models.passing_on, models.with_fallback])
def test_raw_data_is_found(make):
    model = make()
    data = model.SerializeToString()
    initializers = {p.name: p for p in positions(data) if p.is_initializer}
    assert list(initializers) == [t.name for t in model.graph.initializer if t.HasField("raw_data")]
    for tensor in model.graph.initializer:
        p = initializers[tensor.name]
        assert data[p.offset : p.offset + p.length] == tensor.raw_data


def test_tensors_of_nodes_and_subgraphs_are_no_initializers():
    inner = helper.make_graph([], "inner", [], [models.value("c", [2])], [numpy_helper.from_array(np.ones(2), "c")])
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.ones(3), "k0"))
    branch = helper.make_node("If", ["b"], ["y"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph([constant, branch], "g", [], [], [numpy_helper.from_array(np.ones(4), "w")])
    tensors = positions(helper.make_model(graph).SerializeToString())
    names = sorted((p.name, p.is_initializer) for p in tensors)
    assert names == [("c", False), ("c", False), ("k0", False), ("w", True)]


def test_defaults_of_a_functions_attributes():
    model = helper.make_model(helper.make_graph([], "g", [], []))
    default = helper.make_attribute("a", numpy_helper.from_array(np.ones(2), "d"))
    function = helper.make_function("f", "F", [], ["y"], [], [helper.make_opsetid("", 17)], attribute_protos=[default])
    model.functions.append(function)
    assert [(p.name, p.is_initializer) for p in positions(model.SerializeToString())] == [("d", False)]


def test_external_data():
    tensor = TensorProto(name="w", data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "a/b.bin", "offset": "64", "length": "12"}.items():
        tensor.external_data.add(key=key, value=value)
    data = helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString()
    assert positions(data) == [TensorPosition("w", True, 64, 12, "a/b.bin")]
    tensor.external_data[1].value = "-1"
    with pytest.raises(PositionError):
        positions(helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString())


def test_bytes_that_are_no_model():
    data = models.convnet().SerializeToString()
    rng = np.random.default_rng()
    for _ in range(300):
        end = int(rng.integers(0, len(data)))
        changed = bytearray(data[: end or 1])
        changed[int(rng.integers(0, len(changed)))] ^= int(rng.integers(1, 256))
        try:
            tensors = positions(bytes(changed))
        except PositionError:
            continue
        assert all(p.location or p.offset + p.length <= len(changed) for p in tensors)


def test_views_of_initializers():
    """Random views: transposed, sliced, repeated; read from bytes at any alignment."""
    rng = np.random.default_rng()
    for _ in range(200):
        dims = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 4)))
        dtype = np.dtype(str(rng.choice(["float32", "int8", "float64", "float16"])))
        array = rng.integers(0, 100, dims).astype(dtype)
        before = int(rng.integers(0, 9))
        content = np.frombuffer(bytes(before) + array.tobytes() + bytes(3), np.uint8)
        place = TensorPosition("w", True, before, array.nbytes)
        source = blocks_of(array, content, place)
        view = array.transpose(rng.permutation(array.ndim))
        view = view[tuple(slice(int(rng.integers(0, n)), None, int(rng.integers(1, 4))) for n in view.shape)]
        if rng.random() < 0.3:
            view = np.broadcast_to(view, (3, *view.shape))
        file_view = source.view_of(view)
        assert file_view is not None
        weight = weight_of(file_view, view.dtype, view.shape, content)
        assert np.array_equal(weight, view)
        assert weight.flags.c_contiguous
        assert weight.__array_interface__["data"][0] % BUFFER_ALIGNMENT == 0


def blocks_of(array, content, place=None):
    place = place or TensorPosition("w", True, 0, array.nbytes)
    block = file_block(place, array, content)
    return FileBlocks([] if block is None else [block])


def test_arrays_that_are_no_views():
    array = models.array(1, 6, 7)
    content = np.frombuffer(array.tobytes(), np.uint8)
    blocks = blocks_of(array, content)
    assert blocks.view_of(array[2:]) == FileView("", 56, (28, 4))
    assert blocks.view_of(array.copy()) is None
    assert blocks.view_of(array[::-1]) is None
    assert blocks.view_of(array[:0]) is None


def test_arrays_with_other_bytes_than_the_file_are_no_blocks():
    array = models.array(1, 6, 7)
    content = np.frombuffer(array.tobytes(), np.uint8)
    place = TensorPosition("w", True, 0, array.nbytes)
    assert file_block(place, array, content) is not None
    changed = content.copy()
    changed[-1] ^= 1
    assert file_block(place, array, changed) is None
    assert file_block(place, array, content[:-1]) is None
    assert file_block(place, None, content) is None
    assert file_block(TensorPosition("w", True, 0, 8), array, content) is None
    assert file_block(TensorPosition("w", False, 0, array.nbytes), array, content) is None
    assert file_block(place, array.T, content) is None
    assert file_block(TensorPosition("w", True, 0, None), array.astype(object), content) is None
    long = np.zeros(3 << 20, np.uint8)
    other = long.copy()
    other[-1] = 1
    assert file_block(TensorPosition("w", True, 0, None), long, long.copy()) is not None
    assert file_block(TensorPosition("w", True, 0, None), long, other) is None


def test_memory_that_was_freed_is_nobodys():
    array = models.array(1, 300, 300)
    content = np.frombuffer(array.tobytes(), np.uint8)
    block = file_block(TensorPosition("w", True, 0, array.nbytes), array, content)
    view = array[3:]
    del array
    gc.collect()
    assert FileBlocks([block]).view_of(view) is not None
    del view
    gc.collect()
    other = models.array(2, 300, 300)
    assert FileBlocks([block]).view_of(other) is None


@pytest.mark.parametrize("view", [FileView("", 40, (4,)), FileView("", -4, (4,)), FileView("", 0, (-4,))])
def test_views_beyond_the_file(view):
    with pytest.raises(ValueError, match="outside"):
        weight_of(view, np.dtype(np.float32), (5,), np.zeros(56, np.uint8))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (bytes(1 << 20), "no number"),
        (b"\x3a\x80\x80\x40" + bytes(1 << 20), "no number"),
        (b"\x08\x01" * ((1 << 20) + 1), "too many fields"),
    ],
)
def test_what_is_no_model_is_given_up_early(content, problem):
    """A download that broke off leaves zeros."""
    with pytest.raises(PositionError, match=problem):
        positions(content)


def test_models_without_tensors():
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {y = Relu(x)}'
    model = onnx.parser.parse_model(text)
    assert positions(model.SerializeToString()) == []
