"""The cache of models: the same bytes with it, no trust in what others may write, and nothing that is out of date."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.driver import models

import tilewright.driver.compile as pipeline
from tilewright import custom_operators
from tilewright.driver.compile_model import compile_with_options
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.code_cache import CodeCache
from tilewright.driver.kernel_build.record_source import RecordSource
from tilewright.driver.model_cache import model_cache
from tilewright.driver.model_cache.model_cache import ModelCache, look_up
from tilewright.driver.model_cache.model_entry import read_head
from tilewright.driver.model_cache.record_state import NO_RECORDS, has_records_of, record_state
from tilewright.driver.options import CompileOptions
from tilewright.errors import FallbackWarning, ModelError, StoreError

OPTIONS = CompileOptions()
SEED = np.random.SeedSequence().entropy


@pytest.fixture
def resources(tmp_path):
    return BuildResources(1, CodeCache(tmp_path / "cache" / "code"), True)


@pytest.fixture
def counted(monkeypatch):
    """Options of the compilations that the pipeline makes."""
    calls = []
    make = pipeline.make_compilation

    def counting(model, options, *args, **kwargs):
        calls.append(options)
        return make(model, options, *args, **kwargs)

    monkeypatch.setattr(pipeline, "make_compilation", counting)
    return calls


def cache_of(resources):
    return ModelCache(resources.cache.folder.parent / "models")


def saved(executable, folder):
    path = folder / "saved.tw"
    executable.save(path)
    return path.read_bytes()


def entry_path(resources):
    (path,) = [p for p in cache_of(resources).folder.rglob("*") if p.is_file()]
    return path


def written(folder, model, external):
    """The path of a model's file, with its weights beside it or in it."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    if external:
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    else:
        onnx.save(model, path)
    return path


def weight_sources(resources):
    """Where the weights of the only entry come from: parts of the entry, or of which file."""
    with open(entry_path(resources), "rb") as file:
        head = read_head(file.fileno())
    return [w[3] for w in head.fields["weights"]]


@pytest.mark.parametrize("form", ["bytes", "file", "external"])
@pytest.mark.parametrize("make", [models.mlp, models.convnet, models.passing_on])
def test_the_same_bytes_without_a_compilation(make, form, tmp_path, resources, counted):
    model = make()
    source = model.SerializeToString() if form == "bytes" else written(tmp_path / "m", model, form == "external")
    expected = saved(compile_with_options(source, OPTIONS, resources=BuildResources(1, None, True)), tmp_path)
    assert saved(compile_with_options(source, OPTIONS, resources=resources), tmp_path) == expected
    assert len(counted) == 2
    second = compile_with_options(source, OPTIONS, resources=resources)
    assert len(counted) == 2
    assert saved(second, tmp_path) == expected


def test_weights_are_read_from_the_model(tmp_path, resources):
    """Products with constant weights: packed or not, they are views of the model's bytes."""
    constants = {"w": models.array(1, 64, 96), "v": models.array(2, 96, 48)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    x, y = models.value("x", [5, 64]), models.value("y", [5, 48])
    path = written(tmp_path / "m", models.model(nodes, [x], [y], constants), external=True)
    compile_with_options(path, OPTIONS, resources=resources)
    sources = weight_sources(resources)
    assert sources
    assert all(s[0] == "weights.bin" for s in sources)


def random_model(rng):
    """Products and convolutions of random sizes, with weights that are stored, folded, shared or transposed."""
    rows, k, n = (int(x) for x in rng.integers(1, 70, 3))
    weights = {
        "w": rng.standard_normal((n, k) if rng.random() < 0.5 else (k, n)).astype(np.float32),
        "s": rng.standard_normal((n,)).astype(np.float32),
    }
    nodes = []
    if weights["w"].shape == (k, n):
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["h"]))
    else:
        nodes.append(helper.make_node("Gemm", ["x", "w"], ["h"], transB=1))
    nodes.append(helper.make_node(str(rng.choice(["Add", "Mul"])), ["h", "s"], ["g"]))
    nodes.append(helper.make_node(str(rng.choice(["Relu", "Sigmoid", "Identity"])), ["g"], ["y"]))
    size = rows if rng.random() < 0.5 else "rows"
    return models.model(nodes, [models.value("x", [size, k])], [models.value("y", [size, n])], weights)


@pytest.mark.parametrize("index", range(4))
def test_random_models(index, tmp_path, resources, counted):
    rng = np.random.default_rng([SEED % 2**32, index])
    path = written(tmp_path / "m", random_model(rng), bool(rng.random() < 0.5))
    options = CompileOptions(optimizer=str(rng.choice(["rule", "roller", "gensor"])))
    first = saved(compile_with_options(path, options, resources=resources), tmp_path)
    assert saved(compile_with_options(path, options, resources=resources), tmp_path) == first, f"seed {SEED}"
    assert len(counted) == 1


