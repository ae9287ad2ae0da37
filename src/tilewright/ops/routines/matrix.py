"""Routines on square matrices."""

from tilewright.routine.routine import Elements, routine


@routine()
def invert_matrices(x: Elements, out: Elements, work: Elements, batches: int, size: int) -> int:
    """The inverses of x[batches, size, size], by Gauss-Jordan elimination with the largest pivot of each column.

    A singular matrix gives elements that are not finite. `work` holds one matrix.
    """
    for batch in range(batches):
        base = batch * size * size
        for k in range(size * size):
            work[k] = x[base + k]
            out[base + k] = 0
        for k in range(size):
            out[base + k * size + k] = 1
        for column in range(size):
            pivot = column
            for row in range(column + 1, size):
                if abs(work[row * size + column]) > abs(work[pivot * size + column]):
                    pivot = row
            for k in range(size):
                value = work[pivot * size + k]
                work[pivot * size + k] = work[column * size + k]
                work[column * size + k] = value
                value = out[base + pivot * size + k]
                out[base + pivot * size + k] = out[base + column * size + k]
                out[base + column * size + k] = value
            divisor = work[column * size + column]
            for k in range(size):
                work[column * size + k] = work[column * size + k] / divisor
                out[base + column * size + k] = out[base + column * size + k] / divisor
            for row in range(size):
                factor = work[row * size + column]
                if row != column and factor != 0:
                    for k in range(size):
                        work[row * size + k] = work[row * size + k] - factor * work[column * size + k]
                        out[base + row * size + k] = out[base + row * size + k] - factor * out[base + column * size + k]
    return 0


PANEL = 4
"""Rows that are eliminated before the rest of the matrix is updated, once for all of them.

It is repeated in `update_below_panel`, where the four rows are written out, and in `range(0, size, 4)` of
`determinants`: steps of ranges are literals.
"""


def eliminate_panel(work: Elements, out: Elements, batch: int, first: int, size: int) -> int:
    """Eliminates a panel's rows from the rows of the panel below, with the largest pivot of each row.

    Leaves the columns' factors in the rows, multiplies out[batch] by the pivots. Returns 0 where a row has none.
    """
    last = min(first + PANEL, size)
    for row in range(first, last):
        base = row * size
        pivot = row
        largest = abs(work[base + row])
        for k in range(row + 1, size):
            value = abs(work[base + k])
            if value > largest:
                largest = value
                pivot = k
        if largest == 0:
            return 0
        if pivot != row:
            out[batch] = -out[batch]
            for j in range(first, size):
                value = work[j * size + pivot]
                work[j * size + pivot] = work[j * size + row]
                work[j * size + row] = value
        divisor = work[base + row]
        out[batch] = out[batch] * divisor
        for k in range(row + 1, size):
            work[base + k] = work[base + k] / divisor
        for j in range(row + 1, last):
            factor = work[j * size + row]
            for k in range(row + 1, size):
                work[j * size + k] = work[j * size + k] - factor * work[base + k]
    return 1


def update_below_panel(work: Elements, rows: Elements, first: int, size: int) -> int:
    """Eliminates a panel's rows from the rows below it; `rows` holds the panel's rows, apart from the others."""
    for k in range(PANEL * size):
        rows[k] = work[first * size + k]
    second = first + 1
    third = first + 2
    fourth = first + 3
    for row in range(first + PANEL, size):
        base = row * size
        a = work[base + first]
        b = work[base + second] - a * rows[second]
        c = work[base + third] - a * rows[third] - b * rows[size + third]
        d = work[base + fourth] - a * rows[fourth] - b * rows[size + fourth] - c * rows[2 * size + fourth]
        for k in range(first + PANEL, size):
            value = work[base + k] - a * rows[k] - b * rows[size + k]
            work[base + k] = value - c * rows[2 * size + k] - d * rows[3 * size + k]
    return 0


@routine()
def determinants(x: Elements, out: Elements, work: Elements, rows: Elements, batches: int, size: int) -> int:
    """The determinants of x[batches, size, size], by elimination with the largest pivot of each row.

    `work` holds one matrix, `rows` a panel of its rows.
    """
    for batch in range(batches):
        for k in range(size * size):
            work[k] = x[batch * size * size + k]
        out[batch] = 1
        for first in range(0, size, 4):
            if eliminate_panel(work, out, batch, first, size) == 0:
                # 0, and NaN where an element of the matrix is not finite
                for k in range(size * size):
                    out[batch] = out[batch] * 0 + work[k] * 0
                break
            if first + PANEL < size:
                update_below_panel(work, rows, first, size)
    return 0
