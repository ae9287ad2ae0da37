"""Calibration of this machine: peak rate, bandwidth and latency of every memory level, fork/join cost of threads, and
the parameters of the cost model that small kernels determine (`fit_parameters.py`), and times of register tiles
(`register_tiles.py`).

It takes some seconds and runs kernels of the project's own code generator. The result is the shipped description of
the processor with all measurable figures replaced. On a busy machine the figures would be wrong: it is noticed before
the first measurement, and figures are rejected where other programs ran meanwhile.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from tilewright.errors import MachineError
from tilewright.machine import Target
from tilewright.machine.model import Level, Machine
from tilewright.machine.shipped import host_machine
from tilewright.measure import calibration_kernels
from tilewright.measure.aligned_array import aligned_array
from tilewright.measure.fit_parameters import fit_parameters
from tilewright.measure.native_functions import NativeFunctions
from tilewright.measure.register_tile_times import measure_register_tiles
from tilewright.measure.timing import REPEATS, time_median, time_once

MAX_OTHER_LOAD = 0.08
"""Largest share of the processors' time that other processes may take meanwhile."""

PROBE_SECONDS, MAX_PROBED_LOAD = 1.0, 0.25
"""How long other processes are watched before anything is measured, and the largest share that they may take then: one
that wakes up for a moment is no reason to refuse."""

MAX_PEAK_SPREAD = 0.25
"""Largest distance between the quartiles of repeated peak measurements, relative to their median."""

MAX_WORKING_SET_BYTES = 512 << 20
"""Largest working set."""

FORK_JOIN_STEPS = 1000
"""Additions per part of the loop that measures fork and join: about 2 us."""

Report = Callable[[str], None]


def calibrate(threads: int, report: Report = lambda line: None) -> Machine:
    """Measures this machine.

    Args:
        threads: number of cores.
        report: called with the name of each measurement.

    Raises:
        MachineError: other processes were running, or the clock was unsteady.
    """
    report("waiting to see whether other programs run")
    start = cpu_times()
    time.sleep(PROBE_SECONDS)
    check_others(start, cpu_times(), MAX_PROBED_LOAD)
    bench = _Benchmark(Target.host(), threads)
    report("peak of fused multiply-adds")
    peaks = [bench.gflops() for _ in range(3 * REPEATS)]
    check_quiet(start, cpu_times(), peaks)
    shipped = host_machine().with_cores(threads)
    levels: list[Level] = []
    for level, size in working_sets(shipped):
        report(f"{level.name}: bandwidth and latency with {size >> 10} KiB")
        one = bench.gbs(size, 1)
        everyone = max(one, bench.gbs(size, threads) if threads > 1 else one)
        levels.append(replace(level, core_gbs=one, total_gbs=everyone, latency_ns=bench.latency(size)))
    report("starting of threads")
    sync = bench.sync_us()
    ghz = median(peaks) / (2.0 * Target.host().lanes(32) * shipped.fma_pipes)
    measured = replace(
        shipped, name=f"{shipped.name} (calibrated)", ghz=ghz, sync_us=sync, levels=make_monotonic(levels)
    )
    rounded = round_figures(measured)
    report("parameters of the cost model")
    fitted = fit_parameters(rounded, Target.host(), report)
    report("register tiles")
    fitted = replace(fitted, register_tiles=measure_register_tiles(fitted, Target.host()))
    check_quiet(start, cpu_times(), peaks)
    return fitted


