"""Calibration: its kernels compute what they say, its arithmetic is right, a busy machine is refused."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import MachineError, OptionError
from tilewright.loops.interpreter import interpret
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named, shipped_machines
from tilewright.measure import calibrate, calibration_kernels
from tilewright.measure.aligned_array import aligned_array
from tilewright.measure.calibrate import (
    check_quiet,
    cpu_times,
    make_monotonic,
    round_figures,
    working_sets,
)
from tilewright.measure.native_functions import NativeFunctions
from tilewright.verify.verifier import verify


@pytest.fixture
def rng() -> np.random.Generator:
    """Other numbers in every run."""
    return np.random.default_rng()


TARGETS = [t for t in map(Target.parse, ("x86-64-v4", "x86-64-v3", "x86-64", "aarch64")) if t.runs_here]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_calibration_kernels_compute_their_definition(target: Target, rng: np.random.Generator) -> None:
    funcs = [
        calibration_kernels.multiply_add(target),
        calibration_kernels.stream_read(target),
        calibration_kernels.pointer_chase(),
        calibration_kernels.fork_join(),
    ]
    for func in funcs:
        verify(func)
    native = NativeFunctions(funcs, target)

    width = calibration_kernels.tile_columns(target)
    x, y = (
        rng.uniform(0.4, 0.6, width).astype(np.float32),
        rng.uniform(0.4, 0.6, calibration_kernels.ROWS).astype(np.float32),
    )
    out = np.zeros((calibration_kernels.ROWS, width), np.float32)
    native.call("multiply_add", [x, y, out], [5])
    expected = np.zeros((calibration_kernels.ROWS, width), np.float64)
    for _ in range(5):
        expected = expected * y[:, None] + x
    np.testing.assert_allclose(out, expected, rtol=1e-6)

    chunk = calibration_kernels.ACCUMULATORS * target.lanes(32)
    data = aligned_array((2, 3, chunk))
    data[...] = rng.random(data.shape, dtype=np.float32)
    sums = np.zeros((2, chunk), np.float32)
    native.call("stream_read", [data, sums], [2, 3, 4], threads=2)
    np.testing.assert_allclose(sums, 4 * data.astype(np.float64).sum(1), rtol=1e-6)

    order = rng.permutation(50)
    chain = np.zeros((50, 8), np.int64)
    chain[order, 0] = np.roll(order, -1)
    place = np.zeros(1, np.int64)
    native.call("pointer_chase", [chain, place], [50, 7])
    expected_place = 0
    for _ in range(7):
        expected_place = int(chain[expected_place, 0])
    assert place[0] == expected_place

    touched = np.zeros((3, calibration_kernels.PART_DISTANCE), np.float32)
    native.call("fork_join", [touched], [3, 2, 2], threads=2)
    assert touched[:, 0].tolist() == [1.5, 1.5, 1.5]
    assert not touched[:, 1:].any()


def test_native_and_interpreter_agree_on_pointer_chasing(rng: np.random.Generator) -> None:
    chain = np.zeros((5, 8), np.int64)
    chain[:, 0] = [2, 99, 4, -7, 1]  # what is no index is clamped
    place = np.zeros(1, np.int64)
    interpret(calibration_kernels.pointer_chase(), {"P": chain, "OUT": place}, {"size": 5, "steps": 5})
    native = np.zeros(1, np.int64)
    NativeFunctions([calibration_kernels.pointer_chase()], Target.host()).call("pointer_chase", [chain, native], [5, 5])
    assert place[0] == native[0] == 1  # 0 -> 2 -> 4 -> 1 -> 99; the last one is stored as it is found


@pytest.mark.parametrize("name", [n for n, m in shipped_machines().items() if m.gpu is None])
def test_working_sets_fit_their_levels(name: str) -> None:
    machine = machine_named(name).with_cores(2)
    sets = working_sets(machine)
    assert [level.name for level, _ in sets] == ["L1", "L2", "L3", "memory"]
    for (near, _), (level, size) in pairwise(sets):
        assert size > near.bytes
        assert level.name == "memory" or size * 2 <= max(level.bytes, 4 * near.bytes)


def test_noisy_levels_are_made_monotonic() -> None:
    levels = machine_named("zen5").levels
    noisy = [levels[0], replace(levels[1], core_gbs=600.0, total_gbs=700.0, latency_ns=0.5), *levels[2:]]
    monotonic = make_monotonic(noisy)
    assert [x.core_gbs for x in monotonic] == sorted((x.core_gbs for x in monotonic), reverse=True)
    assert [x.latency_ns for x in monotonic] == sorted(x.latency_ns for x in monotonic)
    assert all(x.total_gbs >= x.core_gbs for x in monotonic)


def test_figures_have_three_digits() -> None:
    machine = round_figures(replace(machine_named("zen5"), ghz=3.14159, sync_us=0.123456))
    assert (machine.ghz, machine.sync_us) == (3.14, 0.123)


def quiet(**changes: float) -> tuple[dict[str, float], dict[str, float], list[float]]:
    """Processor times before and after, and peaks, of a quiet run."""
    before = {"all": 0.0, "own": 0.0, "wall": 0.0, "cpus": 2.0}
    return before, {"all": 4.1, "own": 4.0, "wall": 4.0, "cpus": 2.0, **changes}, [100.0] * 8


def test_a_quiet_machine_is_accepted() -> None:
    check_quiet(*quiet())


def test_a_busy_machine_is_rejected() -> None:
    with pytest.raises(MachineError, match=r"other programs used 38% of the processors; stop other programs"):
        check_quiet(*quiet(all=7.0))


def test_a_busy_machine_is_rejected_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, _ = quiet(all=7.0)
    readings = iter([before, after])
    monkeypatch.setattr(calibrate, "cpu_times", lambda: next(readings))
    monkeypatch.setattr(calibrate, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(calibrate, "_Benchmark", None)
    with pytest.raises(MachineError, match=r"other programs used 38% of the processors; stop other programs"):
        calibrate.calibrate(1)


def test_an_unsteady_clock_is_rejected() -> None:
    before, after, _ = quiet()
    with pytest.raises(MachineError, match=r"the same work ran between 100 and 150 GFLOP/s"):
        check_quiet(before, after, [100.0, 100, 100, 150, 150, 150, 100, 150])


def test_processor_times(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 1000 50 0 0 0 0 0\ncpu0 1 2 3\n")
    assert cpu_times(stat)["all"] == pytest.approx(2.0)
    assert cpu_times(tmp_path / "none")["all"] == 0.0


def test_calls_are_checked() -> None:
    native = NativeFunctions([calibration_kernels.fork_join()], Target.host())
    with pytest.raises(OptionError, match=r"function 'fork_join': expected 1 arrays and 3 sizes, got 0 and 1"):
        native.call("fork_join", [], [3])
    with pytest.raises(OptionError, match=r"array 'OUT' of function 'fork_join': expected a contiguous"):
        native.call("fork_join", [np.zeros((3, 32))], [3, 1, 1])
    with pytest.raises(OptionError, match=r"expected a contiguous array of float32"):
        native.call("fork_join", [np.zeros((6, 32), np.float32)[::2]], [3, 1, 1])
    with pytest.raises(
        OptionError, match=r"array 'OUT' of function 'fork_join': expected shape \[3, 32\], got \[2, 32\]"
    ):
        native.call("fork_join", [np.zeros((2, 32), np.float32)], [3, 1, 1])
