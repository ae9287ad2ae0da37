"""A tuning as tables, data and page: everything is there, names of models can't break anything."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from tests.driver.tune.fakes import planned, program

from tilewright.driver.tune.budget import Budget
from tilewright.driver.tune.compare_model import ModelComparison
from tilewright.driver.tune.draw_sizes import ModelSizes
from tilewright.driver.tune.plan import TuningPlan
from tilewright.driver.tune.protocols import KernelChoice
from tilewright.driver.tune.result import TuningResult
from tilewright.driver.tune.session import EndReason, SessionResult, SessionStatus, TunedKernel
from tilewright.machine.shipped import machine_named
from tilewright.measure.interleaved_blocks import BlockTimes
from tilewright.optimize.measurer import Timing
from tilewright.optimize.reuse.plan import PlanStep, ReusePlan, StepKind
from tilewright.report import tuning as report

NAME = 'conv <1> & "two"\x1b[31m\n\x00'
TIMING = Timing(800.0, 0.013, 790.0, 7, 7, 0.0, False, 1000.0)


def block_times(median: float, spread: float = 0.01) -> BlockTimes:
    return BlockTimes(median, spread, median, 50, 5, 5)


def tuned_result(tuned_ms: float = 0.9, **changes: Any) -> TuningResult:
    """Three kernels: one faster, one left alone, one that was not reached."""
    kernels = [replace(planned(n, calls=c), nodes=(label,))
               for n, c, label in (("matvec", 1, "b"), ("matmul", 3, NAME), ("convolution", 1, ""))]  # fmt: skip
    plan = TuningPlan(
        cast(Any, SimpleNamespace()), machine_named("zen4"), tuple(kernels), ModelSizes(({},), (1.0,))
    )  # fmt: skip
    choice = KernelChoice((program(7),), None, TIMING, 0.8)
    session = SessionResult(
        (
            TunedKernel(kernels[0], 500.0, 500.0, None, 8, 2, 0, "", None),
            TunedKernel(kernels[1], 1000.0, 800.0, TIMING, 40, 1, 30, "", choice),
            TunedKernel(kernels[2], None, None, None, 0, 0, 0, "", None),
        ),
        (
            SessionStatus(3.0, 50.0, 8, "b", 1.0, 3500.0, 3500.0),
            SessionStatus(9.0, 44.0, 48, NAME, 1.25, 3500.0, 2900.0),
        ),
        EndReason.TIME,
        0.2,
    )
    comparison = (ModelComparison({"batch": 4}, block_times(1e-3), block_times(tuned_ms * 1e-3), 0.0),)
    result = TuningResult(
        NAME, plan, Budget(60.0), "search", 3, "/tmp/<r>.db", session, comparison, False, "", 2.5, 9.0, 60.0
    )
    return replace(result, **changes)


def test_the_table_has_the_largest_gain_first() -> None:
    rows = report.rows(report.by_gain(tuned_result()))
    assert all(len(row) == len(report.HEADER) for row in rows)
    assert [row[2:5] for row in rows] == [("1.00", "0.80", "1.250"), ("0.50", "0.50", "1.000"), ("-", "-", "1.000")]
    assert [row[-1] for row in rows] == ["tuned", "constructed", "not reached"]
    assert rows[2][0] == "k0_kernel"
    assert [k.kernel.nodes for k in report.measured(report.by_gain(tuned_result()))] == [(NAME,), ("b",)]
    assert "not reached, with predicted times: 1 kernel; a larger budget goes on" in report.summary(tuned_result())


def test_a_tuning_says_what_it_took_beyond_its_budget() -> None:
    end = "the end (last measurements, compilation with the tuned programs, comparison) 9.0 s"
    expected = f"13.0 s beyond the budget of 60 s: the untuned compilation took 2.5 s, the rounds 61.5 s, {end}"
    assert expected in report.summary(tuned_result(seconds=73.0))
    assert not any("beyond" in line for line in report.summary(tuned_result(seconds=65.0)))


def test_an_interrupted_tuning_says_what_is_kept_and_how_to_go_on() -> None:
    session = replace(tuned_result().session, end=EndReason.INTERRUPTED)
    kept = "kept in the store /tmp/<r>.db: 48 measured programs; the same command goes on"
    assert kept in report.summary(tuned_result(session=session))
    nothing = replace(session, kernels=session.kernels[2:])
    message = "nothing new was measured; the same command goes on"
    assert message in report.summary(tuned_result(session=nothing))


@pytest.mark.parametrize(("tuned_ms", "verdict"), [(0.9, "faster"), (0.995, "no difference"), (1.1, "slower")])
def test_the_summary_says_what_came_of_it(tuned_ms: float, verdict: str) -> None:
    text = "\n".join(report.summary(tuned_result(tuned_ms)))
    assert "1 kernel of 3 faster after 48 trials in 60.0 s (the time is up)" in text
    assert f"noise 1.0%: {verdict}" in text
    assert "batch=4" in text
    assert "too busy for 30 of 48 trials" in text


def test_what_did_not_happen_has_a_reason() -> None:
    nothing = replace(tuned_result().session, kernels=(), timeline=(), end=EndReason.TIME, seconds_per_trial=None)
    text = "\n".join(report.summary(tuned_result(session=nothing, comparison=(), note="it was not compared")))
    assert "it was not compared" in text
    assert "too small for a trial: the untuned compilation took 2.5 s of 60 s; a first trial needs about" in text
    for end in set(EndReason) - {EndReason.TIME}:
        assert tuned_result(session=replace(nothing, end=end)).advice == ""
    reverted = "\n".join(report.summary(tuned_result(1.1, is_reverted=True)))
    assert "all kernels stay as they were" in reverted
    interrupted = replace(tuned_result().session, end=EndReason.INTERRUPTED)
    assert "the same command goes on" in "\n".join(report.summary(tuned_result(session=interrupted)))


def test_the_data_is_json() -> None:
    data = json.loads(json.dumps(report.data(tuned_result())))
    assert data["trials"] == 48
    assert data["predicted_speedup"] == pytest.approx(3500 / 2900, abs=1e-4)
    assert [k["programs"] for k in data["kernels"]] == [0, 1, 0]
    assert data["comparison"][0]["sizes"] == {"batch": 4}
    assert len(data["timeline"]) == 2


def test_the_page_is_one_file_of_well_formed_xml_without_a_network() -> None:
    reuse = ReusePlan((PlanStep(StepKind.FULL, 0, NAME, None, None, 20.0, 12.0, 1.0),), 20.0, 12.0, "seconds")
    assert "full search, 20 programs" in report.html(tuned_result(reuse=reuse))
    empty = replace(tuned_result().session, timeline=(), kernels=())
    for result in (tuned_result(reuse=reuse), tuned_result(session=empty)):
        text = report.html(result)
        ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
        links = [u for u in re.findall(r"(?:https?:)?//[^\s\"'<>]+", text) if "www.w3.org" not in u]
        assert links == []
        assert "<script" not in text
        assert "\x1b" not in text


def test_the_tree_of_reuse_has_the_cost_and_the_result_of_every_edge() -> None:
    source = PlanStep(StepKind.RECORDED, 0, "record", None, None, 0.0, 0.0, 1.0)
    steps = [PlanStep(StepKind.REUSE, k, f"k{k}", None, 0, 20.0, 12.0, 1.0) for k in (1, 0)]
    bridge = PlanStep(StepKind.FULL, None, "bridge", None, None, 200.0, 40.0, 1.0)
    full = PlanStep(StepKind.FULL, 2, "k2", None, None, 200.0, 50.0, 1.0)
    plan = ReusePlan((source, *steps, bridge, full), 600.0, 140.0, "seconds")
    result = tuned_result(reuse=plan, reuse_kernels=(None, 1, 0, None, 2))
    tree = report.html(result).split("<pre>")[1].split("</pre>")[0].splitlines()
    assert tree[:5] == [
        "record: recorded",
        "  k1: from record, 20 programs, 12 seconds; 40 measured, 1.00 -&gt; 0.80 us (1.250 times as fast)",
        "  k0: from record, 20 programs, 12 seconds; 8 measured, 0.50 -&gt; 0.50 us (1.000 times as fast)",
        "bridge: full search, 200 programs, 40 seconds",
        "k2: full search, 200 programs, 50 seconds; not reached",
    ]
    data = report.data(result)["reuse"]
    assert [s["trials"] for s in data["steps"]] == [0, 40, 8, 0, 0]
    assert data["steps"][1]["after_us"] == 0.8
    assert data["steps"][4]["before_us"] is None
    assert report.data(tuned_result())["reuse"] is None


def test_the_plan_as_table_and_data() -> None:
    plan = tuned_result().plan
    rows = report.plan_rows(plan)
    assert [row[1:4] for row in rows] == [("1", "0.1", "20.0%"), ("3", "0.1", "60.0%"), ("1", "0.1", "20.0%")]
    assert all(len(row) == len(report.PLAN_HEADER) for row in rows)
    assert json.loads(json.dumps(report.plan_data(plan)))["kernels"][1]["calls"] == 3


def test_the_default_budget_tells_its_overrun_too() -> None:
    late = tuned_result(budget=Budget(), seconds=400.0)
    assert "100.0 s beyond the budget of 300 s" in late.overrun
    assert not tuned_result(budget=Budget(trials=9), seconds=400.0).overrun
