"""Routines that compute shapes and positions from shapes, axes, ranges and borders that are data."""

from tilewright.routine.intrinsics import as_integer, floor
from tilewright.routine.routine import Elements, routine

FAR = 2**61
"""A number beyond all sizes, of which sums do not overflow."""


@routine("the shape does not fit the number of elements", "a size is copied from a dimension that there is not")
def resolve_reshape(shape: Elements, dims: Elements, sizes: Elements, allows_zero: int) -> int:
    """The sizes of a Reshape: 0 copies a size unless `allows_zero`, one -1 is inferred."""
    total = 1
    for k in range(len(dims)):
        total = total * dims[k]
    fixed = 1
    inferred = -1
    for k in range(len(shape)):
        size = int(shape[k])
        if size == 0 and allows_zero == 0:
            if k >= len(dims):
                return 2
            size = dims[k]
        if size == -1 and inferred < 0:
            inferred = k
            size = 1
        if size < 0:
            return 1
        sizes[k] = size
        fixed = fixed * size
    if inferred >= 0:
        if fixed == 0 or total % fixed != 0:
            return 1
        sizes[inferred] = total // fixed
    elif fixed != total:
        return 1
    return 0


@routine("the shapes cannot be broadcast")
def resolve_expand(shape: Elements, dims: Elements, sizes: Elements) -> int:
    """The sizes of the dimensions `dims` broadcast with those of `shape`; the longer one has as many as `sizes`."""
    rank = len(sizes)
    for k in range(rank):
        a = k - (rank - len(shape))
        b = k - (rank - len(dims))
        size = int(shape[a]) if a >= 0 else 1
        old = dims[b] if b >= 0 else 1
        if size < 0 or (size != old and size != 1 and old != 1):
            return 1
        sizes[k] = old if size == 1 else size
    return 0


@routine("expected a size of at least 0")
def checked_sizes(values: Elements, sizes: Elements) -> int:
    """Integers of any type as sizes."""
    for k in range(len(values)):
        size = int(values[k])
        if size < 0:
            return 1
        sizes[k] = size
    return 0


@routine("an axis is out of range, or given twice", "a dimension to remove has another size than 1")
def resolve_squeeze(axes: Elements, dims: Elements, sizes: Elements, marks: Elements) -> int:
    """The sizes without those of the given axes, which are 1."""
    status = mark_axes(axes, marks)
    if status != 0:
        return status
    place = 0
    for k in range(len(dims)):
        if marks[k] != 0:
            if dims[k] != 1:
                return 2
        else:
            sizes[place] = dims[k]
            place = place + 1
    return 0


@routine("an axis is out of range, or given twice")
def resolve_unsqueeze(axes: Elements, dims: Elements, sizes: Elements, marks: Elements) -> int:
    """The sizes with 1 inserted at the given axes of the result."""
    status = mark_axes(axes, marks)
    if status != 0:
        return status
    place = 0
    for k in range(len(sizes)):
        if marks[k] != 0:
            sizes[k] = 1
        else:
            sizes[k] = dims[place]
            place = place + 1
    return 0


def mark_axes(axes: Elements, marks: Elements) -> int:
    """Marks the given axes among all; 1 where one is out of range or given twice, else 0."""
    rank = len(marks)
    for k in range(rank):
        marks[k] = 0
    for j in range(len(axes)):
        axis = int(axes[j])
        if axis < 0:
            axis = axis + rank
        if axis < 0 or axis >= rank:
            return 1
        if marks[axis] != 0:
            return 1
        marks[axis] = 1
    return 0


@routine("an axis is out of range, or given twice")
def separate_reduced(
    x: Elements, axes: Elements, dims: Elements, moved: Elements, sizes: Elements, marks: Elements, at: Elements,
    strides: Elements, keeps: int, is_noop: int,
) -> int:  # fmt: skip
    """A copy of x with the dimensions `axes` behind the others; without axes with all of them unless `is_noop`.

    `sizes` are the number of elements of the other dimensions, that of the given ones, and the sizes of the reduced
    tensor, with 1 for each reduced dimension where it `keeps` them.
    """
    rank = len(dims)
    status = mark_axes(axes, marks)
    if status != 0:
        return status
    outer = 1
    inner = 1
    for k in range(rank):
        if len(axes) == 0 and is_noop == 0:
            marks[k] = 1
        if marks[k] != 0:
            inner = inner * dims[k]
        else:
            outer = outer * dims[k]
    sizes[0] = outer
    sizes[1] = inner
    place = 2
    for k in range(rank):
        if marks[k] == 0 or keeps != 0:
            sizes[place] = 1 if marks[k] != 0 else dims[k]
            place = place + 1
    outer_stride = inner
    inner_stride = 1
    for k in range(rank - 1, -1, -1):
        at[k] = 0
        if marks[k] != 0:
            strides[k] = inner_stride
            inner_stride = inner_stride * dims[k]
        else:
            strides[k] = outer_stride
            outer_stride = outer_stride * dims[k]
    target = 0
    for i in range(len(x)):
        moved[target] = x[i]
        k = rank - 1
        while k >= 0:
            at[k] = at[k] + 1
            target = target + strides[k]
            if at[k] < dims[k]:
                break
            target = target - dims[k] * strides[k]
            at[k] = 0
            k = k - 1
    return 0


