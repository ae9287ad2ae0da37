"""Median times of calls that take turns, so that changes of clock and load affect all of them."""

import time
from collections.abc import Callable, Mapping

import numpy as np

from tilewright.measure.timing import time_calls


def time_medians(
    calls: Mapping[str, Callable[[], object]], seconds: float, turn: int = 1, least: int = 3
) -> dict[str, float]:
    """Median seconds of each call, by its name.

    Args:
        calls: what is timed.
        seconds: time after which no other round of turns begins.
        turn: calls of each in a turn.
        least: calls of each, whatever time they take.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < least:
        for name, call in calls.items():
            times[name] += time_calls(call, turn)
    return {name: float(np.median(values)) for name, values in times.items()}
