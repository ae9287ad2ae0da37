"""Coordinates of elements, which routines count through in row-major order."""

from tilewright.routine.routine import Elements


def to_next_row(at: Elements, dims: Elements) -> int:
    """Moves the coordinates `at` from a row, which lies along the last of `dims`, to the next one."""
    k = len(dims) - 2
    while k >= 0:
        at[k] = at[k] + 1
        if at[k] < dims[k]:
            break
        at[k] = 0
        k = k - 1
    return 0
