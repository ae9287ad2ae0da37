"""GC threshold during a compilation, and its restoration afterwards."""

import gc
from collections.abc import Iterator

import pytest

from tilewright.gc_policy import GC_THRESHOLD, raised_gc_threshold


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    enabled, threshold = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


def test_threshold_is_restored() -> None:
    gc.set_threshold(700, 10, 5)
    with raised_gc_threshold():
        assert gc.get_threshold() == (GC_THRESHOLD, 10, 5)
        with raised_gc_threshold():
            assert gc.get_threshold() == (GC_THRESHOLD, 10, 5)
        assert gc.get_threshold() == (GC_THRESHOLD, 10, 5)
    assert gc.get_threshold() == (700, 10, 5)


def test_threshold_is_restored_after_an_error() -> None:
    gc.set_threshold(700, 10, 5)
    with pytest.raises(ValueError, match="broken"), raised_gc_threshold():
        raise ValueError("broken")
    assert gc.get_threshold() == (700, 10, 5)


@pytest.mark.parametrize("first", [0, 10 * GC_THRESHOLD])
def test_disabled_or_higher_thresholds_stay(first: int) -> None:
    gc.set_threshold(first, 10, 5)
    with raised_gc_threshold():
        assert gc.get_threshold() == (first, 10, 5)


def test_disabled_collector_stays_disabled() -> None:
    gc.disable()
    threshold = gc.get_threshold()
    with raised_gc_threshold():
        assert not gc.isenabled()
        assert gc.get_threshold() == threshold
    assert not gc.isenabled()
