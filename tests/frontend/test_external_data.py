"""External data is read from inside of the model's folder only, with exactly the tensor's length."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.frontend.onnx_models import add_initializer, model, problems

from tilewright.frontend.onnx import load_onnx

DATA = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)


def external(location: str, *, offset: str | None = None, length: str | None = None) -> onnx.ModelProto:
    """A model whose initializer w lies in another file."""
    proto = model("y = MatMul(x, w)", inputs="float[N, 3] x")
    tensor = add_initializer(proto, "w", DATA)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    return proto


@pytest.fixture
def folder(tmp_path):
    """A folder with 100 bytes of padding before the data, and secrets beside it."""
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    for path in (inside / "w.bin", inside / "sub" / "w.bin", tmp_path / "secret.bin"):
        path.write_bytes(bytes(100) + DATA.tobytes())
    return inside


def load(folder, proto):
    onnx.save(proto, folder / "m.onnx")
    return load_onnx(folder / "m.onnx")


def defects(folder, proto):
    onnx.save(proto, folder / "m.onnx")
    return problems(folder / "m.onnx")


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "./w.bin"])
@pytest.mark.parametrize("length", [None, "48"])
def test_data_inside(folder, location, length):
    graph = load(folder, external(location, offset="100", length=length))
    np.testing.assert_array_equal(graph.constants["w"], DATA)
    assert not graph.constants["w"].flags.writeable


def test_link_inside(folder):
    (folder / "link.bin").symlink_to("sub/w.bin")
    np.testing.assert_array_equal(load(folder, external("link.bin", offset="100")).constants["w"], DATA)


def test_store_of_links(folder, tmp_path):
    store, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    store.mkdir()
    snapshot.mkdir()
    (store / "1234").write_bytes(DATA.tobytes())
    onnx.save(external("w.bin"), store / "5678")
    (snapshot / "m.onnx").symlink_to("../blobs/5678")
    (snapshot / "w.bin").symlink_to("../blobs/1234")
    np.testing.assert_array_equal(load_onnx(snapshot / "m.onnx").constants["w"], DATA)


def test_model_in_memory_with_a_folder(folder):
    proto = external("w.bin", offset="100")
    np.testing.assert_array_equal(load_onnx(proto.SerializeToString(), folder=folder).constants["w"], DATA)


def test_model_in_memory_without_a_folder():
    assert problems(external("w.bin").SerializeToString()) == [
        "[external-data] initializer 'w': its data lies in file 'w.bin', but a model in memory has no folder; "
        "pass folder="
    ]


HINT = "; external data must lie in the model's folder"


@pytest.mark.parametrize("location", ["/etc/passwd", "\\windows\\win.ini", "C:secret.bin"])
def test_absolute(folder, location):
    assert defects(folder, external(location)) == [
        f"[external-data] initializer 'w': location '{location}' of its external data is absolute{HINT}"
    ]


@pytest.mark.parametrize("location", ["../secret.bin", "sub/../../secret.bin", "sub/../w.bin", "..\\secret.bin"])
def test_parent(folder, location):
    assert defects(folder, external(location)) == [
        f"[external-data] initializer 'w': location '{location}' of its external data contains '..'{HINT}"
    ]


@pytest.mark.parametrize("target", ["../secret.bin", "/etc/hostname"])
def test_link_outwards(folder, target):
    (folder / "link.bin").symlink_to(target)
    assert defects(folder, external("link.bin")) == [
        "[external-data] initializer 'w': location 'link.bin' of its external data is a link that leads out of "
        f"the model's folder{HINT}"
    ]


def test_linked_folder_outwards(folder, tmp_path):
    (folder / "dir").symlink_to(tmp_path)
    assert "is a link that leads out of the model's folder" in defects(folder, external("dir/secret.bin"))[0]


def test_missing(folder):
    assert defects(folder, external("none.bin")) == [
        f"[external-data] initializer 'w': file 'none.bin' with its data does not exist{HINT}"
    ]


def test_empty_location(folder):
    assert defects(folder, external("")) == [
        f"[external-data] initializer 'w': location '' of its external data is not a file name{HINT}"
    ]


def test_too_short(folder):
    assert defects(folder, external("w.bin", offset="101")) == [
        "[external-data] initializer 'w': file 'w.bin' is too short: expected 48 bytes at offset 101, "
        f"the file has 148{HINT}"
    ]


@pytest.mark.parametrize("length", ["47", "49", "0"])
def test_length_that_does_not_fit(folder, length):
    assert defects(folder, external("w.bin", length=length)) == [
        f"[external-data] initializer 'w': expected 48 bytes of data, got length {length}{HINT}"
    ]


@pytest.mark.parametrize("offset", ["-1", "x", "9" * 30, "1e3", "²"])
def test_invalid_offset(folder, offset):
    assert defects(folder, external("w.bin", offset=offset)) == [
        f"[external-data] initializer 'w': offset {offset!r} of its external data is not a number of bytes{HINT}"
    ]


def test_folder_as_data(folder):
    assert defects(folder, external("sub")) == [f"[external-data] initializer 'w': 'sub' is not a regular file{HINT}"]


def test_pipe_as_data(folder):
    os.mkfifo(folder / "pipe")
    assert "'pipe' is not a regular file" in defects(folder, external("pipe"))[0]


def test_huge_shape_is_not_allocated(folder):
    proto = external("w.bin")
    proto.graph.initializer[0].dims[:] = [1 << 45]
    assert "is too short" in defects(folder, proto)[0]
