"""Routines that find elements: what is not zero, what a condition selects."""

from tilewright.ops.routines.coordinates import to_next_row
from tilewright.routine.routine import Elements, routine


@routine()
def count_nonzero(x: Elements, count: Elements) -> int:
    """The number of elements other than 0."""
    total = 0
    for i in range(len(x)):
        if x[i] != 0:
            total = total + 1
    count[0] = total
    return 0


@routine()
def nonzero_coordinates(x: Elements, dims: Elements, out: Elements, at: Elements, count: int) -> int:
    """The coordinates of the elements other than 0, as a column each: out[rank, count].

    `dims` are the sizes of x, `at` are the coordinates of the current element.
    """
    rank = len(dims)
    last = dims[rank - 1]
    for k in range(rank):
        at[k] = 0
    place = 0
    column = 0
    while place < len(x):
        for j in range(last):
            if x[place] != 0:
                for k in range(rank - 1):
                    out[k * count + column] = at[k]
                out[(rank - 1) * count + column] = j
                column = column + 1
            place = place + 1
        to_next_row(at, dims)
    return 0


@routine()
def count_selected(condition: Elements, count: Elements, size: int) -> int:
    """The number of true elements among the first `size`."""
    total = 0
    for i in range(min(len(condition), size)):
        if condition[i]:
            total = total + 1
    count[0] = total
    return 0


@routine()
def selected_positions(condition: Elements, positions: Elements, size: int, count: int) -> int:
    """The positions of the true elements among the first `size`."""
    place = 0
    for i in range(min(len(condition), size)):
        if condition[i] and place < count:
            positions[place] = i
            place = place + 1
    return 0
