"""Garbage-collection policy of compilations: a higher threshold.

The temporaries of a compilation hold few reference cycles, and every full collection traverses all live expressions.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager

GC_THRESHOLD = 200_000
"""Threshold of the youngest generation: allocations minus deallocations between two collections."""


@contextmanager
def raised_gc_threshold() -> Generator[None]:
    """Raises the threshold of the youngest generation; a disabled collector or a higher threshold stays."""
    first, *others = gc.get_threshold()
    if not gc.isenabled() or first == 0 or first >= GC_THRESHOLD:
        yield
        return
    gc.set_threshold(GC_THRESHOLD, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)
