"""Functions that routines may call, as Python runs them; code generation has its own form of each."""

import math
import os
from typing import Any

import numpy as np

from tilewright.routine.routine import Elements


def element(buffer: Elements, value: Any) -> Any:
    """A number in the element type of a buffer."""
    return np.asarray(value).astype(buffer.dtype)[()]


def is_nan(x: Any) -> bool:
    """Whether a number is NaN; integers are not."""
    return bool(x != x)


def sqrt(x: Any) -> Any:
    """The square root of a float, in its type."""
    return np.sqrt(x)


def floor(x: Any) -> Any:
    """A float rounded down, in its type."""
    return np.floor(x)


def as_integer(x: Any) -> int:
    """A float without its fraction as a 64-bit integer, saturated; 0 for NaN."""
    number = float(x)
    if math.isnan(number):
        return 0
    return 2**63 - 1 if number >= 2.0**63 else int(max(number, -(2.0**63)))


def copy_bits(source: Elements, i: int, target: Elements, j: int) -> int:
    """Stores the bits of element i of a buffer to element j of another, whose type is as wide; returns 0."""
    target[j : j + 1] = source[i : i + 1].view(target.dtype)
    return 0


def entropy() -> int:
    """A 64-bit integer that differs from call to call: native code mixes the clock with a count of calls."""
    return int.from_bytes(os.urandom(8), "little", signed=True)
