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


@routine()
def determinants(x: Elements, out: Elements, work: Elements, batches: int, size: int) -> int:
    """The determinants of x[batches, size, size], by elimination with the largest pivot of each column.

    `work` holds one matrix.
    """
    for batch in range(batches):
        for k in range(size * size):
            work[k] = x[batch * size * size + k]
        out[batch] = 1
        for column in range(size):
            pivot = column
            for row in range(column + 1, size):
                if abs(work[row * size + column]) > abs(work[pivot * size + column]):
                    pivot = row
            if work[pivot * size + column] == 0:
                # 0, and NaN where an element of the matrix is not finite
                for k in range(size * size):
                    out[batch] = out[batch] * 0 + work[k] * 0
                break
            if pivot != column:
                out[batch] = -out[batch]
                for k in range(column, size):
                    value = work[pivot * size + k]
                    work[pivot * size + k] = work[column * size + k]
                    work[column * size + k] = value
            out[batch] = out[batch] * work[column * size + column]
            for row in range(column + 1, size):
                factor = work[row * size + column] / work[column * size + column]
                for k in range(column, size):
                    work[row * size + k] = work[row * size + k] - factor * work[column * size + k]
    return 0
