"""What the operator benchmarks make of times: ratios, noise, copies, tables."""

import pytest
from benchmarks.operators import measure
from benchmarks.operators.__main__ import HEADER, kernel_times, noise, of_limit, ratio, row, summaries
from benchmarks.operators.cases import COLD_BYTES, MOST_COPIES, Case, all_cases, gemm
from benchmarks.operators.measure import Limit, alternate, in_rotation


def event(engine: str, seconds: float, **more: object) -> dict[str, object]:
    return {"engine": engine, "median_s": seconds, "low_s": seconds, "high_s": seconds, "calls": 3, **more}


EVENTS = [
    event("tilewright", 2e-4, blocks_s=[1.9e-4, 2.0e-4, 2.3e-4]), event("torch", 3e-4), event("onnxruntime", 1e-4),
    event("tilewright alone", 1.5e-4), event("torch alone", 2.5e-4), {"gflops": 100.0, "gbs": 10.0}, {"others": 0.02},
]  # fmt: skip


def case(name: str) -> Case:
    return next(c for c in all_cases() if c.name == name)


def test_the_ratio_is_to_the_fastest_peer() -> None:
    assert ratio(EVENTS) == pytest.approx(0.5)
    assert ratio([e for e in EVENTS if e.get("engine") != "onnxruntime"]) == pytest.approx(1.5)
    assert ratio([EVENTS[0]]) is None
    assert ratio(EVENTS[1:]) is None


def test_kernels_alone_are_compared_with_each_other() -> None:
    assert kernel_times(EVENTS) == (1.5e-4, 2.5e-4)
    # a kernel without conversions to leave out is the whole
    assert kernel_times([e for e in EVENTS if e.get("engine") != "tilewright alone"]) == (2e-4, 2.5e-4)
    # where the conversion is in the way of nothing, the faster of both counts
    assert kernel_times([EVENTS[0], event("torch", 1e-4), event("torch alone", 2e-4)]) == (2e-4, 1e-4)
    assert kernel_times([EVENTS[0], EVENTS[1]]) == (None, None)


def test_noise_is_between_blocks() -> None:
    assert noise(EVENTS) == pytest.approx(0.2)
    assert noise(EVENTS[1:]) is None


def test_the_limit_is_arithmetic_or_memory() -> None:
    limit = Limit(gflops=100.0, gbs=10.0)
    product = gemm("x", 1, 1000, 1000)
    assert limit.seconds(product, cached=True) == pytest.approx(2e6 / 100e9)
    assert limit.seconds(product, cached=False) == pytest.approx(product.bytes / 10e9)
    large = gemm("x", 2000, 2000, 2000)
    assert of_limit(large, EVENTS) == pytest.approx(large.flops / 100e9 / 2e-4)


@pytest.mark.parametrize(
    ("name", "copies"),
    [("gemm_m1_k4096_n4096", MOST_COPIES), ("gemm_m4096_k4096_n1", MOST_COPIES), ("gemm_m512_k512_n512", 1),
     ("gemm_m2048_k2048_n2048", 1), ("conv_1x64x56x56_o64_k3_s1", 1), ("softmax_1x32000", 1)],
)  # fmt: skip
def test_large_operands_that_memory_limits_have_copies(name: str, copies: int) -> None:
    found = case(name)
    assert found.copies == copies
    assert copies == 1 or found.copies * found.large >= min(COLD_BYTES, MOST_COPIES * found.large)


def test_copies_run_in_turns() -> None:
    calls: list[int] = []
    runs = [lambda k=k: calls.append(k) for k in range(3)]
    run = in_rotation(runs)  # type: ignore[arg-type]
    for _ in range(7):
        run()
    assert calls == [0, 1, 2, 0, 1, 2, 0]


def test_engines_take_turns_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0.0)
    order: list[str] = []
    found = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")})  # type: ignore[dict-item]
    assert order == ["a", "b"] * measure.BLOCKS
    assert [len(found[n]) for n in "ab"] == [measure.BLOCKS] * 2


def test_the_table_has_a_cell_per_column() -> None:
    large = gemm("class", 2000, 2000, 2000)
    cells = dict(zip(HEADER, row(large, EVENTS), strict=True))
    assert cells["tilewright us"] == "200"
    assert cells["onnxruntime us"] == "**100**"
    assert cells["ratio"] == "0.50"
    assert cells["kernels' ratio"] == "1.67"
    assert cells["noise"] == "20%"
    assert cells["copies"] == ""
    assert dict(zip(HEADER, row(large, [*EVENTS, {"copies": 8}]), strict=True))["copies"] == "8"
    assert dict(zip(HEADER, row(large, [{"error": "no end"}]), strict=True))["notes"] == "process: no end"


def test_classes_have_geometric_means() -> None:
    first, second = gemm("class", 100, 100, 100), gemm("class", 200, 200, 200)
    faster = [event("tilewright", 1e-4), event("torch", 2e-4)]
    shown = summaries([first, second], {first.name: EVENTS, second.name: faster})
    assert shown == [["class", "2 of 2", "1.00", "0.50", "0.10"]]
