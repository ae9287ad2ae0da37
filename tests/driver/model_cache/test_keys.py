"""Keys of kept compilations tell apart what becomes different code, also where it changes meanwhile."""

import pytest
from onnx import helper
from tests.driver import models
from tests.driver.model_cache.entries import OPTIONS, cache_of

import tilewright.driver.compile as pipeline
from tilewright import custom_operators
from tilewright.driver.compile_model import compile_with_options
from tilewright.driver.model_cache import model_cache
from tilewright.driver.model_cache.model_key import model_key
from tilewright.driver.options import CompileOptions
from tilewright.machine.model import to_json
from tilewright.machine.shipped import machine_named


def test_a_range_is_not_a_list_of_sizes(resources, counted):
    """(3, 8) is a range of the dimension, [3, 8] are the sizes of the input, and both are called "n"."""
    weight = {"w": models.array(1, 8, 6)}
    nodes = [helper.make_node("MatMul", ["n", "w"], ["y"])]
    model = models.model(nodes, [models.value("n", ["n", 8])], [models.value("y", ["n", 6])], weight)
    data = model.SerializeToString()
    inputs = []
    for value in ([3, 8], (3, 8)):
        options = CompileOptions(optimizer="rule", shapes={"n": value})
        inputs.append(compile_with_options(data, options, resources=resources).inputs)
    assert len(counted) == 2
    assert inputs[0] != inputs[1]


def test_shapes_that_contain_themselves(resources):
    endless = []
    endless.append(endless)
    assert model_key("0", CompileOptions(shapes={"n": endless}), resources) is None


def test_the_processor_and_numpys_choice_of_instructions_count(resources, monkeypatch):
    first = model_key("0", OPTIONS, resources)
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", "AVX2")
    assert model_key("0", OPTIONS, resources) != first


def while_compiling(monkeypatch, before=None, after=None):
    make = pipeline.make_compilation

    def acting(*args, **kwargs):
        if before:
            before()
        result = make(*args, **kwargs)
        if after:
            after()
        return result

    monkeypatch.setattr(pipeline, "make_compilation", acting)


@pytest.mark.parametrize("is_put_back", [False, True])
def test_a_description_of_the_machine_that_changes_meanwhile(is_put_back, tmp_path, resources, monkeypatch):
    file = tmp_path / "mine.json"
    first, second = (to_json(machine_named(name)) for name in ("zen4", "haswell"))
    file.write_text(first)
    after = (lambda: file.write_text(first)) if is_put_back else None
    while_compiling(monkeypatch, lambda: file.write_text(second), after)
    options = CompileOptions(machine=str(file), target="x86-64-v3")
    compile_with_options(models.mlp(3).SerializeToString(), options, resources=resources)
    assert cache_of(resources).usage().entries == 0


def test_an_operator_that_is_registered_meanwhile(resources, monkeypatch):
    operator = custom_operators.PythonOperator(len)
    while_compiling(
        monkeypatch, lambda: monkeypatch.setitem(custom_operators.PYTHON_OPERATORS, ("own", "Twice"), operator)
    )
    compile_with_options(models.mlp(3).SerializeToString(), OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0


def test_sources_that_change_meanwhile(resources, monkeypatch):
    monkeypatch.setattr(model_cache, "sources_have_changed", lambda: True)
    compile_with_options(models.mlp(3).SerializeToString(), OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0


def test_models_above_the_limit_of_protobuf_are_not_read(tmp_path, resources, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_bytes(models.mlp(3).SerializeToString())
    monkeypatch.setattr(model_cache, "MAX_MODEL_BYTES", path.stat().st_size - 1)
    for model in (path, path.read_bytes()):
        compile_with_options(model, OPTIONS, resources=resources)
    assert cache_of(resources).usage().entries == 0
