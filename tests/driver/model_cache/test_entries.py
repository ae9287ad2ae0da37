"""The cache of models: the same bytes with it, and no trust in what others may write."""

import os
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from onnx import helper, numpy_helper
from tests.driver import models
from tests.driver.model_cache.entries import OPTIONS, cache_of, entry_path, saved, weight_sources, written

from tilewright import custom_operators
from tilewright.driver.compile_model import compile_with_options
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.code_cache import CodeCache
from tilewright.driver.kernel_build.record_source import RecordSource
from tilewright.driver.model_cache import model_cache, model_entry
from tilewright.driver.model_cache.model_cache import ModelCache, look_up
from tilewright.driver.options import CompileOptions
from tilewright.errors import CacheWarning, FallbackWarning

SEED = np.random.SeedSequence().entropy


@pytest.mark.parametrize("form", ["bytes", "file", "external"])
@pytest.mark.parametrize("make", [models.mlp, models.small_convnet, models.passing_on])
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
    compile_with_options(path, CompileOptions(), resources=resources)
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
    gensor = CompileOptions(shapes={"batch": 3})
    for changed in (
        replace(OPTIONS, shapes={"batch": 3}), replace(OPTIONS, shapes={"batch": "1..4"}), replace(OPTIONS, exact=True),
        replace(OPTIONS, target="x86-64-v3"), gensor, replace(gensor, variants=1), replace(gensor, machine="zen5"),
        replace(gensor, fusion="unfused"), replace(gensor, winograd="fast"), replace(gensor, machine="haswell"),
        replace(gensor, machine="zen5", target="x86-64-v3"),
    ):  # fmt: skip
        compile_with_options(data, changed, resources=resources)
    assert len(counted) == 13
    compile_with_options(data, replace(OPTIONS, shapes={"batch": "1..4"}), resources=resources)
    assert len(counted) == 13
    assert cache_of(resources).usage().entries == 13


def test_other_versions_are_compiled(resources, counted, monkeypatch):
    data = models.mlp(3).SerializeToString()
    compile_with_options(data, OPTIONS, resources=resources)
    monkeypatch.setattr("tilewright.driver.model_cache.model_key._versions", lambda: ["another"])
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2


def test_damaged_entries_count_as_missing(tmp_path, resources, counted):
    data = models.small_convnet().SerializeToString()
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


def test_an_entry_in_the_place_of_another_counts_as_missing(tmp_path, resources, counted):
    data = models.mlp(3).SerializeToString()
    expected = saved(compile_with_options(data, OPTIONS, resources=resources), tmp_path)
    path = entry_path(resources)
    other = BuildResources(1, CodeCache(tmp_path / "other" / "code"), True)
    compile_with_options(models.small_convnet().SerializeToString(), OPTIONS, resources=other)
    path.write_bytes(entry_path(other).read_bytes())
    assert saved(compile_with_options(data, OPTIONS, resources=resources), tmp_path) == expected
    assert len(counted) == 3


def test_an_entry_with_a_hole_at_its_end_counts_as_missing(resources, counted):
    data = models.mlp(3).SerializeToString()
    compile_with_options(data, OPTIONS, resources=resources)
    os.truncate(entry_path(resources), 1 << 40)
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2
    assert entry_path(resources).stat().st_size < 1 << 20


@pytest.mark.parametrize("is_kept", [False, True])
def test_without_memory_nothing_is_kept_or_found(is_kept, resources, counted, monkeypatch):
    data = models.mlp(3).SerializeToString()
    if is_kept:
        compile_with_options(data, OPTIONS, resources=resources)

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(model_entry, "read_blocks", fails)
    monkeypatch.setattr(model_entry, "aligned_empty", fails)
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 1 + is_kept
    assert cache_of(resources).usage().entries == is_kept


def test_what_others_may_write_is_not_read(resources, counted):
    data = models.mlp(3).SerializeToString()
    compile_with_options(data, OPTIONS, resources=resources)
    entry_path(resources).chmod(0o622)
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2
    assert entry_path(resources).stat().st_mode & 0o777 == 0o600
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 2
    cache_of(resources).folder.chmod(0o777)
    with pytest.warns(CacheWarning, match="models can't be used .other users can write to it"):
        compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 3


def test_models_are_kept_where_code_cannot_be(resources, counted):
    resources.cache.folder.parent.mkdir(parents=True, exist_ok=True)
    resources.cache.folder.write_text("no folder")
    data = models.mlp(3).SerializeToString()
    with pytest.warns(CacheWarning, match="can't be used .File exists"):
        compile_with_options(data, OPTIONS, resources=resources)
    compile_with_options(data, OPTIONS, resources=resources)
    assert len(counted) == 1


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
    monkeypatch.undo()
    compile_with_options(data, OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 1


def test_pruning(resources, monkeypatch):
    monkeypatch.setattr(ModelCache.prune, "__defaults__", (1,))
    compile_with_options(models.mlp(3).SerializeToString(), OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0


def test_links_and_pipes_are_no_entries(tmp_path, resources, counted):
    data = models.mlp(3).SerializeToString()
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
