"""Times of all engines on one case, in alternating blocks with pauses, and what the machine could do at most."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median, quantiles

import numpy as np

from benchmarks.common.environment import Load
from benchmarks.common.isolation import Emit, error_text
from benchmarks.operators.cases import Case
from benchmarks.operators.peers import ALONE, PEERS, Engine, Run, kernel_alone, tilewright
from tilewright.machine import Target
from tilewright.measure import kernels
from tilewright.measure.functions import NativeFunctions

BLOCKS = 4
BLOCK_SECONDS = 0.15
PAUSE_SECONDS = 0.1
TOLERANCE = 1e-4
MEMORY_BYTES = 256 << 20
OURS = "tilewright"


@dataclass(frozen=True, slots=True)
class Limit:
    """What the machine does at most, measured in the same process: GFLOP/s and bytes per nanosecond from memory."""

    gflops: float
    gbs: float

    def seconds(self, case: Case, cached: bool) -> float:
        """The least time of a case; one whose data stays in the caches is not bound by memory."""
        return max(case.flops / self.gflops, 0.0 if cached else case.bytes / self.gbs) / 1e9


def measure_case(case: Case, threads: int, optimizer: str | None, emit: Emit) -> None:
    """Measures one case, emitting an event per engine, one per engine's kernel alone, and one for the limit."""
    seed = int(time.time())
    copies = [(case.model(), case.feeds(seed + k)) for k in range(case.copies)]
    engines: dict[str, Engine] = {
        OURS: lambda model, feeds, count: tilewright(model, feeds, count, optimizer), **PEERS,
        **{f"{name} alone": engine for name, engine in ALONE.items()},
        f"{OURS} alone": lambda model, feeds, count: kernel_alone(model, feeds, count, optimizer),
    }  # fmt: skip
    runs: dict[str, Run] = {}
    results: dict[str, np.ndarray] = {}
    for name, engine in engines.items():
        try:
            start = time.perf_counter()
            built = [engine(model, feeds, threads) for model, feeds in copies]
            seconds = time.perf_counter() - start
            found = [run for run in built if run is not None]
            if found:
                output = found[0]()
                if name != f"{OURS} alone":
                    results[name] = np.array(output)
                runs[name] = in_rotation(found)
                emit({"engine": name, "build_s": seconds / len(found), "copies": len(found)})
        except Exception as error:
            emit({"engine": name, "error": error_text(error)})
    for name, problem in _wrong(results).items():
        emit({"engine": name, "error": problem})
        runs.pop(name, None)
    results.clear()
    load = Load.now()
    for name, blocks in alternate(runs).items():
        seconds = [s for block in blocks for s in block]
        low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
        emit({"engine": name, "median_s": median(seconds), "low_s": low, "high_s": high, "calls": len(seconds),
              "blocks_s": [median(block) for block in blocks]})  # fmt: skip
    emit({"others": load.others_since()})
    limit = measured_limit(threads)
    emit({"gflops": limit.gflops, "gbs": limit.gbs})


def in_rotation(runs: Sequence[Run]) -> Run:
    """Runs copies in turns, one per call."""
    if len(runs) == 1:
        return runs[0]
    following = cycle(runs)
    return lambda: next(following)()


def _wrong(results: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Engines whose result differs from the median of all."""
    if len(results) < 2:
        return {}
    flat = {name: np.asarray(r, np.float32).reshape(-1) for name, r in results.items()}
    sizes = {r.size for r in flat.values()}
    if len(sizes) > 1:
        return {name: f"result of {r.size} elements" for name, r in flat.items() if r.size != max(sizes)}
    middle = np.median(np.stack(list(flat.values())), axis=0)
    scale = float(np.abs(middle).max()) or 1.0
    errors = {name: float(np.abs(r - middle).max()) / scale for name, r in flat.items()}
    return {name: f"result differs by {e:.1e}" for name, e in errors.items() if not e <= TOLERANCE}


def alternate(runs: Mapping[str, Run]) -> dict[str, list[list[float]]]:
    """Seconds of all calls of every engine, by block; engines take turns, as threads spin on after a call."""
    found: dict[str, list[list[float]]] = {name: [] for name in runs}
    for block in range(BLOCKS):
        for name, run in runs.items():
            time.sleep(PAUSE_SECONDS)
            seconds = _block(run)
            # what the first block warms up does not count where there are more
            found[name].append(seconds[1:] if block == 0 and len(seconds) > 1 else seconds)
    return found


def _block(run: Run) -> list[float]:
    start = time.perf_counter()
    run()
    seconds = [time.perf_counter() - start]
    while sum(seconds) < BLOCK_SECONDS:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds[1:] or seconds


def measured_limit(threads: int) -> Limit:
    """Peak and memory bandwidth of `threads` cores, now."""
    target = Target.host()
    native = NativeFunctions([kernels.multiply_add(target), kernels.reading(target)], target)
    width, chunk = kernels.columns(target), kernels.CHAINS * target.lanes(32)
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.4, 0.6, width).astype(np.float32), rng.uniform(0.4, 0.6, kernels.ROWS).astype(np.float32)
    out = np.zeros((kernels.ROWS, width), np.float32)
    steps = 200_000
    peaks = [_seconds(lambda: native.call("multiply_add", [x, y, out], [steps])) for _ in range(7)]
    blocks = MEMORY_BYTES // (4 * chunk * threads)
    data = np.ones((threads, blocks, chunk), np.float32)
    sums = np.zeros((threads, chunk), np.float32)
    reads = [_seconds(lambda: native.call("reading", [data, sums], [threads, blocks, 1], threads)) for _ in range(5)]
    peak = threads * 2.0 * kernels.ROWS * width * steps / median(peaks)
    return Limit(peak / 1e9, data.nbytes / median(reads) / 1e9)


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
