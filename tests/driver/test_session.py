"""The session with ONNX Runtime's interface, on artifacts and with a stand-in for the compiler."""

import inspect
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.runtime.models import WEIGHT, compress_artifact, scale_artifact

import tilewright as ort
from tilewright.driver.interfaces import session as module
from tilewright.driver.interfaces.session import (
    ExecutionMode,
    GraphOptimizationLevel,
    InferenceSession,
    NodeArg,
    RunOptions,
    SessionOptions,
    get_available_providers,
    get_device,
)
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.options import CompileOptions
from tilewright.errors import FeedError, OptionError
from tilewright.runtime import save_artifact

FEED = np.random.default_rng(2).uniform(0.5, 2.0, (4, 3)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_artifact(scale_artifact(), tmp_path / "model.tw")
    return tmp_path / "model.tw"


def test_run(file: Path) -> None:
    for source in (file, str(file), file.read_bytes()):
        session = InferenceSession(source)
        for names in (None, [], ["y"]):
            (y,) = session.run(names, {"x": FEED})
            np.testing.assert_array_equal(y, FEED * WEIGHT)


def test_outputs_come_in_the_order_asked_for(tmp_path: Path) -> None:
    save_artifact(compress_artifact(), tmp_path / "m.tw")
    session = InferenceSession(tmp_path / "m.tw")
    feeds = {"keep": np.array([True, False, True, True]), "x": FEED}
    out, passed_on = session.run(None, feeds)
    for names, expected in ((["kept", "out"], [passed_on, out]), (["kept"], [passed_on])):
        for value, reference in zip(session.run(names, feeds, None), expected, strict=True):
            np.testing.assert_array_equal(value, reference)


def test_descriptions(file: Path) -> None:
    session = InferenceSession(file)
    assert session.get_inputs() == [NodeArg("x", ["n", 3], "tensor(float)")]
    assert session.get_outputs() == [NodeArg("y", ["n", 3], "tensor(float)")]
    assert session.get_overridable_initializers() == []
    meta = session.get_modelmeta()
    assert meta.custom_metadata_map == {"character": "a\nb"}
    assert (meta.graph_name, meta.producer_name, meta.version) == ("scale", "tests", 7)
    assert session.get_providers() == get_available_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    assert get_device() == "CPU"


def test_types_are_called_as_onnxruntime_calls_them(tmp_path: Path) -> None:
    save_artifact(compress_artifact(), tmp_path / "m.tw")
    assert [arg.type for arg in InferenceSession(tmp_path / "m.tw").get_inputs()] == ["tensor(float)", "tensor(bool)"]


def test_threads_from_options(file: Path) -> None:
    ours, theirs = SessionOptions(), onnxruntime.SessionOptions()
    for options in (ours, theirs):
        options.intra_op_num_threads = 3
        session = InferenceSession(file, sess_options=options, providers=["CPUExecutionProvider"])
        assert session.executable.threads == 3
        assert session.get_session_options() is options


def test_options_of_rapidocr(file: Path) -> None:
    options = SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ExecutionMode.ORT_PARALLEL
    provider = ("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    session = InferenceSession(file, sess_options=options, providers=[provider])
    assert session.get_providers()[0] == "CPUExecutionProvider"


def test_option_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="intra_op_threads"):
        SessionOptions().intra_op_threads = 2  # pyright: ignore


def test_configuration_entries() -> None:
    options = SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(OptionError) as error:
        options.get_session_config_entry("none")
    assert str(error.value) == "[option] key 'none': no such configuration entry"


def test_names_that_onnxruntime_has_too() -> None:
    theirs = onnxruntime.SessionOptions()
    values = {name: getattr(SessionOptions(), name) for name in SessionOptions.__slots__ if name[0] != "_"}
    assert {name for name in values if not hasattr(theirs, name)} == {"free_dimension_overrides"}
    for name in ("intra_op_num_threads", "inter_op_num_threads", "enable_profiling", "log_severity_level"):
        assert values[name] == getattr(theirs, name)
    for name in (n for n in RunOptions.__slots__ if n[0] != "_"):
        assert getattr(RunOptions(), name) == getattr(onnxruntime.RunOptions(), name)
    for level in GraphOptimizationLevel:
        assert hasattr(onnxruntime.GraphOptimizationLevel, level.name)
    ours = inspect.signature(InferenceSession.__init__).parameters
    expected = inspect.signature(onnxruntime.InferenceSession.__init__).parameters
    assert list(ours)[:5] == list(expected)[:5]
    assert list(inspect.signature(InferenceSession.run).parameters) == [
        "self",
        "output_names",
        "input_feed",
        "run_options",
    ]


def test_other_provider_is_mentioned(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        InferenceSession(file, providers=["CUDAExecutionProvider", ("CPUExecutionProvider", {})])
    assert caplog.messages == [
        "provider CUDAExecutionProvider is not available, the model runs on CPUExecutionProvider"
    ]


def test_bad_feed(file: Path) -> None:
    with pytest.raises(FeedError) as error:
        InferenceSession(file).run(["y", "z"], {"x": FEED})
    assert str(error.value) == "[feed] output 'z': the model has no such output; its outputs are 'y'"


def test_session_passes_its_options_to_the_compiler(
    monkeypatch: pytest.MonkeyPatch, file: Path, tmp_path: Path
) -> None:
    import tilewright.driver.compile_model as compiler

    calls: list[tuple[Any, CompileOptions, int | None, Any]] = []
    resources: list[tuple[int, bool]] = []

    def compile_with_options(
        model: Any, options: CompileOptions, threads: int | None, progress: Any, given: BuildResources
    ) -> Any:
        calls.append((model, options, threads, progress))
        resources.append((given.jobs, given.cache is not None))
        return module.load(file)

    monkeypatch.setattr(compiler, "compile_with_options", compile_with_options)
    options = SessionOptions()
    options.add_free_dimension_override_by_name("batch", 4)
    path = tmp_path / "model.onnx"
    InferenceSession(path, options)
    InferenceSession(b"onnx", shapes={"n": "1..8"}, target="x86-64-v3")
    InferenceSession(path, optimizer="gensor", machine="zen5", winograd="fast")
    InferenceSession(path, exact=True, layouts={}, progress=print)
    monkeypatch.setenv("TILEWRIGHT_JOBS", "2")
    monkeypatch.setenv("TILEWRIGHT_CACHE", "on")
    InferenceSession(path)
    InferenceSession(path, jobs=3, cache=False)
    assert resources[-3:] == [(1, False), (2, True), (3, False)]
    assert calls[:-2] == [
        (path, CompileOptions(shapes={"batch": 4}), None, None),
        (b"onnx", CompileOptions(shapes={"n": "1..8"}, target="x86-64-v3"), None, None),
        (path, CompileOptions(optimizer="gensor", machine="zen5", winograd="fast"), None, None),
        (path, CompileOptions(exact=True, layouts={}), None, print),
    ]


@pytest.mark.parametrize(
    ("argument", "shown"),
    [({"exact": True}, "True"), ({"winograd": "fast"}, "'fast'"), ({"target": "x86-64"}, "'x86-64'")],
)
def test_a_compiled_model_is_not_compiled_again(argument: dict[str, Any], shown: str, file: Path) -> None:
    InferenceSession(file, exact=False, winograd=None, progress=lambda *_: pytest.fail("there is no progress to tell"))
    with pytest.raises(OptionError) as error:
        InferenceSession(file, **argument)
    assert str(error.value) == (
        f"[option] argument '{next(iter(argument))}': {shown} has no effect on a model that is compiled already; "
        "leave it out or give the ONNX model"
    )


def test_keyword_arguments(file: Path) -> None:
    InferenceSession(file, disabled_optimizers=["a"], enable_fallback=0, read_config_from_model=1)
    with pytest.raises(OptionError) as error:
        InferenceSession(file, provider=["CPUExecutionProvider"])
    assert str(error.value) == (
        "[option] argument 'provider': no such keyword argument; those that exist are shapes, target, "
        "optimizer, machine, layouts, exact, winograd, fusion, variants, jobs, cache, records, frozen, progress, "
        "disabled_optimizers, "
        "enable_fallback, read_config_from_model"
    )


def test_output_names_as_one_string(file: Path) -> None:
    with pytest.raises(OptionError) as error:
        InferenceSession(file).run("y", {"x": FEED})
    assert str(error.value) == ("[option] argument 'output_names': expected a list of names, got a string; pass ['y']")


def test_programs_that_import_the_package_in_place_of_onnx_runtime():
    for name in ("ExecutionMode", "GraphOptimizationLevel", "get_available_providers", "get_device"):
        assert hasattr(onnxruntime, name)
        assert name in ort.__all__
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    assert ort.get_device() == "CPU"
    assert len(ort.get_available_providers()) == 1


@pytest.mark.parametrize("options", ["a", ["CPUExecutionProvider"], 4])
def test_what_are_no_options_of_a_session_is_refused(file: str, options: object) -> None:
    with pytest.raises(OptionError, match=r"argument 'sess_options': expected SessionOptions, got .* of type \w+;"):
        InferenceSession(file, options)
