"""The routine of deformed convolutions: where their taps read, for all channels at once."""

from tilewright.routine.intrinsics import as_integer, element, floor
from tilewright.routine.routine import Elements, routine


@routine()
def corner_table(
    offset: Elements, mask: Elements, sizes: Elements, kernel: Elements, outputs: Elements, steps: Elements,
    places: Elements, weights: Elements, origins: Elements, lows: Elements, factors: Elements, rows: int, rank: int,
    corners: int, has_mask: int,
) -> int:  # fmt: skip
    """The elements around each tap of each window, and their weights: those of linear interpolation, times the mask.

    Args:
        offset: [rows, rank, *outputs], what is added to the coordinates of taps.
        mask: [rows, *outputs], where the routine `has_mask`.
        sizes: of the picture.
        kernel: numbers of taps.
        outputs: numbers of windows.
        steps: strides, dilations and widths of the border before the picture, one after the other.
        places: [rows, corners, windows], positions in the picture; any one for an element outside of it.
        weights: as `places`; 0 outside of the picture.
        origins: space for a number per dimension and window.
        lows: space for a number per window.
        factors: space for two numbers per window.
        rows: taps of all batches and groups of offsets.
        rank: number of dimensions.
        corners: 2 to the power of `rank`.
        has_mask: whether the mask counts.
    """
    windows = 1
    taps = 1
    for k in range(rank):
        windows = windows * outputs[k]
        taps = taps * kernel[k]
    set_origins(origins, outputs, steps, windows, rank)
    for row in range(rows):
        first = row * corners * windows
        for at in range(first, first + corners * windows):
            places[at] = 0
            weights[at] = element(weights, 1)
        tap = row % taps
        stride = 1
        # from the innermost dimension, whose bit of `corner` is the lowest
        for j in range(rank):
            k = rank - 1 - j
            shift = tap % kernel[k] * steps[rank + k]
            tap = tap // kernel[k]
            given = (row * rank + k) * windows
            interpolate(offset, origins, lows, factors, given, k * windows, windows, shift, int(sizes[k]))
            for corner in range(corners):
                bit = (corner >> j) & 1
                base = first + corner * windows
                last = sizes[k] - 1
                for y in range(windows):
                    weights[base + y] = weights[base + y] * factors[bit * windows + y]
                    places[base + y] = places[base + y] + min(max(lows[y] + bit, 0), last) * stride
            stride = stride * sizes[k]
        if has_mask != 0:
            for corner in range(corners):
                base = first + corner * windows
                for y in range(windows):
                    weight = weights[base + y]
                    factor = mask[row * windows + y]
                    weights[base + y] = weight * (factor if weight != 0 else 0)
    return 0


def set_origins(origins: Elements, outputs: Elements, steps: Elements, windows: int, rank: int) -> int:
    """Where the first tap of each window is, without its offset."""
    behind = 1
    for j in range(rank):
        k = rank - 1 - j
        for y in range(windows):
            origins[k * windows + y] = y // behind % outputs[k] * steps[k] - steps[2 * rank + k]
        behind = behind * outputs[k]
    return 0


def interpolate(
    offset: Elements, origins: Elements, lows: Elements, factors: Elements, given: int, origin: int, windows: int,
    shift: int, size: int,
) -> int:  # fmt: skip
    """The lower one of two neighbours along a dimension, and the factors of both: 0 for one outside of the picture.

    `given` and `origin` are where the dimension begins in `offset` and `origins`.
    """
    for y in range(windows):
        at = offset[given + y] + element(offset, origins[origin + y] + shift)
        low = as_integer(floor(at))
        part = at - floor(at)
        lows[y] = low
        factors[y] = 1 - part if at >= 0 and at < size else element(factors, 0)
        factors[windows + y] = part if at > -1 and low < size - 1 else element(factors, 0)
    return 0
