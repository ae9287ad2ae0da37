"""Duels: which blocks count, how engines take turns, and processes that fail. Nothing here depends on real times."""

import io
import json
import os
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver import models

import tilewright
from tilewright.errors import OptionError
from tilewright.measure import engine_comparison, engine_process, interleaved_blocks
from tilewright.measure.engine_comparison import comparison_result
from tilewright.measure.engine_process import read_feeds, serve, write_feeds
from tilewright.measure.engines import PEERS, check_installed, onnxruntime_engine, openvino_engine
from tilewright.measure.interleaved_blocks import (
    CANARY,
    CANARY_SECONDS,
    MAX_ROUND_FACTOR,
    RunPlan,
    TimedBlock,
    best_canary,
    run_in_turns,
    typical_canary,
    undisturbed_blocks,
)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were made, without making them."""
    durations: list[float] = []
    monkeypatch.setattr(interleaved_blocks.time, "sleep", durations.append)
    return durations


class Machine:
    """Engines whose blocks take what is said; the canary takes the next of `canary`, the last one for ever."""

    def __init__(self, times: dict[str, float], canary: list[float]) -> None:
        self.times, self.canary = times, canary
        self.order: list[str] = []

    def __call__(self, name: str, seconds: float) -> list[float]:
        if name == CANARY:
            assert seconds == CANARY_SECONDS
            return [self.canary.pop(0) if len(self.canary) > 1 else self.canary[0]]
        self.order.append(name)
        return [self.times[name]] * 3


def test_engines_take_turns_between_canaries_with_pauses(slept: list[float]) -> None:
    machine = Machine({"a": 1.0, "b": 2.0}, [0.1])
    blocks = run_in_turns(("a", "b"), machine, RunPlan(3, 0.5, 0.25))
    assert machine.order == ["a", "b", "b", "a", "a", "b"]
    assert len(blocks) == 6
    assert slept == [0.25] * (1 + 2 * 6)


def test_progress_never_goes_back_where_another_usual_time_discounts_earlier_blocks(slept: list[float]) -> None:
    machine = Machine({"a": 1.0}, [0.2] * 4 + [0.1])
    reports: list[tuple[str, int, int]] = []
    run_in_turns(("a",), machine, RunPlan(5), lambda *report: reports.append(report))
    shown = [done for _, done, _ in reports]
    assert shown == sorted(shown)
    assert reports[0] == ("quiet rounds: 1 run, at most 15", 1, 5)
    assert (shown[-1], len(reports) > 5) == (5, True)


def test_disturbed_blocks_are_repeated(slept: list[float]) -> None:
    # before the first block, then after each: the third block has a slow one behind, the fourth before it
    machine = Machine({"a": 1.0, "b": 2.0}, [0.1, 0.1, 0.1, 0.2, 0.1, 0.1])
    blocks = run_in_turns(("a", "b"), machine, RunPlan(2))
    assert [b.canary for b in blocks] == [0.1, 0.1, 0.2, 0.2, 0.1, 0.1]
    assert [b.name for b in undisturbed_blocks(blocks)] == ["a", "b", "a", "b"]
    comparison = comparison_result(("a", "b"), blocks, 0.5)
    assert (comparison.engines["a"].undisturbed, comparison.engines["a"].blocks, comparison.engines["a"].calls) == (
        2,
        3,
        6,
    )
    assert (comparison.canary_best, comparison.canary_typical, comparison.canary_worst) == (0.1, 0.1, 0.2)
    assert comparison.others == 0.5


def test_repeated_rounds_are_limited(slept: list[float]) -> None:
    canary = [1.0] + [1.0, 9.0] * 50
    machine = Machine({"a": 1.0, "b": 2.0}, canary)
    blocks = run_in_turns(("a", "b"), machine, RunPlan(4))
    assert len(blocks) == 2 * MAX_ROUND_FACTOR * 4


def test_medians_of_medians_and_their_spread() -> None:
    calls = [(1.0, 9.0, 1.0), (2.0, 2.0, 0.5), (3.0,), (4.0, 4.0)]
    blocks = [TimedBlock("tilewright", c, 0.1, 0.1) for c in calls] + [
        TimedBlock("tilewright", (100.0,), 0.2, 0.2),
        TimedBlock("x", (5.0,), 0.1, 0.1),
    ]
    comparison = comparison_result(("tilewright", "x"), blocks, 0.0)
    tilewright = comparison.engines["tilewright"]
    assert (tilewright.median, tilewright.fastest, tilewright.calls, tilewright.undisturbed, tilewright.blocks) == (
        2.5,
        0.5,
        9,
        4,
        5,
    )
    assert tilewright.spread == pytest.approx((3.25 - 1.75) / 2.5)
    assert comparison.best_peer() == "x"
    assert comparison_result(("tilewright",), blocks, 0.0).best_peer() is None


def test_without_undisturbed_blocks_all_are_reported() -> None:
    blocks = [
        *[TimedBlock("a", (1.0,), 0.1, 0.1)] * 3,
        *[TimedBlock("b", (2.0,), 0.5, 0.5)] * 3,
    ]
    standing = comparison_result(("a", "b"), blocks, 0.0).engines["b"]
    assert (standing.median, standing.undisturbed, standing.blocks) == (2.0, 0, 3)


def test_blocks_of_rare_states_do_not_count() -> None:
    """The machine is fast for an eighth of the time, disturbed by various loads for a quarter, and typical else."""
    rare = [TimedBlock("a", (1.0,), x, x) for x in (0.08, 0.08, 0.13, 0.2, 0.4, 0.6)]
    typical = [TimedBlock("a", (1.0,), 0.1, 0.1 + 0.001 * k) for k in range(10)]
    assert (best_canary([*rare, *typical]), typical_canary([*rare, *typical])) == (0.08, 0.1)
    assert undisturbed_blocks([*rare, *typical]) == typical


def test_a_load_is_not_the_usual_state() -> None:
    """It takes a core for two thirds of the time."""
    quiet = [TimedBlock("a", (1.0,), 0.1, 0.1)] * 2
    assert undisturbed_blocks([*quiet, *[TimedBlock("a", (2.0,), 0.2, 0.2)] * 4]) == quiet


def test_blocks_between_states_do_not_count() -> None:
    """A load that begins or ends within a block disturbs it, and a boost of the clock does, too."""
    typical, between = TimedBlock("a", (1.0,), 0.1, 0.11), [TimedBlock("a", (1.0,), 0.1, x) for x in (0.08, 0.12)]
    assert undisturbed_blocks([*[typical] * 3, *between]) == [typical] * 3


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16, ml_dtypes.bfloat16])
def test_feeds_round_trip(tmp_path: Path, dtype: type) -> None:
    rng = np.random.default_rng()
    feeds = {
        "a/b c": (rng.standard_normal((3, 4)) * 9).astype(dtype),
        "scalar": np.asarray(dtype(1)),
        "none": np.empty((0, 2), dtype),
    }
    name = np.dtype(dtype).name
    described = write_feeds(tmp_path / "f.npz", feeds, dict.fromkeys(feeds, name))
    restored = read_feeds(tmp_path / "f.npz", json.loads(json.dumps(described)))
    assert restored.keys() == feeds.keys()
    for key, array in feeds.items():
        assert (restored[key].dtype, restored[key].shape) == (array.dtype, array.shape)
        assert restored[key].tobytes() == array.tobytes()


def served(*lines: object) -> list[dict]:
    answers: list[dict] = []
    serve(io.StringIO("".join(json.dumps(x) + "\n" for x in lines)), answers.append)
    return answers


def test_a_process_answers_every_block(tmp_path: Path) -> None:
    job = {"engine": CANARY, "threads": 1}
    ready, first, second = served(job, {"seconds": 0.0}, {"seconds": 0.0})
    assert ready == {"ready": True}
    for answer in (first, second):
        assert len(answer["calls"]) == 1
        assert answer["cpu"] > 0


def test_long_blocks_are_subsampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "time_block", lambda call, seconds: [1.0] * 25_000)
    answer = served({"engine": CANARY, "threads": 1}, {"seconds": 1})[1]
    assert len(answer["calls"]) == 8334


def broken_model(folder: Path) -> Path:
    """A model of an operator that nobody has."""
    node = helper.make_node("Polish", ["x"], ["y"], domain="unheard.of")
    graph = helper.make_graph([node], "g", [models.value("x", [2])], [models.value("y", [2])])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("unheard.of", 1)]
    path = folder / "broken.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


@pytest.mark.parametrize("engine", PEERS)
def test_models_that_an_engine_rejects(tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine)
    executable = tilewright.compile(
        models.model([helper.make_node("Neg", ["x"], ["y"])], [models.value("x", [2])], [models.value("y", [2])])
    )
    feeds = {"x": np.ones(2, np.float32)}
    with pytest.raises(OptionError, match=f"{engine} (rejects the model|fails)") as error:
        engine_comparison.compare_engines(executable, broken_model(tmp_path), [engine], feeds, RunPlan(1, 0.0, 0.0))
    assert engine in str(error.value)


def test_a_process_that_ends_is_an_error_that_names_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_comparison.sys, "executable", "/bin/false")
    executable = tilewright.compile(models.mlp(1))
    with pytest.raises(OptionError, match="engine canary: its process ended with status 1"):
        engine_comparison.compare_engines(
            executable, None, [], {"x": np.ones((1, 24), np.float32)}, RunPlan(1, 0.0, 0.0)
        )


def test_modules_of_the_working_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(tilewright.__file__).parents[1]))
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    comparison = engine_comparison.compare_engines(
        tilewright.compile(models.mlp(1)), None, [], {"x": np.ones((1, 24), np.float32)}, RunPlan(1, 0.0, 0.0)
    )
    assert comparison.engines["tilewright"].blocks >= 1


def test_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = engine_comparison.subprocess.Popen

    def noted(*args, **named):
        process = popen(*args, **named)
        started.append(process.pid)
        return process

    monkeypatch.setattr(engine_comparison.subprocess, "Popen", noted)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_comparison, "run_in_turns", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine_comparison.compare_engines(
            tilewright.compile(models.mlp(1)), None, [], {"x": np.ones((1, 24), np.float32)}, RunPlan(1, 0.0, 0.0)
        )
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("engine", [onnxruntime_engine, openvino_engine])
def test_engines_compute_what_the_compiled_model_does(tmp_path: Path, engine) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    onnx.save(models.mlp(), tmp_path / "m.onnx")
    x = np.random.default_rng().standard_normal((5, 24)).astype(np.float32)
    expected = tilewright.compile(models.mlp())(x)
    for model in (tmp_path / "m.onnx", models.mlp().SerializeToString()):
        outputs = engine(model, 1)({"x": x})
        assert list(outputs) == ["y"]
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-6)


def test_engines_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(OptionError, match="openvino is not installed") as error:
        openvino_engine(b"", 1)
    assert error.value.hint == "pip install openvino"
    with pytest.raises(OptionError, match="there is no engine 'tvm'"):
        check_installed("tvm")