def test_other_models_and_options_are_compiled(tmp_path, resources, counted):
    first, second = models.mlp(), models.mlp()
    second.graph.initializer[0].CopyFrom(numpy_helper.from_array(models.array(9, 40, 24), "w1"))
    for model in (first, second):
        compile_with_options(model.SerializeToString(), OPTIONS, resources=resources)
    data = first.SerializeToString()
    for changed in (
        CompileOptions(shapes={"batch": 3}), CompileOptions(shapes={"batch": "1..4"}), CompileOptions(exact=True),
        CompileOptions(target="x86-64-v3"), CompileOptions(optimizer="rule"), CompileOptions(variants=1),
        CompileOptions(machine="zen5"), CompileOptions(fusion="unfused"), CompileOptions(winograd="fast"),
    ):  # fmt: skip
        compile_with_options(data, changed, resources=resources)
    assert len(counted) == 11
    compile_with_options(data, CompileOptions(shapes={"batch": "1..4"}), resources=resources)
    assert len(counted) == 11
    assert cache_of(resources).usage().entries == 11


def test_other_versions_are_compiled(resources, counted, monkeypatch):
    data = models.mlp().SerializeToString()
    compile_with_options(data, OPTIONS, resources=resources)
    monkeypatch.setattr("tilewright.driver.model_cache.model_key._versions", lambda: ["another"])
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2


@pytest.mark.parametrize("how", ["other data", "shorter", "gone", "a link that leads out"])
def test_external_data_that_changed(how, tmp_path, resources, counted):
    path = written(tmp_path / "m", models.mlp(), external=True)
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
    path = written(tmp_path / "m", models.mlp(), external=False)
    other = models.convnet().SerializeToString()
    expected = saved(compile_with_options(models.mlp().SerializeToString(), OPTIONS), tmp_path)
    with monkeypatch.context() as patch:
        before_making(patch, lambda: path.write_bytes(other))
        assert saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path) == expected
    written(tmp_path / "m", models.mlp(), external=False)
    assert saved(compile_with_options(path, OPTIONS, resources=resources), tmp_path) == expected
    assert len(counted) == 2


def test_a_folder_that_is_switched_before_it_is_loaded(tmp_path, resources, monkeypatch):
    """`current` is a link to one of two versions that differ in their data alone."""
    paths = [written(tmp_path / version, models.mlp(), external=True) for version in ("v1", "v2")]
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
    path = written(tmp_path / "m", models.mlp(), external=True)
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


