"""Cache line and buffer alignment that generated code assumes, shared by schedules, memory planner and runtime."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

CACHE_LINE_BYTES = 64
"""Bytes of a cache line on the supported targets: width of packed panels, distance of prefetches. The cost model uses
the line size of the machine description instead."""

BUFFER_ALIGNMENT = 64
"""Bytes: a cache line, and a vector register of 512 bits. Weights, outputs, slots of the workspace and stack buffers
start at multiples of it."""

GUARD_BYTES = 64
"""Mapped bytes behind weights and workspaces, as many as the widest vector register has: a masked load may reach over
the end of a buffer, which is slow where the next page is not present."""


def aligned_empty(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """An array of undefined content that starts at a multiple of `BUFFER_ALIGNMENT` and has `GUARD_BYTES` behind it,
    so that it can be a weight without a copy.

    Raises:
        MemoryError: there is not as much memory.
    """
    element = np.dtype(dtype)
    size = math.prod(shape) * element.itemsize
    memory = np.empty(size + BUFFER_ALIGNMENT + GUARD_BYTES, np.uint8)
    start = -memory.__array_interface__["data"][0] % BUFFER_ALIGNMENT
    return memory[start : start + size].view(element).reshape(tuple(shape))
