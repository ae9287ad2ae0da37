"""Routines of Resize: sizes and scales by data, and tables of the elements that each place of the result is made of."""

from tilewright.routine.intrinsics import as_integer, floor
from tilewright.routine.routine import Elements, routine

LARGEST = 2**31 - 1
"""The largest size, and the largest numerator and denominator of a scale."""

LARGEST_DENOMINATOR = 4096
"""Of a scale that counts as the simple fraction that it was rounded from."""


def set_ratio(ratios: Elements, axis: int, numerator: int, denominator: int) -> int:
    """Writes the scale of an axis."""
    ratios[2 * axis] = numerator
    ratios[2 * axis + 1] = denominator
    return 0


def approximate(value: float, rounded: Elements, ratios: Elements, axis: int) -> int:
    """Writes the simplest fraction that rounds to the only element of `rounded`, else the value itself, as a scale.

    The value is a positive float32; one is exact with 24 bits, and far too large or too small ones become the limits.
    """
    rest = value
    before = 0
    numerator = 1
    before_denominator = 1
    denominator = 0
    for _ in range(32):
        # convergents of the continued fraction
        whole = min(as_integer(floor(rest)), LARGEST)
        next_numerator = whole * numerator + before
        next_denominator = whole * denominator + before_denominator
        if next_denominator > LARGEST_DENOMINATOR or next_numerator > LARGEST:
            break
        before = numerator
        before_denominator = denominator
        numerator = next_numerator
        denominator = next_denominator
        rounded[1] = float(numerator) / float(denominator)
        if rounded[1] == rounded[0]:
            set_ratio(ratios, axis, numerator, denominator)
            return 0
        if rest - float(whole) <= 0:
            break
        rest = 1 / (rest - float(whole))
    scaled = value
    unit = 1
    while unit < 1073741824 and scaled < 1073741824 and scaled != floor(scaled):
        scaled = 2 * scaled
        unit = 2 * unit
    set_ratio(ratios, axis, max(min(as_integer(scaled), LARGEST), 1), unit)
    return 0


@routine("an axis is out of range", "expected a positive scale", "a size is out of range")
def sizes_by_scales(
    scales: Elements, axes: Elements, dims: Elements, regions: Elements, ratios: Elements, sizes: Elements,
    rounded: Elements, crops: int,
) -> int:  # fmt: skip
    """The scales, as numerators and denominators, and sizes of all dimensions, where scales of some are given.

    Args:
        scales: of `axes`.
        axes: from the front.
        dims: sizes of the operand.
        regions: start and end of the part of each dimension that the result covers where it `crops`.
        ratios: two numbers per dimension.
        sizes: of the result.
        rounded: space for two numbers, in the type of scales.
        crops: whether regions count.
    """
    for k in range(len(dims)):
        set_ratio(ratios, k, 1, 1)
        sizes[k] = dims[k]
    for j in range(len(axes)):
        axis = axes[j]
        if axis < 0 or axis >= len(dims):
            return 1
        value = float(scales[j])
        if not (value > 0 and value <= LARGEST):
            return 2
        rounded[0] = scales[j]
        approximate(value, rounded, ratios, axis)
        extent = float(dims[axis]) * float(ratios[2 * axis]) / float(ratios[2 * axis + 1])
        if crops != 0:
            extent = extent * (regions[2 * axis + 1] - regions[2 * axis])
        size = as_integer(floor(extent))
        if size < 0 or size > LARGEST:
            return 3
        sizes[axis] = size
    return 0


