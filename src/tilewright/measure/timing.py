"""Timing of native code: repeated until it takes long enough, medians, several candidates in turns.

Whatever is timed takes a number of repetitions, so that the overhead of calling it from Python stays outside.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

REPEATS = 7
SECONDS = 0.02
"""Time of one measurement; the median of `REPEATS` counts."""

RepeatedRun = Callable[[int], None]
"""Does something that many times."""


def time_once(run: RepeatedRun, seconds: float = SECONDS) -> float:
    """Seconds of one repetition, from one measurement of about `seconds`."""
    times = _repetitions(run, seconds)
    return _time_run(run, times) / times


def time_median(run: RepeatedRun, seconds: float = SECONDS, repeats: int = REPEATS) -> float:
    """Seconds of one repetition, the median of several measurements of about `seconds` each."""
    times = _repetitions(run, seconds)
    return median(_time_run(run, times) for _ in range(repeats)) / times


def time_interleaved(
    runs: Mapping[str, RepeatedRun], seconds: float = SECONDS, repeats: int = REPEATS, pause: float = 0.0
) -> dict[str, float]:
    """Seconds of one repetition of several candidates, measured alternately, so that a change of the clock or of the
    load hits all of them.

    Args:
        runs: candidates by name.
        seconds: of one measurement.
        repeats: measurements of each; their median counts.
        pause: seconds to sleep before each, for worker threads of the one before to fall asleep.
    """
    times = {name: _repetitions(run, seconds) for name, run in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if pause:
                time.sleep(pause)
            found[name].append(_time_run(run, times[name]) / times[name])
    return {name: median(values) for name, values in found.items()}


def time_block(call: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call of a block that takes about `seconds`.

    The first call wakes threads and fills caches and is not counted, unless it fills the block alone.
    """
    first = _time_call(call)
    if first >= seconds:
        return [first]
    found: list[float] = []
    while not found or sum(found) < seconds:
        found.append(_time_call(call))
    return found


def time_calls(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of some calls."""
    return [_time_call(call) for _ in range(times)]


def _time_call(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _repetitions(run: RepeatedRun, wanted: float) -> int:
    """Repetitions that take about `wanted` seconds."""
    times = 1
    while (seconds := _time_run(run, times)) < wanted / 4:
        times = max(2 * times, min(16 * times, int(times * wanted / 4 / max(seconds, 1e-7))))
    return max(1, int(times * wanted / seconds))


def _time_run(run: RepeatedRun, times: int) -> float:
    start = time.perf_counter()
    run(times)
    return time.perf_counter() - start
