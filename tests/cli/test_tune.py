"""The verb `tune`: plan, result as text and JSON, report, interruption, wrong usage."""

import json
import re
import sys

import numpy as np
import onnx
import pytest
from tests.cli.command import error_of, run
from tests.driver.tune.test_pipeline import DecreasingTimes, comparison_of, two_products

from tilewright.cli.exit_codes import INTERRUPTED
from tilewright.cli.tune import ORDERS, VARIANTS, StatusLine
from tilewright.driver.tune import pipeline
from tilewright.driver.tune.session import SessionStatus
from tilewright.measure.workers.interface import Effort
from tilewright.measure.workers.local import LocalWorkers
from tilewright.optimize.search.interface import SearchVariant


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model and a store of its own."""
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(tmp_path / "records.db"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")
    onnx.save(two_products(16), tmp_path / "m.onnx")
    return tmp_path


@pytest.fixture
def times(monkeypatch):
    fake = DecreasingTimes()
    monkeypatch.setattr(pipeline, "_make_workers", lambda *args: LocalWorkers(dict.fromkeys(Effort, fake)))
    monkeypatch.setattr(pipeline, "compare_models", lambda *args: comparison_of(1.0, 0.8))
    return fake


def tune(capsys, place, *options):
    return run(capsys, "tune", place / "m.onnx", "--search", "evolution", "--fuse", "unfused", *options)


def test_the_plan_is_shown_without_measuring(capsys, place):
    code, out, _ = tune(capsys, place, "--dry-run")
    assert code == 0
    assert "first (MatMul)" in out
    assert "second (MatMul)" in out
    code, out, _ = tune(capsys, place, "--dry-run", "--json")
    assert sum(k["calls"] for k in json.loads(out)["kernels"]) >= 2
    assert not (place / "records.db").exists()


def test_the_result_as_text_and_page(capsys, place, times):
    code, out, err = tune(capsys, place, "--trials", "10", "--report", place / "r.html")
    assert code == 0
    assert "after 10 trials" in out
    assert "speedup 1.250, noise 0.5%: faster" in out
    assert "times faster" in err
    assert "r.html" in err
    assert (place / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_is_refused_before_the_tuning(capsys, place, times):
    for page, message in ((place / "none" / "r.html", "there is no folder"), (place, "is a folder")):
        assert message in error_of(capsys, "tune", place / "m.onnx", "--trials", "1", "--report", page)
    assert times.nanoseconds == {}


def test_the_result_is_printed_where_the_page_cannot_be_written(capsys, place, times):
    folder = place / "pages"
    folder.mkdir()
    measure = times.measure

    def measure_after_the_folder_is_gone(task, candidates, incumbent=None):
        if folder.exists():
            folder.rmdir()
        return measure(task, candidates, incumbent)

    times.measure = measure_after_the_folder_is_gone
    code, out, err = tune(capsys, place, "--trials", "4", "--report", folder / "r.html")
    assert code == 1
    assert "after 4 trials" in out
    assert "cannot be written: No such file or directory" in err


def test_a_store_that_cannot_be_used_is_refused_before_the_compilation(capsys, place, monkeypatch):
    def compilation(*arguments, **options):
        raise AssertionError("it compiles before it opens the store")

    monkeypatch.setattr(pipeline, "make_compilation", compilation)
    (place / "notes.txt").write_text("no store " * 100)
    message = error_of(capsys, "tune", place / "m.onnx", "--records", place / "notes.txt")
    assert "records" in message
    assert "notes.txt" in message


def test_inputs_that_do_not_fit_are_refused_before_kernels_are_built(capsys, place, times, monkeypatch):
    monkeypatch.setattr("tilewright.driver.compile.KernelBuilds", None)
    np.savez(place / "x.npz", nothing=np.ones(3))
    message = error_of(capsys, "tune", place / "m.onnx", "--trials", "1", "--inputs", place / "x.npz")
    assert "input 'nothing': the model has no such input" in message


def test_sizes_that_the_model_has_not_are_refused_before_kernels_are_built(capsys, place, times, monkeypatch):
    monkeypatch.setattr("tilewright.driver.compile.KernelBuilds", None)
    message = error_of(capsys, "tune", place / "m.onnx", "--trials", "1", "--sizes", "height=3")
    assert "sizes: the model has no dynamic dimension 'height'" in message


def test_the_result_as_json_and_quietly(capsys, place, times):
    code, out, err = tune(capsys, place, "--trials", "6", "--json", "-q")
    data = json.loads(out)
    assert (code, err, data["trials"], data["end"]) == (0, "", 6, "trials")
    assert data["records"] == str(place / "records.db")
    again = json.loads(tune(capsys, place, "--trials", "2", "--json", "-q")[1])
    assert again["predicted_speedup"] > 1


def test_inspect_shows_the_programs_that_were_recorded(capsys, place, times):
    before = run(capsys, "inspect", place / "m.onnx", "--fuse", "unfused", "--schedule", "--no-records")[1]
    tune(capsys, place, "--trials", "6", "-q")
    after = run(capsys, "inspect", place / "m.onnx", "--fuse", "unfused", "--schedule")[1]
    assert after != before
    assert run(capsys, "inspect", place / "m.onnx", "--fuse", "unfused", "--schedule", "--no-records")[1] == before


def test_an_interrupt_prints_the_gain(capsys, place, times, monkeypatch):
    measure = times.measure

    def interrupted(task, candidates, incumbent=None):
        if len(times.nanoseconds) > 6:
            raise KeyboardInterrupt
        return measure(task, candidates, incumbent)

    monkeypatch.setattr(times, "measure", interrupted)
    code, out, _ = tune(capsys, place, "--trials", "100")
    assert code == INTERRUPTED
    assert "(interrupted)" in out
    assert re.search(rf"kept in the store {place}/records.db: \d+ measured programs; the same command goes on", out)


def test_an_interrupt_before_the_first_round_says_that_nothing_is_measured(capsys, place, times, monkeypatch):
    def compilation(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "make_compilation", compilation)
    code, out, err = tune(capsys, place, "--trials", "100")
    assert (code, out) == (INTERRUPTED, "")
    assert "nothing new was measured; the same command goes on\n" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--budget", "soon"), "--budget: expected a time, got 'soon'; such as 90s, 5m or 1h30m"),
        (("--budget", "0"), "--budget: expected a time of more than 0"),
        (("--trials", "0"), "--trials: expected at least 1, got 0"),
        (("--target-speedup", "1"), "--target-speedup: expected a factor of more than 1, got 1.0"),
        (("--address", "h:1"), "--address: only a Ray cluster has one"),
        (("--sizes", "batch"), "--sizes: expected NAME=LOW..HIGH or NAME=SIZE:WEIGHT, got 'batch'"),
        (("--sizes", "batch=3"), "--sizes: the model has no dynamic dimension 'batch'; all of its sizes are fixed"),
        (("--seed", "-1"), "--seed: expected a number of at least 0, got -1"),
        (("--frozen",), "--frozen: a tuning writes what it measures"),
        (("--target", "aarch64"), "--target: this machine can't run code for aarch64; tune on such a machine"),
    ],
)
def test_wrong_usage(capsys, place, options, message):
    assert message in error_of(capsys, "tune", place / "m.onnx", *options)


def test_the_flags_offer_what_tunings_take():
    assert tuple(SearchVariant) == VARIANTS
    assert ORDERS == pipeline.PLANS


def test_a_compiled_model_is_refused(capsys, place, folder):
    assert "is compiled already, so its kernels are fixed" in error_of(capsys, "tune", folder / "mlp.tw")


def test_a_kernel_that_gains_has_a_line_of_its_own(capsys):
    line = StatusLine(quiet=False)
    for trials, speedup in ((1, 1.0), (2, 1.2), (3, 1.2), (4, 1.3)):
        line.show(SessionStatus(float(trials), 9.0, trials, "conv1", speedup, 2e6, 2e6 / speedup))
    assert [x for x in capsys.readouterr().err.splitlines() if "conv1: 1." in x] == [
        "2 s: conv1: 1.200 times faster",
        "4 s: conv1: 1.300 times faster",
    ]


def test_reuse_needs_networkx_even_where_there_is_one_kernel(capsys, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    message = error_of(capsys, "tune", place / "m.onnx", "--trials", "1", "--plan", "eto")
    assert "--plan: planning reuse needs networkx, which is not installed; pip install networkx" in message


def test_a_cluster_needs_ray_and_an_address_needs_a_cluster(capsys, place, monkeypatch):
    model = place / "m.onnx"
    assert "only a Ray cluster has one" in error_of(capsys, "tune", model, "--trials", "1", "--address", "a:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install ray" in error_of(capsys, "tune", model, "--trials", "1", "--workers", "ray")
