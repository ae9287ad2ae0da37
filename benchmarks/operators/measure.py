"""Times of all engines on one case, in alternating blocks with pauses, and the machine's limits."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median, quantiles

import numpy as np

from benchmarks.common.isolation import Emit, error_text
from benchmarks.operators.cases import Case
from benchmarks.operators.peers import KERNEL_PEERS, PEERS, Engine, RunOnce, main_kernel, tilewright
from tilewright.machine import Target
from tilewright.measure import calibration_kernels
from tilewright.measure.native_functions import NativeFunctions
from tilewright.measure.system_load import SystemLoad

BLOCKS = 8
LEAST_BLOCKS = 3
"""Blocks of every engine whatever the limit of seconds: on a shared machine one block of a tenth of a second can take
half as long again as the next."""

BLOCK_SECONDS = 0.1
PAUSE_SECONDS = 0.1
MIN_LONG_CALL_SECONDS = 8.0
"""Calls that take longer count from the first one on, as warming up is negligible."""

TOLERANCE = 1e-4
MAX_COMPARED_ELEMENTS = 1 << 20
"""Sampled elements of a result that are compared between engines."""

MEMORY_BYTES = 256 << 20
OURS = "tilewright"


@dataclass(frozen=True, slots=True)
class MachineLimit:
    """Measured limits of the machine in the same process: peak GFLOP/s and memory bandwidth in bytes per nanosecond."""

    gflops: float
    gbs: float

    def seconds(self, case: Case, cached: bool) -> float:
        """Lower bound of a case's time; data in the caches does not count as traffic."""
        return max(case.flops / self.gflops, 0.0 if cached else case.bytes / self.gbs) / 1e9


def measure_case(
    case: Case, threads: int, optimizer: str | None, emit: Emit, seconds: float = float("inf"), kernels_too: bool = True
) -> None:
    """Measures one case, emitting an event per engine, one per engine's kernel alone, and one for the limit.

    Args:
        case: what is measured.
        threads: of all engines.
        optimizer: of Tilewright.
        emit: takes the events.
        seconds: after which no other round of blocks begins, but for the first `LEAST_BLOCKS`.
        kernels_too: whether to time the kernels without conversions, too.
    """
    seed = int(time.time())
    copies = [(case.model(), case.feeds(seed + k)) for k in range(case.copies)]
    engines: dict[str, Engine] = {
        OURS: lambda model, feeds, count: tilewright(model, feeds, count, optimizer), **PEERS,
    }  # fmt: skip
    if kernels_too:
        engines |= {f"{name} alone": engine for name, engine in KERNEL_PEERS.items()}
        engines[f"{OURS} alone"] = lambda model, feeds, count: main_kernel(model, feeds, count, optimizer)
    runs: dict[str, RunOnce] = {}
    results: dict[str, np.ndarray] = {}
    long: dict[str, list[list[float]]] = {}
    for name, engine in engines.items():
        try:
            start = time.perf_counter()
            built = [engine(model, feeds, threads) for model, feeds in copies]
            build = time.perf_counter() - start
            supported = [run for run in built if run is not None]
            if supported:
                start = time.perf_counter()
                output = supported[0]()
                first = time.perf_counter() - start
                if name != f"{OURS} alone":
                    results[name] = _sample(output, seed)
                runs[name] = rotate_copies(supported)
                if first > MIN_LONG_CALL_SECONDS:
                    long[name] = [[first]]
                del output
                emit({"engine": name, "build_s": build / len(supported), "copies": len(supported)})
        except Exception as error:
            emit({"engine": name, "error": error_text(error)})
    for name, problem in _wrong_results(results).items():
        emit({"engine": name, "error": problem})
        runs.pop(name, None)
        long.pop(name, None)
    results.clear()
    load = SystemLoad.now()
    # where the calls of all are long, there are no others
    for name, blocks in (time_in_turns(runs, seconds) if len(long) < len(runs) else long).items():
        calls = [s for block in blocks for s in block]
        low, _, high = quantiles(calls, n=4) if len(calls) > 1 else (calls[0],) * 3
        emit({"engine": name, "median_s": median(calls), "low_s": low, "high_s": high, "calls": len(calls),
              "blocks_s": [median(block) for block in blocks]})  # fmt: skip
    emit({"others": load.others_since()})
    limit = measure_limit(threads)
    emit({"gflops": limit.gflops, "gbs": limit.gbs})


