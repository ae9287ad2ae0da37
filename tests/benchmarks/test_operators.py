"""What the operator benchmarks make of times: ratios, noise, copies, tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.operators import __main__ as command
from benchmarks.operators import measure
from benchmarks.operators.__main__ import (
    HEADER,
    block_spread,
    fastest_blocks,
    fraction_of_limit,
    kernel_times,
    median_times,
    read_log,
    speed_over_best_peer,
    summary_rows,
    table_row,
)
from benchmarks.operators.cases import MAX_COPIES, RANDOM_PERIOD, ROTATION_BYTES, Case, all_cases, gemm
from benchmarks.operators.measure import MachineLimit, rotate_copies, time_in_turns


def event(engine: str, seconds: float, **more: object) -> dict[str, object]:
    return {"engine": engine, "median_s": seconds, "low_s": seconds, "high_s": seconds, "calls": 3, **more}


EVENTS = [
    event("tilewright", 2e-4, blocks_s=[1.9e-4, 2.0e-4, 2.3e-4]), event("torch", 3e-4), event("onnxruntime", 1e-4),
    event("tilewright alone", 1.5e-4), event("torch alone", 2.5e-4), {"gflops": 100.0, "gbs": 10.0}, {"others": 0.02},
]  # fmt: skip


def case(name: str) -> Case:
    return next(c for c in all_cases() if c.name == name)


def test_the_ratio_is_to_the_fastest_peer() -> None:
    assert speed_over_best_peer(median_times(EVENTS)) == pytest.approx(0.5)
    assert speed_over_best_peer(median_times([e for e in EVENTS if e.get("engine") != "onnxruntime"])) == pytest.approx(
        1.5
    )
    assert speed_over_best_peer(median_times([EVENTS[0]])) is None
    assert speed_over_best_peer(median_times(EVENTS[1:])) is None


def test_fastest_blocks_are_compared_with_each_other() -> None:
    disturbed = event("torch", 9e-4, blocks_s=[9e-4, 1.9e-4, 8e-4])
    assert speed_over_best_peer(median_times([EVENTS[0], disturbed])) == pytest.approx(4.5)
    assert speed_over_best_peer(fastest_blocks([EVENTS[0], disturbed])) == pytest.approx(1.0)
    assert speed_over_best_peer(fastest_blocks(EVENTS)) is None


def test_kernel_times_exclude_conversions() -> None:
    assert kernel_times(EVENTS) == (1.5e-4, 2.5e-4)
    # a kernel without conversions to leave out is the whole
    assert kernel_times([e for e in EVENTS if e.get("engine") != "tilewright alone"]) == (2e-4, 2.5e-4)
    # where the conversion is in the way of nothing, the faster of both counts
    assert kernel_times([EVENTS[0], event("torch", 1e-4), event("torch alone", 2e-4)]) == (2e-4, 1e-4)
    assert kernel_times([EVENTS[0], EVENTS[1]]) == (None, None)


def test_noise_is_between_blocks() -> None:
    assert block_spread(EVENTS) == pytest.approx(0.2)
    assert block_spread(EVENTS[1:]) is None


def test_the_limit_is_arithmetic_or_memory() -> None:
    limit = MachineLimit(gflops=100.0, gbs=10.0)
    product = gemm("x", 1, 1000, 1000)
    assert limit.seconds(product, cached=True) == pytest.approx(2e6 / 100e9)
    assert limit.seconds(product, cached=False) == pytest.approx(product.bytes / 10e9)
    large = gemm("x", 2000, 2000, 2000)
    assert fraction_of_limit(large, EVENTS) == pytest.approx(large.flops / 100e9 / 2e-4)


@pytest.mark.parametrize(
    ("name", "copies"),
    [("gemm_m1_k4096_n4096", MAX_COPIES), ("gemm_m4096_k4096_n1", MAX_COPIES), ("gemm_m512_k512_n512", 1),
     ("gemm_m2048_k2048_n2048", 1), ("conv_1x64x56x56_o64_k3_s1", 1), ("softmax_1x32000", 1)],
)  # fmt: skip
def test_large_memory_bound_operands_rotate_over_copies(name: str, copies: int) -> None:
    operator = case(name)
    assert operator.copies == copies
    assert copies == 1 or operator.copies * operator.largest_operand_bytes >= min(
        ROTATION_BYTES, MAX_COPIES * operator.largest_operand_bytes
    )


def test_copies_run_in_turns() -> None:
    calls: list[int] = []
    runs = [lambda k=k: calls.append(k) for k in range(3)]
    run = rotate_copies(runs)  # type: ignore[arg-type]
    for _ in range(7):
        run()
    assert calls == [0, 1, 2, 0, 1, 2, 0]


def test_engines_take_turns_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0.0)
    order: list[str] = []
    seconds = time_in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")})  # type: ignore[dict-item]
    assert order == ["a", "b"] * measure.BLOCKS
    assert [len(seconds[n]) for n in "ab"] == [measure.BLOCKS] * 2


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("limit", "rounds"), [(0.0, 3), (1.5, 3), (1.7, 4), (1e9, measure.BLOCKS)])
def test_no_round_but_the_first_three_begins_that_would_end_too_late(
    monkeypatch: pytest.MonkeyPatch, limit: float, rounds: int
) -> None:
    clock = Time()
    monkeypatch.setattr(measure, "time", clock)
    run: dict[str, Any] = {"a": lambda: clock.sleep(0.3)}
    assert len(time_in_turns(run, limit)["a"]) == rounds


def test_call_as_long_as_a_block_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time()
    monkeypatch.setattr(measure, "time", clock)
    seconds = time_in_turns({"long": lambda: clock.sleep(0.3), "short": lambda: clock.sleep(0.04)})  # type: ignore[dict-item]
    assert [len(block) for block in seconds["long"]] == [1] * measure.BLOCKS
    # the first call of a block, and another one of the first block, warm up
    assert [len(block) for block in seconds["short"]] == [1, *[2] * (measure.BLOCKS - 1)]


def test_results_are_compared_at_random_places() -> None:
    right = np.random.default_rng(0).standard_normal((3, measure.MAX_COMPARED_ELEMENTS), dtype=np.float32)
    wrong = right.copy()
    wrong[:, ::5] += 1.0
    results = {n: measure._sample(x, 7) for n, x in (("a", right), ("b", right), ("c", wrong))}
    assert results["a"].size == measure.MAX_COMPARED_ELEMENTS + 1
    assert list(measure._wrong_results(results)) == ["c"]
    assert list(measure._wrong_results({**results, "c": measure._sample(right[:2], 7)})) == ["c"]
    small = measure._sample(right[0, :5], 7)
    assert small.tolist() == [5.0, *right[0, :5].tolist()]


def test_large_inputs_repeat_themselves() -> None:
    array = Case("x", "class", lambda: None, {"x": (3, 2_000_003)}, 1.0, 1.0).feeds(1)["x"]  # type: ignore[arg-type]
    flat = array.reshape(-1)
    assert array.shape == (3, 2_000_003)
    assert (flat[RANDOM_PERIOD:] == flat[: flat.size - RANDOM_PERIOD]).all()
    assert np.unique(flat[:1000]).size > 990


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    cases = [gemm("one", 8, 8, 8), gemm("two", 8, 8, 8), gemm("two", 9, 8, 8)]

    def isolated(module: str, arguments: list[str], timeout: float) -> list[dict[str, object]]:
        calls.append(arguments[1])
        return EVENTS

    monkeypatch.setattr(command, "run_isolated", isolated)
    log = tmp_path / "logs" / "log.jsonl"
    options = command._parser().parse_args(["--log", str(log), "--seconds", "2"])
    assert command._run(options, cases) == 0
    assert calls == ["gemm_m8_k8_n8", "gemm_m9_k8_n8"]
    log.write_text(log.read_text() + '{"case": "ge')
    assert command._run(options, cases) == 0
    assert len(calls) == 2
    assert read_log(log)["gemm_m9_k8_n8"] == EVENTS


def test_the_table_has_a_cell_per_column() -> None:
    large = gemm("class", 2000, 2000, 2000)
    cells = dict(zip(HEADER, table_row(large, EVENTS), strict=True))
    assert cells["tilewright us"] == "200"
    assert cells["onnxruntime us"] == "**100**"
    assert cells["ratio"] == "0.50"
    assert cells["kernels' ratio"] == "1.67"
    assert cells["noise"] == "20%"
    assert cells["copies"] == ""
    assert dict(zip(HEADER, table_row(large, [*EVENTS, {"copies": 8}]), strict=True))["copies"] == "8"
    assert dict(zip(HEADER, table_row(large, [{"error": "no end"}]), strict=True))["notes"] == "process: no end"


def test_classes_have_geometric_means() -> None:
    first, second = gemm("class", 100, 100, 100), gemm("class", 200, 200, 200)
    faster = [event("tilewright", 1e-4, blocks_s=[0.5e-4, 1e-4]), event("torch", 2e-4, blocks_s=[2e-4, 3e-4])]
    shown = summary_rows([first, second], {first.name: EVENTS, second.name: faster})
    assert shown == [["class", "2 of 2", "1.00", "0.50", "4.00", "4.00", "0.10"]]
