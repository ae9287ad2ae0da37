"""Routines on the bits of elements."""

from tilewright.routine.intrinsics import copy_bits
from tilewright.routine.routine import Elements, routine


@routine()
def copy_elements(x: Elements, out: Elements, size: int) -> int:
    """The elements of x, with their bits, in a buffer of another type."""
    for k in range(size):
        copy_bits(x, k, out, k)
    return 0
