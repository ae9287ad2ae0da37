"""Routines of running sums and products."""

from tilewright.routine.intrinsics import element
from tilewright.routine.routine import Elements, routine


def reduce_along(
    x: Elements, out: Elements, outer: int, size: int, inner: int, is_product: int, excludes: int, is_reverse: int
) -> int:
    """The sum or product of all elements up to each one of x[outer, size, inner] along the middle dimension.

    `excludes` the element itself; `is_reverse` from the end on.
    """
    for row in range(outer):
        base = row * size * inner
        if inner == 1:
            total = element(x, is_product)
            for i in range(size):
                at = base + (size - 1 - i if is_reverse != 0 else i)
                value = x[at]
                if excludes != 0:
                    out[at] = total
                total = total * value if is_product != 0 else total + value
                if excludes == 0:
                    out[at] = total
            continue
        # rows of `inner` numbers at a time
        for i in range(size):
            at = base + (size - 1 - i if is_reverse != 0 else i) * inner
            before = at + inner if is_reverse != 0 else at - inner
            source = before if excludes != 0 else at
            if i == 0 and excludes != 0:
                for j in range(inner):
                    out[at + j] = element(x, is_product)
            elif i == 0:
                for j in range(inner):
                    out[at + j] = x[at + j]
            elif is_product != 0:
                for j in range(inner):
                    out[at + j] = out[before + j] * x[source + j]
            else:
                for j in range(inner):
                    out[at + j] = out[before + j] + x[source + j]
    return 0


@routine()
def running_reduction(
    x: Elements, out: Elements, outer: int, size: int, inner: int, is_product: int, excludes: int, is_reverse: int
) -> int:
    """As `reduce_along`."""
    return reduce_along(x, out, outer, size, inner, is_product, excludes, is_reverse)


@routine("the axis is out of range")
def data_dependent_running_reduction(
    x: Elements, axis: Elements, dims: Elements, out: Elements, is_product: int, excludes: int, is_reverse: int
) -> int:
    """As `reduce_along`, along an axis that is data, of a tensor of the sizes `dims`."""
    at = int(axis[0])
    if at < 0:
        at = at + len(dims)
    if at < 0 or at >= len(dims):
        return 1
    outer = 1
    inner = 1
    for k in range(at):
        outer = outer * dims[k]
    for k in range(at + 1, len(dims)):
        inner = inner * dims[k]
    return reduce_along(x, out, outer, dims[at], inner, is_product, excludes, is_reverse)
