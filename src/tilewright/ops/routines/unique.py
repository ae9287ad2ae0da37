"""Routines that find equal slices of a tensor."""

from tilewright.ops.routines.order import precedes
from tilewright.routine.routine import Elements, routine


def compare(x: Elements, a: int, b: int, outer: int, size: int, inner: int) -> int:
    """-1, 0 or 1: how slices a and b of x[outer, size, inner] compare, element by element; NaN is the largest value."""
    for row in range(outer):
        for column in range(inner):
            u = x[(row * size + a) * inner + column]
            v = x[(row * size + b) * inner + column]
            if precedes(u, v, 0):
                return -1
            if precedes(v, u, 0):
                return 1
    return 0


def merge(x: Elements, source: Elements, target: Elements, width: int, outer: int, size: int, inner: int) -> int:
    """Merges neighbouring sorted runs of `width` slices."""
    start = 0
    while start < size:
        middle = min(start + width, size)
        stop = min(start + 2 * width, size)
        a = start
        b = middle
        for i in range(start, stop):
            takes_first = a < middle
            if takes_first and b < stop:
                takes_first = compare(x, source[a], source[b], outer, size, inner) <= 0
            if takes_first:
                target[i] = source[a]
                a = a + 1
            else:
                target[i] = source[b]
                b = b + 1
        start = stop
    return 0


def number_by_first_place(first: Elements, inverse: Elements, counts: Elements, order: Elements, groups: int) -> int:
    """Numbers groups in the order in which they occur first: `first`, `inverse` and `counts` get the new numbers."""
    size = len(inverse)
    number = 0
    for i in range(size):
        order[i] = -1
    for i in range(size):
        group = inverse[i]
        if order[group] < 0:
            order[group] = number
            first[number] = i
            number = number + 1
        inverse[i] = order[group]
    for i in range(groups):
        counts[i] = 0
    for i in range(size):
        counts[inverse[i]] += 1
    return 0


@routine()
def unique_slices(
    x: Elements, first: Elements, inverse: Elements, counts: Elements, number: Elements, order: Elements,
    spare: Elements, outer: int, size: int, inner: int, ascending: int,
) -> int:  # fmt: skip
    """The groups of equal slices of x[outer, size, inner], by a stable merge sort of their positions.

    Writes for each group the first of its positions and their number, for each slice its group, and the number of
    groups. Groups are in ascending order, or in that of their first positions.
    """
    for i in range(size):
        order[i] = i
        first[i] = 0
        counts[i] = 0
    width = 1
    while width < size:
        merge(x, order, spare, width, outer, size, inner)
        for i in range(size):
            order[i] = spare[i]
        width = 2 * width
    groups = 0
    for i in range(size):
        if i == 0 or compare(x, order[i - 1], order[i], outer, size, inner) != 0:
            first[groups] = order[i]
            groups = groups + 1
        inverse[order[i]] = groups - 1
        counts[groups - 1] += 1
    if ascending == 0:
        number_by_first_place(first, inverse, counts, order, groups)
    number[0] = groups
    return 0


@routine()
def first_elements(a: Elements, b: Elements, first_of_a: Elements, first_of_b: Elements, count: int) -> int:
    """The first `count` elements of two buffers."""
    for i in range(count):
        first_of_a[i] = a[i]
        first_of_b[i] = b[i]
    return 0
