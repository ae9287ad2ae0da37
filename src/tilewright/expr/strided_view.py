"""Loads whose indices are affine in the axes of their computation, as views of arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Load, Var

Array = np.ndarray[Any, Any]


def strided_view(load: Load, array: Array, axes: Sequence[Var], ranges: Sequence[tuple[int, int]]) -> Array | None:
    """What a load reads at all points of an iteration space, without a copy.

    Args:
        load: the load.
        array: the data of its buffer.
        axes: the variables.
        ranges: the half-open range of every variable.

    Returns:
        A read-only view with one dimension per variable; None where an index is not affine with literal coefficients,
        leaves its range, or where there is no point.
    """
    if not array.ndim or any(low >= high for low, high in ranges):
        return None
    position = {v: k for k, v in enumerate(axes)}
    strides, start = [0] * len(axes), list[int]()
    for index, size, stride in zip(load.indices, array.shape, array.strides, strict=True):
        if index.dtype != int64:
            return None
        first = lowest = highest = 0
        for monomial, factor in polynomial(index).items():
            axis = position.get(monomial[0]) if len(monomial) == 1 and isinstance(monomial[0], Var) else None
            if monomial and axis is None:
                return None
            low, last = (1, 1) if axis is None else (ranges[axis][0], ranges[axis][1] - 1)
            first += factor * low
            lowest += min(factor * low, factor * last)
            highest += max(factor * low, factor * last)
            if axis is not None:
                strides[axis] += factor * stride
        if lowest < 0 or highest >= size:
            return None
        start.append(first)
    shape = [high - low for low, high in ranges]
    # a slice, not an element, which would be a copy
    origin = array[tuple(slice(k, None) for k in start)]
    return np.lib.stride_tricks.as_strided(origin, shape, strides, writeable=False)