@routine("an axis is out of range", "a size is out of range", "an empty dimension cannot be enlarged")
def scales_by_sizes(
    given: Elements, axes: Elements, dims: Elements, ratios: Elements, sizes: Elements, policy: int
) -> int:
    """The scales, as numerators and denominators, and sizes of all dimensions, where sizes of some are given.

    `policy` is 0 where these are the sizes, 1 for the smallest common scale that they allow, 2 for the largest.
    """
    for k in range(len(dims)):
        set_ratio(ratios, k, 1, 1)
        sizes[k] = dims[k]
    numerator = 0
    denominator = 0
    for j in range(len(axes)):
        axis = axes[j]
        if axis < 0 or axis >= len(dims):
            return 1
        size = int(given[j])
        old = int(dims[axis])
        if size < 0 or size > LARGEST:
            return 2
        if old == 0 and size > 0:
            return 3
        sizes[axis] = size
        set_ratio(ratios, axis, max(size, 1), max(old, 1))
        difference = size * denominator - numerator * old
        if j == 0 or (policy == 1 and difference < 0) or (policy == 2 and difference > 0):
            numerator = size
            denominator = old
    if policy != 0:
        for j in range(len(axes)):
            axis = axes[j]
            if denominator > 0:
                sizes[axis] = min((2 * numerator * dims[axis] + denominator) // (2 * denominator), LARGEST)
            set_ratio(ratios, axis, max(numerator, 1), max(denominator, 1))
    return 0


@routine("the filter reaches too far")
def filter_lengths(ratios: Elements, lengths: Elements, radius: int) -> int:
    """The number of elements of an operand that each one of the result is made of, for each axis.

    `radius` is how far the filter reaches where nothing shrinks; it is stretched where something does.
    """
    for k in range(len(lengths)):
        numerator = ratios[2 * k]
        wide = radius * max(ratios[2 * k + 1], numerator)
        length = 2 * ((wide + numerator - 1) // numerator)
        if length > LARGEST:
            return 1
        lengths[k] = length
    return 0


def keys_filter(distance: float, a: float) -> float:
    """R. Keys, "Cubic convolution interpolation for digital image processing", 1981, eq. 4 for free parameter `a`."""
    x = abs(distance)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    if x < 2:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return 0 * x


def nearest_offset(part: float, rounding: int, shrinks: bool) -> int:
    """0 or 1: which neighbour of a coordinate with a fractional part counts, by the number of a rounding."""
    if rounding == 0:
        return 0
    if rounding == 1 or (rounding == 4 and shrinks):
        return int(part > 0)
    if rounding == 2:
        return int(part >= 0.5)
    return int(part > 0.5 and rounding == 3)


def set_coordinate(
    at: Elements, i: int, numerator: int, denominator: int, size: int, output: int, transformation: int
) -> int:
    """Writes the coordinate of place i along an axis as a quotient: two numbers, the second one positive.

    `transformation` is 0 for asymmetric, 1 for half pixels, 2 for PyTorch's, 3 for aligned corners by the length that
    the scale gives, 4 by that of the result, 5 for symmetric half pixels.
    """
    at[0] = 0
    at[1] = 1
    if transformation == 0:
        at[0] = i * denominator
        at[1] = numerator
    elif transformation == 1 or (transformation == 2 and output > 1):
        at[0] = (2 * i + 1) * denominator - numerator
        at[1] = 2 * numerator
    elif transformation == 3:
        at[0] = i * (size - 1) * denominator
        at[1] = max(size * numerator - denominator, 1)
    elif transformation == 4:
        at[0] = i * (size - 1)
        at[1] = max(output - 1, 1)
    elif transformation == 5:
        at[0] = (size - 1) * numerator + (2 * i + 1 - output) * denominator
        at[1] = 2 * numerator
    return 0


def place_in_region(start: float, end: float, i: int, size: int, output: int) -> float:
    """The coordinate of place i along an axis whose result covers a part of the operand."""
    if output > 1:
        return (start + float(i) * (end - start) / float(output - 1)) * float(size - 1)
    return (start + end) * float(size - 1) / 2


@routine("an empty dimension cannot be enlarged")
def filter_table(
    ratios: Elements, regions: Elements, cubic: Elements, positions: Elements, weights: Elements, outside: Elements,
    coordinate: Elements,
    axis: int, size: int, output: int, taps: int, transformation: int, kernel: int, excludes: int, normalizes: int,
) -> int:  # fmt: skip
    """For each place along an axis of the result, the elements of the operand that it is made of, and their weights.

    Args:
        ratios: numerator and denominator of the scale of each dimension.
        regions: start and end of the part of each dimension that is resized, for transformation 6.
        cubic: the free parameter of the cubic filter.
        positions: the first element; one that is in the operand where there is only one tap.
        weights: of `taps` elements from there on.
        outside: whether the place is outside of the operand.
        coordinate: space for two numbers.
        axis: the axis.
        size: of the operand.
        output: size of the result.
        taps: number of weights.
        transformation: that of `set_coordinate`, or 6.
        kernel: 10 for linear, 11 for cubic, else the number of a rounding.
        excludes: whether elements outside of the operand count nothing.
        normalizes: whether the weights of a place are made to add up to 1.
    """
    if output > 0 and size <= 0:
        return 1
    numerator = ratios[2 * axis]
    denominator = ratios[2 * axis + 1]
    shrinks = numerator < denominator
    factor = float(numerator) / float(denominator) if shrinks and normalizes != 0 else 1.0
    first = 1 - taps // 2
    for i in range(output):
        set_coordinate(coordinate, i, numerator, denominator, size, output, transformation)
        base = coordinate[0] // coordinate[1]
        part = float(coordinate[0] % coordinate[1]) / float(coordinate[1])
        outside[i] = False
        if transformation == 6:
            place = place_in_region(regions[2 * axis], regions[2 * axis + 1], i, size, output)
            base = as_integer(floor(place))
            part = place - floor(place)
            outside[i] = not (place >= 0 and place <= size - 1)
        positions[i] = base + first
        if kernel < 10:
            positions[i] = min(max(base + nearest_offset(part, kernel, shrinks), 0), size - 1)
            weights[i] = 1
        else:
            set_weights(weights, cubic, i * taps, base, part, factor, size, taps, kernel, excludes, normalizes)
    return 0


def set_weights(
    weights: Elements, cubic: Elements, start: int, base: int, part: float, factor: float, size: int, taps: int,
    kernel: int, excludes: int, normalizes: int,
) -> int:  # fmt: skip
    """Writes the weights of elements around `base`, from which a coordinate is `part` away."""
    total = 0.0
    for k in range(taps):
        offset = k + 1 - taps // 2
        distance = (float(offset) - part) * factor
        weight = max(1.0 - abs(distance), 0.0) if kernel == 10 else keys_filter(distance, cubic[0])
        if excludes != 0 and (base + offset < 0 or base + offset >= size):
            weight = 0.0
        weights[start + k] = weight
        total = total + weight
    if excludes != 0 or normalizes != 0:
        for k in range(taps):
            weights[start + k] = weights[start + k] / total
    return 0
