"""Routines that put elements in order: the largest k, and sorting.

The order is total: NaN comes after all numbers where the order is ascending, equal elements in the order of their
positions.
"""

from typing import Any

from tilewright.routine.intrinsics import is_nan
from tilewright.routine.routine import Elements, routine


def precedes(a: Any, b: Any, descending: int) -> bool:
    """Whether one element comes before another one of a different value."""
    if descending != 0:
        return a > b or (is_nan(a) and not is_nan(b))
    return a < b or (is_nan(b) and not is_nan(a))


def comes_later(a: Any, i: int, b: Any, j: int, descending: int) -> bool:
    """Whether element a at position i comes after element b at position j."""
    if precedes(b, a, descending):
        return True
    return i > j and not precedes(a, b, descending)


def sift_down(values: Elements, positions: Elements, start: int, count: int, descending: int) -> int:
    """Moves the element at `start` of a heap of `count` elements down to its place; what comes last is on top."""
    parent = start
    value = values[start]
    position = positions[start]
    while 2 * parent + 1 < count:
        child = 2 * parent + 1
        if child + 1 < count and comes_later(
            values[child + 1], positions[child + 1], values[child], positions[child], descending
        ):
            child = child + 1
        if not comes_later(values[child], positions[child], value, position, descending):
            break
        values[parent] = values[child]
        positions[parent] = positions[child]
        parent = child
    values[parent] = value
    positions[parent] = position
    return 0


def next_candidate(x: Elements, i: int, size: int, start: int, stride: int, last: Any, descending: int) -> int:
    """The first position from i on whose element may come before `last`; `size` where there is none."""
    if descending != 0:
        while i < size and x[start + i * stride] <= last:
            i = i + 1
    else:
        while i < size and x[start + i * stride] >= last:
            i = i + 1
    return i


@routine()
def top_k_by_heap(
    x: Elements, values: Elements, indices: Elements, best: Elements, where: Elements,
    outer: int, size: int, inner: int, k: int, descending: int,
) -> int:  # fmt: skip
    """The first k elements of every row in order, with their positions: x[outer, size, inner] to [outer, k, inner].

    `best` and `where` are a heap of k elements, the last one on top, which is replaced by elements that come before it.
    """
    if k == 0:
        return 0
    for row in range(outer):
        for column in range(inner):
            start = row * size * inner + column
            for i in range(k):
                best[i] = x[start + i * inner]
                where[i] = i
            for i in range(k // 2 - 1, -1, -1):
                sift_down(best, where, i, k, descending)
            i = next_candidate(x, k, size, start, inner, best[0], descending)
            while i < size:
                if precedes(x[start + i * inner], best[0], descending):
                    best[0] = x[start + i * inner]
                    where[0] = i
                    sift_down(best, where, 0, k, descending)
                i = next_candidate(x, i + 1, size, start, inner, best[0], descending)
            target = row * k * inner + column
            for i in range(k - 1, -1, -1):
                values[target + i * inner] = best[0]
                indices[target + i * inner] = where[0]
                best[0] = best[i]
                where[0] = where[i]
                sift_down(best, where, 0, i, descending)
    return 0


def merge_runs(
    values: Elements, source: Elements, target: Elements, count: int, width: int, base: int, stride: int,
    descending: int,
) -> int:  # fmt: skip
    """Merges neighbouring sorted runs of `width` positions of `source` into runs of twice that in `target`."""
    start = 0
    while start < count:
        middle = min(start + width, count)
        stop = min(start + 2 * width, count)
        a = start
        b = middle
        for i in range(start, stop):
            takes_first = a < middle
            if takes_first and b < stop:
                takes_first = not precedes(
                    values[base + source[b] * stride], values[base + source[a] * stride], descending
                )
            if takes_first:
                target[i] = source[a]
                a = a + 1
            else:
                target[i] = source[b]
                b = b + 1
        start = stop
    return 0


def sort_positions(
    values: Elements, order: Elements, spare: Elements, count: int, base: int, stride: int, descending: int
) -> int:
    """The positions 0 to count - 1 in the order of the elements values[base + position * stride]: a stable merge sort.

    The first `count` elements of `order` are the result, those of `spare` are overwritten.
    """
    for i in range(count):
        order[i] = i
    width = 1
    while width < count:
        merge_runs(values, order, spare, count, width, base, stride, descending)
        width = 2 * width
        if width < count:
            merge_runs(values, spare, order, count, width, base, stride, descending)
            width = 2 * width
        else:
            for i in range(count):
                order[i] = spare[i]
    return 0


@routine()
def top_k_by_sorting(
    x: Elements, values: Elements, indices: Elements, order: Elements, spare: Elements,
    outer: int, size: int, inner: int, k: int, descending: int,
) -> int:  # fmt: skip
    """As `top_k_by_heap`, for k of about `size`: sorts the positions of a row."""
    for row in range(outer):
        for column in range(inner):
            start = row * size * inner + column
            sort_positions(x, order, spare, size, start, inner, descending)
            target = row * k * inner + column
            for i in range(k):
                values[target + i * inner] = x[start + order[i] * inner]
                indices[target + i * inner] = order[i]
    return 0