def working_sets(machine: Machine) -> list[tuple[Level, int]]:
    """Per level the bytes per core of a working set that is certainly in it: half of its capacity, and well beyond the
    previous level."""
    sets: list[tuple[Level, int]] = []
    before = 0
    *caches, memory = machine.levels
    for level in caches:
        size = max(level.bytes // level.shared_by // 2, 2 * before)
        sets.append((level, min(size, 16 * before) if before else size))
        before = level.bytes
    beyond = min(MAX_WORKING_SET_BYTES, max(4 * before, 64 << 20))
    sets.append((memory, beyond // machine.cores))
    return sets


def make_monotonic(levels: list[Level]) -> tuple[Level, ...]:
    """The levels with figures clamped to their order: noise can make a farther level look faster."""
    result: list[Level] = []
    for level in levels:
        if result:
            nearer = result[-1]
            core = min(level.core_gbs, nearer.core_gbs)
            total = max(core, min(level.total_gbs, nearer.total_gbs))
            level = replace(level, core_gbs=core, total_gbs=total, latency_ns=max(level.latency_ns, nearer.latency_ns))
        result.append(level)
    return tuple(result)


def round_figures(machine: Machine) -> Machine:
    """The description with figures rounded to three digits; more would be noise."""

    def three(x: float) -> float:
        return float(f"{x:.3g}")

    levels = tuple(
        replace(x, core_gbs=three(x.core_gbs), total_gbs=three(x.total_gbs), latency_ns=three(x.latency_ns))
        for x in machine.levels
    )
    return replace(machine, ghz=three(machine.ghz), sync_us=three(machine.sync_us), levels=levels)


def cpu_times(path: Path = Path("/proc/stat")) -> Mapping[str, float]:
    """CPU seconds of all processes (`all`) and of this one (`own`), wall-clock seconds (`wall`), number of CPUs
    (`cpus`)."""
    try:
        words = path.read_text().splitlines()[0].split()[1:]
        ticks = os.sysconf("SC_CLK_TCK")
        idle = int(words[3]) + int(words[4])
        busy = (sum(map(int, words[:8])) - idle) / ticks
    except (OSError, IndexError, ValueError):
        busy = 0.0
    return {"all": busy, "own": time.process_time(), "wall": time.monotonic(), "cpus": float(os.cpu_count() or 1)}


_QUIET_HINT = "stop other programs and calibrate again; nothing was stored"


def check_others(start: Mapping[str, float], end: Mapping[str, float], most: float = MAX_OTHER_LOAD) -> None:
    """Checks that other processes hardly used the processors between two readings.

    Args:
        start, end: the readings.
        most: share of the processors' time that they may take.

    Raises:
        MachineError: they took more.
    """
    wall = max(end["wall"] - start["wall"], 1e-9)
    others = (end["all"] - start["all"] - (end["own"] - start["own"])) / (wall * end["cpus"])
    if others > most:
        what = f"other programs used {others:.0%} of the processors"
        raise MachineError(what, where="calibration", hint=_QUIET_HINT)


def check_quiet(start: Mapping[str, float], end: Mapping[str, float], peaks: list[float]) -> None:
    """Checks that no other process used the processors between two readings, and that repeated measurements agree.

    Raises:
        MachineError: either does not hold.
    """
    check_others(start, end)
    ordered = sorted(peaks)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    if high - low > MAX_PEAK_SPREAD * median(ordered):
        what = f"the same work ran between {low:.0f} and {high:.0f} GFLOP/s"
        raise MachineError(what, where="calibration", hint=_QUIET_HINT)


class _Benchmark:
    """The compiled calibration kernels and their measurements."""

    def __init__(self, target: Target, threads: int) -> None:
        self.target, self.threads = target, threads
        funcs = [
            calibration_kernels.multiply_add(target),
            calibration_kernels.stream_read(target),
            calibration_kernels.pointer_chase(),
            calibration_kernels.fork_join(),
        ]
        self.native = NativeFunctions(funcs, target)
        self.width = calibration_kernels.tile_columns(target)
        self.chunk = calibration_kernels.ACCUMULATORS * target.lanes(32)
        self.rng = np.random.default_rng(0)

    def gflops(self) -> float:
        """One measurement of one core's peak."""
        x = self.rng.uniform(0.4, 0.6, self.width).astype(np.float32)
        y = self.rng.uniform(0.4, 0.6, calibration_kernels.ROWS).astype(np.float32)
        out = np.zeros((calibration_kernels.ROWS, self.width), np.float32)
        per_step = 2.0 * calibration_kernels.ROWS * self.width

        def run(steps: int) -> None:
            self.native.call("multiply_add", [x, y, out], [steps])

        return per_step / time_once(run) / 1e9

    def gbs(self, size: int, threads: int) -> float:
        """Read bandwidth, in bytes per nanosecond, of `threads` cores with working sets of `size` bytes each."""
        blocks = max(1, size // (4 * self.chunk))
        data = aligned_array((threads, blocks, self.chunk))
        data[...] = self.rng.random(self.chunk, dtype=np.float32)
        out = np.zeros((threads, self.chunk), np.float32)

        def run(times: int) -> None:
            self.native.call("stream_read", [data, out], [threads, blocks, times], threads)

        return data.nbytes / time_median(run) / 1e9

    def latency(self, size: int) -> float:
        """Nanoseconds of a dependent load (pointer chasing) in a working set of `size` bytes."""
        lines = max(2, min(size, MAX_WORKING_SET_BYTES // 4) // 64)
        order = self.rng.permutation(lines)
        chain = np.zeros((lines, 8), np.int64)
        chain[order, 0] = np.roll(order, -1)
        out = np.zeros(1, np.int64)

        def run(steps: int) -> None:
            self.native.call("pointer_chase", [chain, out], [lines, steps * 64])

        run(max(1, lines // 64))
        return time_median(run) / 64 * 1e9

    def sync_us(self) -> float:
        """Microseconds of fork and join: the time of a parallel loop beyond its share of the work, between other loops
        of one call. The loop has a little work, as the runtime does not wait for threads that find none left."""
        out = aligned_array((self.threads, calibration_kernels.PART_DISTANCE))

        def seconds(threads: int) -> float:
            def run(times: int) -> None:
                self.native.call("fork_join", [out], [self.threads, FORK_JOIN_STEPS, times], threads)

            return time_median(run)

        return max(0.01, (seconds(self.threads) - seconds(1) / self.threads) * 1e6)