def rotate_copies(runs: Sequence[RunOnce]) -> RunOnce:
    """Runs copies in turns, one per call."""
    if len(runs) == 1:
        return runs[0]
    following = cycle(runs)
    return lambda: next(following)()


def _sample(output: np.ndarray, seed: int) -> np.ndarray:
    """The size of a result and its elements, of a large one a random sample that depends on the seed."""
    flat = np.asarray(output).reshape(-1)
    places = (
        np.random.default_rng(seed).integers(flat.size, size=MAX_COMPARED_ELEMENTS)
        if flat.size > MAX_COMPARED_ELEMENTS
        else slice(None)
    )
    return np.concatenate([[float(flat.size)], flat[places]])


def _wrong_results(results: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Engines whose sampled result differs from the median over all engines."""
    if len(results) < 2:
        return {}
    sizes = {r[0] for r in results.values()}
    if len(sizes) > 1:
        return {name: f"result of {r[0]:.0f} elements" for name, r in results.items() if r[0] != max(sizes)}
    middle = np.median(np.stack([r[1:] for r in results.values()]), axis=0)
    scale = float(np.abs(middle).max()) or 1.0
    errors = {name: float(np.abs(r[1:] - middle).max()) / scale for name, r in results.items()}
    return {name: f"result differs by {e:.1e}" for name, e in errors.items() if not e <= TOLERANCE}


def time_in_turns(runs: Mapping[str, RunOnce], seconds: float = float("inf")) -> dict[str, list[list[float]]]:
    """Seconds of all calls of every engine, by block; engines take turns, as threads spin on after a call.

    Args:
        runs: by engine.
        seconds: after which no other round of blocks begins that would probably end later, but for the first
            `LEAST_BLOCKS`.
    """
    times: dict[str, list[list[float]]] = {name: [] for name in runs}
    begin = time.perf_counter()
    for block in range(BLOCKS):
        start = time.perf_counter()
        for name, run in runs.items():
            time.sleep(PAUSE_SECONDS)
            block_times = _time_block(run)
            # what the first block warms up does not count where there are more
            times[name].append(block_times[1:] if block == 0 and len(block_times) > 1 else block_times)
        end = time.perf_counter()
        if block + 1 >= LEAST_BLOCKS and end - begin + (end - start) > seconds:
            break
    return times


def _time_block(run: RunOnce) -> list[float]:
    """Seconds of the calls of a block without the first, unless it is the only one."""
    times: list[float] = []
    total = 0.0
    while not times or total < BLOCK_SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        total += times[-1]
    return times[1:] or times


def measure_limit(threads: int) -> MachineLimit:
    """Measures peak and memory bandwidth of `threads` cores."""
    target = Target.host()
    native = NativeFunctions(
        [calibration_kernels.multiply_add(target), calibration_kernels.stream_read(target)], target
    )
    width, chunk = calibration_kernels.tile_columns(target), calibration_kernels.ACCUMULATORS * target.lanes(32)
    rng = np.random.default_rng(0)
    x, y = (
        rng.uniform(0.4, 0.6, width).astype(np.float32),
        rng.uniform(0.4, 0.6, calibration_kernels.ROWS).astype(np.float32),
    )
    out = np.zeros((calibration_kernels.ROWS, width), np.float32)
    steps = 200_000
    peaks = [_time_call(lambda: native.call("multiply_add", [x, y, out], [steps])) for _ in range(7)]
    blocks = MEMORY_BYTES // (4 * chunk * threads)
    data = np.ones((threads, blocks, chunk), np.float32)
    sums = np.zeros((threads, chunk), np.float32)
    reads = [
        _time_call(lambda: native.call("stream_read", [data, sums], [threads, blocks, 1], threads)) for _ in range(5)
    ]
    peak = threads * 2.0 * calibration_kernels.ROWS * width * steps / median(peaks)
    return MachineLimit(peak / 1e9, data.nbytes / median(reads) / 1e9)


def _time_call(run: RunOnce) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
