"""Routines that write elements at positions that are data."""

from typing import Any

from tilewright.ops.routines.coordinates import to_next_row
from tilewright.routine.intrinsics import is_nan
from tilewright.routine.routine import Elements, routine

REPLACE, ADD, MUL, MIN, MAX = range(5)
"""How an update is combined with the element in its place."""


def combined(old: Any, new: Any, reduction: int) -> Any:
    """An element after an update; NaN wins the comparisons."""
    if reduction == ADD:
        return old + new
    if reduction == MUL:
        return old * new
    if reduction == MIN and not (new < old or is_nan(new)):
        return old
    if reduction == MAX and not (new > old or is_nan(new)):
        return old
    return new


@routine("an index is out of range")
def scatter_elements(
    x: Elements, indices: Elements, updates: Elements, dims: Elements, strides: Elements, out: Elements, at: Elements,
    axis: int, size: int, reduction: int,
) -> int:  # fmt: skip
    """A copy of x with updates at the positions of the updates, of which an index replaces that along `axis`.

    `dims` are the sizes of the indices, `strides` are those of x, `size` is that of x along the axis, `at` are the
    coordinates of the current index.
    """
    for i in range(len(x)):
        out[i] = x[i]
    rank = len(dims)
    last = dims[rank - 1]
    for k in range(rank):
        at[k] = 0
    place = 0
    while place < len(indices):
        base = 0
        for k in range(rank - 1):
            if k != axis:
                base = base + at[k] * strides[k]
        for j in range(last):
            index = int(indices[place])
            if index < 0:
                index = index + size
            if index < 0 or index >= size:
                return 1
            target = base + index * strides[axis]
            if axis != rank - 1:
                target = target + j
            out[target] = combined(out[target], updates[place], reduction)
            place = place + 1
        to_next_row(at, dims)
    return 0


@routine("an index is out of range")
def scatter_slices(
    x: Elements, indices: Elements, updates: Elements, dims: Elements, strides: Elements, out: Elements,
    tuples: int, depth: int, inner: int, reduction: int,
) -> int:  # fmt: skip
    """A copy of x with slices of `inner` elements at index tuples: indices[tuples, depth], updates[tuples, inner].

    `dims` and `strides` are those of x, of which the first `depth` are used.
    """
    for i in range(len(x)):
        out[i] = x[i]
    for row in range(tuples):
        base = 0
        for k in range(depth):
            index = int(indices[row * depth + k])
            if index < 0:
                index = index + dims[k]
            if index < 0 or index >= dims[k]:
                return 1
            base = base + index * strides[k]
        for j in range(inner):
            out[base + j] = combined(out[base + j], updates[row * inner + j], reduction)
    return 0


@routine("an index is out of range")
def scatter_flat(x: Elements, indices: Elements, out: Elements) -> int:
    """Zeros, with elements of x at flat positions."""
    for i in range(len(out)):
        out[i] = 0
    for i in range(len(x)):
        index = int(indices[i])
        if index < 0 or index >= len(out):
            return 1
        out[index] = x[i]
    return 0


@routine("a length is out of range")
def checked_range(values: Elements, out: Elements, low: int, high: int) -> int:
    """Integers as int64, all of which must be `low` to `high`."""
    for i in range(len(values)):
        value = int(values[i])
        if value < low or value > high:
            return 1
        out[i] = value
    return 0
