"""The cache of models where files change before, while and after a model is compiled."""

import os
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.driver import models
from tests.driver.model_cache.entries import OPTIONS, cache_of, saved, written

import tilewright.driver.compile as pipeline
from tilewright.driver.compile_model import compile_with_options
from tilewright.driver.model_cache import model_cache
from tilewright.driver.model_cache.tensor_positions import PositionError, tensor_positions
from tilewright.errors import ModelError


@pytest.mark.parametrize("how", ["other data", "shorter", "gone", "a link that leads out"])
def test_external_data_that_changed(how, tmp_path, resources, counted):
    path = written(tmp_path / "m", models.mlp(3), external=True)
    data = path.parent / "weights.bin"
    first = saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path)
    content = data.read_bytes()
    if how == "other data":
        data.write_bytes(bytes(len(content)))
        assert saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path) != first
    else:
        data.unlink()
        if how == "shorter":
            data.write_bytes(content[:-4])
        elif how == "a link that leads out":
            (tmp_path / "outside.bin").write_bytes(content)
            data.symlink_to(tmp_path / "outside.bin")
        with pytest.raises(ModelError):
            compile_with_options(path, OPTIONS, resources=resources)
    assert len(counted) == 2
    data.unlink(missing_ok=True)
    data.write_bytes(content)
    assert saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path) == first


def before_making(monkeypatch, action):
    """Does something once a compilation has looked for its model, before it loads the model."""
    make = pipeline.make_compilation

    def acting(*args, **kwargs):
        action()
        return make(*args, **kwargs)

    monkeypatch.setattr(pipeline, "make_compilation", acting)


def test_a_model_that_is_replaced_before_it_is_loaded(tmp_path, resources, monkeypatch, counted):
    """What is compiled and kept is what was looked for, even if another file has taken its place."""
    path = written(tmp_path / "m", models.mlp(3), external=False)
    other = models.small_convnet().SerializeToString()
    expected = saved(compile_with_options(models.mlp(3).SerializeToString(), OPTIONS), tmp_path)
    with monkeypatch.context() as patch:
        before_making(patch, lambda: path.write_bytes(other))
        assert saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path) == expected
    written(tmp_path / "m", models.mlp(3), external=False)
    assert saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path) == expected
    assert len(counted) == 2


def test_a_folder_that_is_switched_before_it_is_loaded(tmp_path, resources, monkeypatch):
    """`current` is a link to one of two versions that differ in their data alone."""
    paths = [written(tmp_path / version, models.mlp(3), external=True) for version in ("v1", "v2")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    data = paths[1].parent / "weights.bin"
    data.write_bytes((np.frombuffer(data.read_bytes(), np.float32) * 3).tobytes())
    (tmp_path / "current").symlink_to("v1")

    def switch():
        (tmp_path / "next").symlink_to("v2")
        os.replace(tmp_path / "next", tmp_path / "current")

    before_making(monkeypatch, switch)
    compile_with_options(tmp_path / "current" / paths[0].name, OPTIONS, resources=resources)
    monkeypatch.undo()
    for path in paths:
        expected = saved(compile_with_options(path, OPTIONS), tmp_path)
        assert saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path) == expected


def test_data_that_changes_after_it_is_loaded_is_not_kept(tmp_path, resources, monkeypatch):
    path = written(tmp_path / "m", models.mlp(3), external=True)
    data = path.parent / "weights.bin"
    note = model_cache.NewModel.note_initializers

    def changing(new, constants):
        data.write_bytes(bytes(data.stat().st_size))
        note(new, constants)

    monkeypatch.setattr(model_cache.NewModel, "note_initializers", changing)
    compile_with_options(path, OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0


def test_external_data_of_other_tensors_is_not_kept(tmp_path, resources):
    """What is no initializer is not compared with its file."""
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="c.bin")
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["x", "c"], ["y"])]
    graph = helper.make_graph(nodes, "g", [models.value("x", [4])], [models.value("y", [4])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "c.bin").write_bytes(models.array(1, 4).tobytes())
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    compile_with_options(tmp_path / "m.onnx", OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0


def test_files_that_are_mostly_no_weights_are_not_kept(tmp_path, resources, monkeypatch):
    """Files of holes have any size, and all of a file would be read."""
    path = written(tmp_path / "m", models.mlp(3), external=True)
    data = path.parent / "weights.bin"
    size = data.stat().st_size
    os.truncate(data, 1 << 40)
    compile_with_options(path, OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0
    os.truncate(data, size + 1)
    first = saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path)
    assert cache_of(resources).usage().entries == 1
    os.truncate(data, 1 << 40)
    assert saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path) == first


def test_locations_of_tensors_with_their_own_data_are_not_read(tmp_path, resources, counted):
    model = models.mlp(3)
    model.graph.initializer[0].external_data.add(key="location", value="big.bin")
    path = written(tmp_path / "m", model, external=False)
    (path.parent / "big.bin").touch()
    os.truncate(path.parent / "big.bin", 1 << 40)
    for _ in range(2):
        compile_with_options(path, OPTIONS, resources=resources)
    assert len(counted) == 1


def test_unclear_places_of_data():
    tensor = TensorProto(name="w", data_location=TensorProto.EXTERNAL)
    graph = helper.make_graph([], "g", [], [], [tensor])
    data = helper.make_model(graph).SerializeToString()
    with pytest.raises(PositionError):
        list(tensor_positions(memoryview(data)))
    tensor.external_data.add(key="location", value="w.bin")
    data = helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString()
    assert [p.location for p in tensor_positions(memoryview(data))] == ["w.bin"]
    # a value that protobuf drops
    data = data.replace(b"\x70\x01", b"\x70\x05")
    with pytest.raises(PositionError):
        list(tensor_positions(memoryview(data)))


def test_a_pipe_is_left_to_the_compilation(tmp_path, resources):
    """Opening it twice would take its writer's other end away."""
    data = models.mlp(3).SerializeToString()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(data), daemon=True)
    writer.start()
    result = saved(compile_with_options(pipe, OPTIONS, resources=resources), tmp_path)
    writer.join(60)
    assert result == saved(compile_with_options(data, OPTIONS), tmp_path)
