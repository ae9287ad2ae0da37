"""The zoo's table of times, from events that were not measured."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from benchmarks.zoo import timing
from benchmarks.zoo.bench_table import HEADER, geometric_means, rows
from benchmarks.zoo.engines import prepared_engine
from benchmarks.zoo.model import Model
from benchmarks.zoo.sources import PackagedModel
from benchmarks.zoo.timing import Arrays, RunModel
from tests.frontend.onnx_models import model

TIMED = {"shape": "1x8", "ours_ms": 2.0, "theirs_ms": 4.0, "others": 0.01}


def test_a_row_per_shape_and_costs_once() -> None:
    events = [{"compile_s": 1.5}, {"artifact_bytes": 1 << 20, "load_s": 0.01}, TIMED,
              {**TIMED, "shape": "2x8", "beside_ms": 1.0}]  # fmt: skip
    table, passed = rows("model", events)
    assert passed
    first, second = (dict(zip(HEADER, row, strict=True)) for row in table)
    assert (first["ratio"], first["of beside"], first["compile s"], first["artifact MiB"]) == (
        "0.50",
        "-",
        "1.5",
        "1.0",
    )
    assert (second["shape"], second["of beside"], second["compile s"]) == ("2x8", "2.00", "")


def test_steps_on_the_evaluator_are_a_note() -> None:
    for count, note in ((0, ""), (2, "2 steps on the reference evaluator")):
        table, passed = rows("model", [{"load_s": 0.01}, {"evaluated": count}, TIMED])
        assert passed
        assert dict(zip(HEADER, table[0], strict=True))["notes"] == note


def test_an_artifact_is_compiled_once(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(model("y = Relu(x)", inputs="float[n, 3] x", outputs="float[n, 3] y").SerializeToString())
    entry = Model("relu", PackagedModel("", ""), lambda rng, sizes: {}, ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "path", source)
        for _ in range(2):
            compiled = prepared_engine(entry, 1, "rule", tmp_path / "artifacts")
            np.testing.assert_array_equal(compiled.run({"x": np.float32([[-1, 0, 2]])})["y"], [[0, 0, 2]])
            # the second time the artifact has to do
            source.unlink(missing_ok=True)


def test_errors_have_a_row_as_wide_as_the_others() -> None:
    table, passed = rows("model", [{"starting": "1x8"}, {"error": "no memory"}])
    assert not passed
    (row,) = (dict(zip(HEADER, row, strict=True)) for row in table)
    assert (row["shape"], row["ratio"], row["notes"]) == ("1x8", "", "error: no memory")


def test_means_are_geometric_and_over_all_shapes() -> None:
    events = {"a": [TIMED, {**TIMED, "beside_ms": 1.0}], "b": [{**TIMED, "ours_ms": 8.0, "beside_ms": 8.0}]}
    assert geometric_means(events) == "Geometric means: ratio 0.79, of beside 1.41."
    assert geometric_means({"a": [TIMED]}) == "Geometric means: ratio 0.50."
    assert geometric_means({"a": [{"error": "no memory"}]}) == ""


@pytest.mark.parametrize("event", [{"artifact_error": "disk full"}, {"same_bits": False}])
def test_artifacts_that_fail_or_differ_fail_the_model(event: dict[str, object]) -> None:
    table, passed = rows("model", [{"compile_s": 1.5}, event, TIMED])
    assert not passed
    assert "artifact" in table[0][-1]


@pytest.mark.parametrize(
    ("shares", "counts", "asked"),
    [((0.02, 0.0), 0, 1), ((0.4, 0.05, 0.0), 1, 2), ((0.4, 0.2, 0.3, 0.5, 0.0), 1, 4)],
)
def test_disturbed_measurements_are_repeated(
    shares: tuple[float, ...], counts: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Taken:
        asked = 0

        @staticmethod
        def now() -> "Taken":
            return Taken()

        def others_since(self) -> float:
            Taken.asked += 1
            return shares[Taken.asked - 1]

    monkeypatch.setattr(timing, "SystemLoad", Taken)
    monkeypatch.setattr(timing, "RETRY_PAUSE_SECONDS", 0.0)

    def compare(engines: Sequence[RunModel], feeds: Arrays) -> list[list[float]]:
        return [[float(Taken.asked)]]

    monkeypatch.setattr(timing, "time_in_turns", compare)
    samples, share = timing.time_undisturbed([], {})
    # the least disturbed one, whether or not it was the fastest
    assert (samples, share) == ([[float(counts)]], shares[counts])
    assert Taken.asked == asked
