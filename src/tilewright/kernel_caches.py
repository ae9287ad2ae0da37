"""Caches of what is derived from the expressions and loops of one kernel, which are emptied again and again.

Proofs, ranges and simplified indices are asked for many times while a kernel is scheduled, verified and emitted, and
hardly ever later. Kept, they are most of a compilation's memory. `forget_derived` also collects the cycles of LLVM
modules, which wait for a full collection otherwise, and returns freed memory to the system.
"""

import ctypes
import gc
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

_clear_functions: list[Callable[[], None]] = []

_OLDEST_GENERATION = 1
"""The oldest generation that is collected: what recent steps have left, not all that is alive."""

MAX_NEW_BLOCKS = 100_000
"""Blocks of Python's memory, of 90 bytes on average, that may be added before anything is forgotten between steps, so
that the steps of small kernels share what they derive."""

_blocks_before = sys.maxsize
"""Blocks when something was last forgotten."""


def kernel_cache(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator as `functools.lru_cache` of pure functions, whose results `forget_derived` drops.

    Args:
        maxsize: number of results that are kept at most.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        cached = lru_cache(maxsize=maxsize)(function)
        _clear_functions.append(cached.cache_clear)
        return cast(Callable[P, T], cached)

    return decorate


def forget_derived(max_new_blocks: int = MAX_NEW_BLOCKS) -> None:
    """Drops what was derived from kernels, where that is much; what is asked for again is derived anew, and the same.

    It is called between the steps that a kernel goes through, and between kernels.

    Args:
        max_new_blocks: blocks that may have been added since the last time; `MAX_NEW_BLOCKS`.
    """
    global _blocks_before
    _blocks_before = min(_blocks_before, sys.getallocatedblocks())
    if sys.getallocatedblocks() - _blocks_before < max_new_blocks:
        return
    for clear in _clear_functions:
        clear()
    if gc.isenabled():
        gc.collect(_OLDEST_GENERATION)
    _release_freed_memory()(0)
    _blocks_before = sys.getallocatedblocks()


@cache
def _release_freed_memory() -> Callable[[int], object]:
    """`malloc_trim` of glibc, which keeps what large arrays and LLVM have freed otherwise; nothing elsewhere."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return lambda _: None
