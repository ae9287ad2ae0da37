"""Timing of native code: repeated until it takes long enough, medians, several candidates in turns.

Whatever is timed takes a number of repetitions, so that the overhead of calling it from Python stays outside.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

REPEATS = 7
SECONDS = 0.02
"""Time of one measurement; the median of `REPEATS` counts."""

Repeat = Callable[[int], None]
"""Does something that many times."""


def once(run: Repeat, seconds: float = SECONDS) -> float:
    """Seconds of one repetition, from one measurement of about `seconds`."""
    times = _enough(run, seconds)
    return _timed(run, times) / times


def often(run: Repeat, seconds: float = SECONDS, repeats: int = REPEATS) -> float:
    """Seconds of one repetition, the median of several measurements of about `seconds` each."""
    times = _enough(run, seconds)
    return median(_timed(run, times) for _ in range(repeats)) / times


def in_turns(
    runs: Mapping[str, Repeat], seconds: float = SECONDS, repeats: int = REPEATS, pause: float = 0.0
) -> dict[str, float]:
    """Seconds of one repetition of several candidates, measured alternately, so that a change of the clock or of the
    load hits all of them.

    Args:
        runs: candidates by name.
        seconds: of one measurement.
        repeats: measurements of each; their median counts.
        pause: seconds to sleep before each, for worker threads of the one before to fall asleep.
    """
    times = {name: _enough(run, seconds) for name, run in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if pause:
                time.sleep(pause)
            found[name].append(_timed(run, times[name]) / times[name])
    return {name: median(values) for name, values in found.items()}


def block(call: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call of a block that takes about `seconds`.

    The first call wakes threads and fills caches and is not counted, unless it fills the block alone.
    """
    first = _seconds(call)
    if first >= seconds:
        return [first]
    found: list[float] = []
    while not found or sum(found) < seconds:
        found.append(_seconds(call))
    return found


def calls_of(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of some calls."""
    return [_seconds(call) for _ in range(times)]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _enough(run: Repeat, wanted: float) -> int:
    """Repetitions that take about `wanted` seconds."""
    times = 1
    while (seconds := _timed(run, times)) < wanted / 4:
        times = max(2 * times, min(16 * times, int(times * wanted / 4 / max(seconds, 1e-7))))
    return max(1, int(times * wanted / seconds))


def _timed(run: Repeat, times: int) -> float:
    start = time.perf_counter()
    run(times)
    return time.perf_counter() - start
