"""A map over array work on a few threads: NumPy and the system copy without the interpreter's lock."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tilewright.machine.thread_limits import thread_limit
from tilewright.machine.threads import available_cores

T = TypeVar("T")
R = TypeVar("R")

MAX_COPYING_THREADS = 4
"""Each thread needs memory for its own part of the work, and together they soon have all of its bandwidth."""


def map_in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What a function makes of every item, in their order.

    Args:
        function: of one item; an error that it raises is that of the first item with one.
        items: for at most as many threads as there are cores, and as the system allows this process.
    """
    limit = thread_limit()
    allowed = MAX_COPYING_THREADS if limit is None else limit.threads - 1
    count = min(available_cores(), MAX_COPYING_THREADS, len(items), allowed)
    if count < 2:
        return [function(x) for x in items]
    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(function, items))
