"""The garbage collector while a model is compiled: nothing that compilation makes in passing is in cycles that matter,
and each full collection walks over all expressions that are alive."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

GC_THRESHOLD = 200_000
"""New objects between two collections of the youngest ones."""


@contextmanager
def raised_gc_threshold() -> Generator[None]:
    """Collections come seldom inside; a program that has switched them off, or made them rarer still, keeps its
    setting."""
    first, *others = gc.get_threshold()
    if not gc.isenabled() or first == 0 or first >= GC_THRESHOLD:
        yield
        return
    gc.set_threshold(GC_THRESHOLD, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)
