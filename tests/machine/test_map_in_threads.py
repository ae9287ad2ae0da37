"""Maps over a few threads: order, errors, and as many threads as cores and the system's limits allow."""

import threading
from collections.abc import Callable

import pytest

from tilewright.machine import map_in_threads as module
from tilewright.machine.map_in_threads import MAX_COPYING_THREADS, map_in_threads
from tilewright.machine.thread_limits import ThreadLimit


def threads_used(items: int) -> int:
    """How many threads work on items that take a while each."""
    names: set[str] = set()

    def work(_: int) -> None:
        names.add(threading.current_thread().name)
        threading.Event().wait(0.02)

    map_in_threads(work, range(items))
    return len(names)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int | None], None]:
    def set_cores(count: int, allowed: int | None = None) -> None:
        limit = None if allowed is None else ThreadLimit(allowed, "a test")
        monkeypatch.setattr(module, "available_cores", lambda: count)
        monkeypatch.setattr(module, "thread_limit", lambda: limit)

    return set_cores


def test_results_keep_the_order_of_items(cores: Callable[[int, int | None], None]) -> None:
    for count in (1, 3):
        cores(count, None)
        assert map_in_threads(lambda x: x * x, range(20)) == [x * x for x in range(20)]
    assert map_in_threads(str, []) == []


def test_the_first_error_is_raised(cores: Callable[[int, int | None], None]) -> None:
    def fail(x: int) -> int:
        if x in (3, 5):
            raise ValueError(f"item {x}")
        return x

    for count in (1, 4):
        cores(count, None)
        with pytest.raises(ValueError, match="item 3"):
            map_in_threads(fail, range(8))


def test_threads_are_limited(cores: Callable[[int, int | None], None]) -> None:
    main = threading.current_thread().name
    cores(1, None)
    assert map_in_threads(lambda _: threading.current_thread().name, range(3)) == [main] * 3
    cores(8, 2)
    assert map_in_threads(lambda _: threading.current_thread().name, range(3)) == [main] * 3, "one beside the caller"
    cores(64, None)
    assert threads_used(64) == MAX_COPYING_THREADS
    cores(64, 4)
    assert threads_used(64) == 3, "the caller's is one of those allowed"