@routine("an axis is out of range, or given twice", "a step is 0")
def resolve_slice(
    starts: Elements, ends: Elements, axes: Elements, steps: Elements, dims: Elements, ranges: Elements,
    sizes: Elements, marks: Elements,
) -> int:  # fmt: skip
    """First position and step (`ranges`, two per dimension) and size of each dimension of a Slice."""
    rank = len(dims)
    if mark_axes(axes, marks) != 0:
        return 1
    for k in range(rank):
        ranges[2 * k] = 0
        ranges[2 * k + 1] = 1
        sizes[k] = dims[k]
    for j in range(len(axes)):
        axis = int(axes[j])
        if axis < 0:
            axis = axis + rank
        size = dims[axis]
        step = int(steps[j])
        start = int(starts[j])
        end = int(ends[j])
        if step == 0:
            return 2
        if start < 0:
            start = start + size
        if end < 0:
            end = end + size
        if step > 0:
            start = min(max(start, 0), size)
            end = min(max(end, 0), size)
            count = (end - start - 1) // step + 1 if end > start else 0
        else:
            start = min(max(start, 0), size - 1)
            end = min(max(end, -1), size - 1)
            # not 1 - step, which overflows
            count = (start - end - 1) // -max(step, -9223372036854775807) + 1 if start > end else 0
        ranges[2 * axis] = start
        ranges[2 * axis + 1] = step
        sizes[axis] = max(count, 0) if size > 0 else 0
    return 0


@routine()
def range_positions(ranges: Elements, sizes: Elements, positions: Elements) -> int:
    """The positions that ranges select, dimension after dimension."""
    place = 0
    for k in range(len(sizes)):
        for i in range(sizes[k]):
            positions[place] = ranges[2 * k] + i * ranges[2 * k + 1]
            place = place + 1
    return 0


@routine("an axis is out of range, or given twice", "the borders remove more elements than there are",
         "a border is wider than what it repeats")  # fmt: skip
def resolve_pad(
    pads: Elements, axes: Elements, dims: Elements, borders: Elements, sizes: Elements, marks: Elements, mode: int
) -> int:
    """Widths before and after (`borders`, two per dimension) and size of each dimension of a Pad.

    `mode` is 0 for constant, 1 for edge, 2 for reflected and 3 for wrapped borders.
    """
    rank = len(dims)
    if mark_axes(axes, marks) != 0:
        return 1
    for k in range(rank):
        borders[2 * k] = 0
        borders[2 * k + 1] = 0
        sizes[k] = dims[k]
    count = len(axes)
    for j in range(count):
        axis = int(axes[j])
        if axis < 0:
            axis = axis + rank
        before = min(max(int(pads[j]), -FAR), FAR)
        after = min(max(int(pads[count + j]), -FAR), FAR)
        size = dims[axis]
        borders[2 * axis] = before
        borders[2 * axis + 1] = after
        sizes[axis] = size + before + after
        if sizes[axis] < 0:
            return 2
        if mode == 2 and max(before, after) >= max(size, 1):
            return 3
        if mode != 0 and max(before, after) > 0 and size + min(before, 0) + min(after, 0) <= 0:
            return 3
    return 0


@routine()
def pad_positions(borders: Elements, dims: Elements, sizes: Elements, positions: Elements, mode: int) -> int:
    """The positions that the elements of a padded tensor are taken from, dimension after dimension; -1 for the fill."""
    place = 0
    for k in range(len(dims)):
        before = borders[2 * k]
        size = dims[k]
        first = max(-before, 0)
        kept = size - first + min(borders[2 * k + 1], 0)
        for i in range(sizes[k]):
            at = i - before
            if at < 0 or at >= size:
                if mode == 0:
                    at = -1
                elif mode == 1:
                    at = min(max(at, 0), size - 1)
                elif mode == 2:
                    at = -at if at < 0 else 2 * (size - 1) - at
            if mode == 3 and kept > 0:
                at = first + (at - first) % kept
            positions[place] = at
            place = place + 1
    return 0


@routine("the step is 0")
def range_length(start: Elements, limit: Elements, delta: Elements, count: Elements) -> int:
    """The number of elements of start, start + delta, ... below the limit."""
    if delta[0] == 0:
        return 1
    steps = (float(limit[0]) - float(start[0])) / float(delta[0])
    count[0] = max(as_integer(-floor(-steps)), 0)
    return 0


@routine("the step is 0")
def integer_range_length(start: Elements, limit: Elements, delta: Elements, count: Elements) -> int:
    """As `range_length`, of integers; about the number where it is beyond all sizes."""
    step = int(delta[0])
    if step == 0:
        return 1
    first = int(start[0])
    last = int(limit[0])
    steps = (float(last) - float(first)) / float(step)
    if abs(steps) > FAR:
        count[0] = max(as_integer(steps), 0)
        return 0
    # not by the distance, which may overflow
    is_part_left = abs(last % step) > abs(first % step)
    count[0] = max(last // step - first // step + int(is_part_left), 0)
    return 0


@routine("the axis is out of range, or the last one")
def split_at_axis(axis: Elements, dims: Elements, sizes: Elements, length: int, inverse: int, onesided: int) -> int:
    """The number of elements before an axis, along it and behind it, without the last dimension, and a DFT's sizes.

    `length` is that of the transform, or -1; `sizes` ends with those of the result but for its last dimension.
    """
    rank = len(dims) - 1
    place = int(axis[0])
    if place < 0:
        place = place + len(dims)
    if place < 0 or place >= rank:
        return 1
    sizes[0] = 1
    sizes[1] = dims[place]
    sizes[2] = 1
    for k in range(rank):
        if k < place:
            sizes[0] = sizes[0] * dims[k]
        if k > place:
            sizes[2] = sizes[2] * dims[k]
        sizes[3 + k] = dims[k]
    size = length
    if length < 0:
        size = 2 * (dims[place] - 1) if inverse != 0 and onesided != 0 else dims[place]
    sizes[3 + place] = max(size // 2 + 1 if onesided != 0 and inverse == 0 else size, 0)
    return 0