def test_damaged_entries_count_as_missing(tmp_path, resources, counted):
    data = models.convnet().SerializeToString()
    expected = saved(compile_with_options(data, OPTIONS, resources=resources), tmp_path)
    path = entry_path(resources)
    content = path.read_bytes()
    rng = np.random.default_rng()
    damaged = [content[:64], content[:81], content[: len(content) // 2], content[:-1], content + b"?"]
    for place in [0, 70, 90, len(content) - 70, *rng.integers(0, len(content), 12)]:
        # bytes between the parts are not read
        damaged.append(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
    for number, other in enumerate([*damaged, b""]):
        path.write_bytes(other)
        assert saved(compile_with_options(data, OPTIONS, resources=resources), tmp_path) == expected, number
    assert len(counted) >= len(damaged) - 12
    assert path.read_bytes() == content


def test_what_others_may_write_is_not_read(resources, counted):
    data = models.mlp().SerializeToString()
    compile_with_options(data, OPTIONS, resources=resources)
    entry_path(resources).chmod(0o622)
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2
    assert entry_path(resources).stat().st_mode & 0o777 == 0o600
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2
    cache_of(resources).folder.chmod(0o777)
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 3


def test_what_is_not_kept(resources, monkeypatch):
    data = models.mlp().SerializeToString()
    assert look_up(models.mlp(), OPTIONS, resources) == (None, None)
    assert look_up(Path("missing.onnx"), OPTIONS, resources) == (None, None)
    assert look_up(data, OPTIONS, BuildResources(1, None, True)) == (None, None)
    assert look_up(data, CompileOptions(layouts=MappingProxyType({})), resources) == (None, None)
    assert look_up(data, CompileOptions(target="z80"), resources) == (None, None)
    assert look_up(data, CompileOptions(shapes={"batch": 1.5}), resources) == (None, None)
    frozen = BuildResources(1, resources.cache, True, RecordSource(Path("r.db"), frozen=True))
    assert look_up(data, OPTIONS, frozen) == (None, None)
    assert look_up(b"no model", OPTIONS, resources) == (None, None)
    monkeypatch.setitem(custom_operators.PYTHON_OPERATORS, ("d", "f"), custom_operators.PythonOperator(len))
    assert look_up(data, OPTIONS, resources) == (None, None)


def test_warnings_are_repeated(resources, counted):
    data = models.with_fallback().SerializeToString()
    for _ in range(2):
        with pytest.warns(FallbackWarning):
            compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2
    assert cache_of(resources).usage().entries == 0


def test_computed_weights_have_a_limit(tmp_path, resources, monkeypatch):
    monkeypatch.setattr(model_cache, "MAX_INLINE_BYTES", 100)
    weight = models.array(1, 30, 40)
    nodes = [helper.make_node("Exp", ["w"], ["v"]), helper.make_node("MatMul", ["x", "v"], ["y"])]
    model = models.model(nodes, [models.value("x", [3, 30])], [models.value("y", [3, 40])], {"w": weight})
    data = model.SerializeToString()
    compile_with_options(data, OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0
    _, new = look_up(data, OPTIONS, resources)
    compilation = pipeline.make_compilation(data, OPTIONS, loaded=lambda g: new.note_initializers(g.constants))
    reason = new.keep(compilation.artifact(), compilation.weight_sources, warned=False)
    assert reason == "0 MiB of its weights are computed from the model's, more than 0"
    monkeypatch.undo()
    compile_with_options(data, OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 1


def test_pruning(resources, monkeypatch):
    monkeypatch.setattr(ModelCache.prune, "__defaults__", (1,))
    compile_with_options(models.mlp().SerializeToString(), OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0


def test_records_decide(tmp_path, resources, counted):
    """A store that is gone, or has other measured programs, is asked again, and gets what a compilation keeps."""
    store = tmp_path / "records.db"
    data = models.mlp().SerializeToString()
    source = RecordSource(store)
    given = BuildResources(1, resources.cache, True, source)
    first = saved(compile_with_options(data, OPTIONS, resources=given), tmp_path)
    compile_with_options(data, OPTIONS, resources=given)
    assert len(counted) == 1
    # another model's compilation adds records that were not measured
    compile_with_options(models.convnet().SerializeToString(), OPTIONS, resources=given)
    compile_with_options(data, OPTIONS, resources=given)
    assert len(counted) == 2
    for path in tmp_path.glob("records.db*"):
        path.unlink()
    assert saved(compile_with_options(data, OPTIONS, resources=given), tmp_path) == first
    assert len(counted) == 3
    frozen = BuildResources(1, resources.cache, True, RecordSource(store, frozen=True))
    assert saved(compile_with_options(data, OPTIONS, resources=frozen), tmp_path) == first
    for path in tmp_path.glob("records.db*"):
        path.unlink()
    with pytest.raises(StoreError):
        compile_with_options(data, OPTIONS, resources=frozen)


def test_measured_records_are_used(tmp_path, resources, counted):
    store = tmp_path / "records.db"
    data = models.mlp().SerializeToString()
    given = BuildResources(1, resources.cache, True, RecordSource(store))
    compile_with_options(data, OPTIONS, resources=given)
    change(store, "UPDATE records SET kind = 1 WHERE id = (SELECT min(id) FROM records WHERE kind = 3)")
    compile_with_options(data, OPTIONS, resources=given)
    assert len(counted) == 2


def test_records_that_are_measured_meanwhile(tmp_path, resources, counted, monkeypatch):
    store = tmp_path / "records.db"
    data = models.mlp().SerializeToString()
    given = BuildResources(1, resources.cache, True, RecordSource(store))
    make = pipeline.make_compilation

    def racing(*args, **kwargs):
        result = make(*args, **kwargs)
        change(store, "UPDATE records SET kind = 1 WHERE id = (SELECT min(id) FROM records WHERE kind = 3)")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "make_compilation", racing)
        compile_with_options(data, OPTIONS, resources=given)
    assert cache_of(resources).usage().entries == 0
    compile_with_options(data, OPTIONS, resources=given)
    assert len(counted) == 2


def change(store, statement):
    with closing(sqlite3.connect(store)) as db, db:
        db.execute(statement)


def test_the_state_of_records(tmp_path, resources):
    """All measured records have a part in it: numbers are given again after pruning."""
    store = tmp_path / "records.db"
    assert record_state(store) == NO_RECORDS
    given = BuildResources(1, resources.cache, True, RecordSource(store))
    compile_with_options(models.mlp().SerializeToString(), OPTIONS, resources=given)
    constructed = record_state(store)
    assert constructed.measured == NO_RECORDS.measured
    change(store, "UPDATE records SET kind = 1")
    state = record_state(store)
    assert state.measured[0] > 1
    assert has_records_of(state, store)
    assert not has_records_of(constructed, store)
    first = "(SELECT min(id) FROM records)"
    change(store, f"UPDATE records SET digest = zeroblob(length(digest)) WHERE id = {first}")
    assert record_state(store).measured[0] == state.measured[0]
    assert not has_records_of(state, store)
    store.write_bytes(b"no store")
    assert record_state(store) is None
    assert not has_records_of(None, store)


def test_links_and_pipes_are_no_entries(tmp_path, resources, counted):
    data = models.mlp().SerializeToString()
    compile_with_options(data, OPTIONS, resources=resources)
    path = entry_path(resources)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2
    path.unlink()
    os.mkfifo(path)
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 3
