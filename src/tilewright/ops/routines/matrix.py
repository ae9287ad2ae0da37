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
"""Columns that are eliminated before the rest of the matrix is updated, once for all of them."""


def eliminate_panel(work: Elements, out: Elements, batch: int, first: int, size: int) -> int:
    """Eliminates a panel's columns from their rows below, where it leaves the factors, with the largest pivot of each.

    Multiplies out[batch] by the pivots. Returns 0 where a column has none.
    """
    last = min(first + PANEL, size)
    for column in range(first, last):
        pivot = column
        largest = abs(work[column * size + column])
        for row in range(column + 1, size):
            value = abs(work[row * size + column])
            if value > largest:
                largest = value
                pivot = row
        if largest == 0:
            return 0
        if pivot != column:
            out[batch] = -out[batch]
            for k in range(first, size):
                value = work[pivot * size + k]
                work[pivot * size + k] = work[column * size + k]
                work[column * size + k] = value
        divisor = work[column * size + column]
        out[batch] = out[batch] * divisor
        for row in range(column + 1, size):
            work[row * size + column] = work[row * size + column] / divisor
        for k in range(column + 1, last):
            value = work[column * size + k]
            for row in range(column + 1, size):
                work[row * size + k] = work[row * size + k] - work[row * size + column] * value
    return 1


def update_behind_panel(work: Elements, rows: Elements, first: int, size: int) -> int:
    """Eliminates a panel's columns from the columns behind it; `rows` holds the panel's rows, apart from the others."""
    behind = first + PANEL
    for row in range(first + 1, behind):
        for column in range(first, row):
            factor = work[row * size + column]
            for k in range(behind, size):
                work[row * size + k] = work[row * size + k] - factor * work[column * size + k]
    for k in range(PANEL * size):
        rows[k] = work[first * size + k]
    for row in range(behind, size):
        a = work[row * size + first]
        b = work[row * size + first + 1]
        c = work[row * size + first + 2]
        d = work[row * size + first + 3]
        for k in range(behind, size):
            value = work[row * size + k] - a * rows[k] - b * rows[size + k]
            work[row * size + k] = value - c * rows[2 * size + k] - d * rows[3 * size + k]
    return 0


@routine()
def determinants(x: Elements, out: Elements, work: Elements, rows: Elements, batches: int, size: int) -> int:
    """The determinants of x[batches, size, size], by elimination with the largest pivot of each column.

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
                update_behind_panel(work, rows, first, size)
    return 0
