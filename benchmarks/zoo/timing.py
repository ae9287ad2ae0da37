"""Engines that take turns in blocks of calls, with a pause in between: worker threads of each spin for a while after a
call and would take the others' cores.

Where other processes take much of the CPU meanwhile, all is measured again a little later, and the measurement that was
disturbed least counts, whatever it says.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tilewright.measure.system_load import SystemLoad
from tilewright.measure.timing import time_block

Arrays = Mapping[str, NDArray[np.generic]]
RunModel = Callable[[Arrays], Arrays]

BLOCKS = 4
BLOCK_SECONDS = 0.25
MAX_CALL_SECONDS = 4.0
PAUSE_SECONDS = 0.2

MAX_LOAD_OF_OTHERS = 0.1
"""Share of the CPU for other processes above which a measurement counts as disturbed."""

MAX_ATTEMPTS, RETRY_PAUSE_SECONDS = 4, 5.0
"""Attempts for a disturbed measurement, and the pause before each but the first."""


def time_in_turns(engines: Sequence[RunModel], feeds: Arrays) -> list[list[float]]:
    """Return all timed calls of each engine, measured in alternating blocks."""
    times: list[list[float]] = [[] for _ in engines]
    for engine in engines:
        engine(feeds)
        time.sleep(PAUSE_SECONDS)
    for _ in range(BLOCKS):
        for engine, seconds in zip(engines, times, strict=True):
            seconds += time_block(partial(engine, feeds), BLOCK_SECONDS)
            time.sleep(PAUSE_SECONDS)
        if max(seconds[0] for seconds in times) > MAX_CALL_SECONDS:
            break
    return times


def time_undisturbed(engines: Sequence[RunModel], feeds: Arrays) -> tuple[list[list[float]], float]:
    """Return all timed calls of each engine, and the share of the CPU that others took meanwhile: of the first
    measurement that they left alone, else of the one that they disturbed least."""
    tries: list[tuple[list[list[float]], float]] = []
    for k in range(MAX_ATTEMPTS):
        time.sleep(RETRY_PAUSE_SECONDS if k else 0.0)
        load = SystemLoad.now()
        tries.append((time_in_turns(engines, feeds), load.others_since()))
        if tries[-1][1] < MAX_LOAD_OF_OTHERS:
            break
    return min(tries, key=lambda x: x[1])
