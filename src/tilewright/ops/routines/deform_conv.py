"""The routine of deformed convolutions: where their taps read, for all channels at once."""

from tilewright.routine.intrinsics import as_integer, element, floor
from tilewright.routine.routine import Elements, routine


@routine()
def corner_table(
    offset: Elements, mask: Elements, sizes: Elements, kernel: Elements, outputs: Elements, steps: Elements,
    places: Elements, weights: Elements, rows: int, rank: int, corners: int, has_mask: int,
) -> int:  # fmt: skip
    """The elements around each tap of each window, and their weights: those of linear interpolation, times the mask.

    Args:
        offset: [rows, rank, *outputs], what is added to the coordinates of taps.
        mask: [rows, *outputs], where the routine `has_mask`.
        sizes: of the picture.
        kernel: numbers of taps.
        outputs: numbers of windows.
        steps: strides, dilations and widths of the border before the picture, one after the other.
        places: [rows, corners, windows], positions in the picture; 0 for one outside of it.
        weights: as `places`; 0 outside of the picture.
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
    for row in range(rows):
        for y in range(windows):
            for corner in range(corners):
                place = 0
                is_inside = True
                weight = mask[row * windows + y] if has_mask != 0 else element(weights, 1)
                window = y
                tap = row % taps
                stride = 1
                # from the innermost dimension, whose bit of `corner` is the lowest
                for j in range(rank):
                    k = rank - 1 - j
                    start = window % outputs[k] * steps[k] + tap % kernel[k] * steps[rank + k] - steps[2 * rank + k]
                    window = window // outputs[k]
                    tap = tap // kernel[k]
                    at = offset[(row * rank + k) * windows + y] + element(offset, start)
                    low = as_integer(floor(at))
                    part = at - floor(at)
                    if (corner >> j) & 1 != 0:
                        low = low + 1
                        weight = weight * part
                    else:
                        weight = weight * (1 - part)
                    if not (at > -1 and at < sizes[k]) or low < 0 or low >= sizes[k]:
                        is_inside = False
                    else:
                        place = place + low * stride
                    stride = stride * sizes[k]
                target = (row * corners + corner) * windows + y
                places[target] = place if is_inside else 0
                weights[target] = weight if is_inside else 0
    return 0
