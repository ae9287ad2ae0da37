"""Timing of native code: enough repetitions, medians, interleaved candidates.

Timed functions take a number of repetitions, so that the overhead of Python's calls is not measured.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

REPEATS = 7
SECONDS = 0.02
"""Duration of one measurement; results are medians of `REPEATS` measurements."""

RepeatedRun = Callable[[int], None]
"""Repeats the timed work so many times."""


def time_once(run: RepeatedRun, seconds: float = SECONDS) -> float:
    """Seconds per repetition, from one measurement of about `seconds`."""
    times = _repetitions(run, seconds)
    return _time_run(run, times) / times


def time_median(run: RepeatedRun, seconds: float = SECONDS, repeats: int = REPEATS) -> float:
    """Seconds per repetition, the median of several measurements of about `seconds` each."""
    times = _repetitions(run, seconds)
    return median(_time_run(run, times) for _ in range(repeats)) / times


def time_interleaved(
    runs: Mapping[str, RepeatedRun], seconds: float = SECONDS, repeats: int = REPEATS, pause: float = 0.0
) -> dict[str, float]:
    """Seconds per repetition of several candidates, measured in turns, so that changes of clock and load affect all of
    them.

    Args:
        runs: candidates by name.
        seconds: of one measurement.
        repeats: measurements of each, whose median is taken.
        pause: seconds before each measurement, in which worker threads of the previous candidate fall asleep.
    """
    times = {name: _repetitions(run, seconds) for name, run in runs.items()}
    measured: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if pause:
                time.sleep(pause)
            measured[name].append(_time_run(run, times[name]) / times[name])
    return {name: median(values) for name, values in measured.items()}


def time_block(call: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call of a block that takes about `seconds`.

    The first call warms up threads and caches and is dropped, unless it takes the whole block.
    """
    first = _time_call(call)
    if first >= seconds:
        return [first]
    times: list[float] = []
    total = 0.0
    while not times or total < seconds:
        times.append(_time_call(call))
        total += times[-1]
    return times


def time_calls(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of `times` calls."""
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
