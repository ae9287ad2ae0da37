"""Arrays that begin at a cache line, so that vector loads of measured kernels touch one line each."""

import numpy as np


def aligned_array(shape: tuple[int, ...]) -> np.ndarray:
    """A float32 array aligned to a cache line."""
    size = 4 * int(np.prod(shape))
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.float32).reshape(shape)
