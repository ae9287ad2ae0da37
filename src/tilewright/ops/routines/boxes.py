"""Routines on boxes: non-maximum suppression and pooling of regions."""

from typing import Any

from tilewright.routine.intrinsics import as_integer, floor
from tilewright.routine.routine import Elements, routine


def write_corners(boxes: Elements, corners: Elements, start: int, size: int, centered: int) -> int:
    """Corners (y low, x low, y high, x high) and area of `size` boxes, which two opposite corners or center and extents
    describe."""
    for i in range(size):
        a = boxes[start + 4 * i]
        b = boxes[start + 4 * i + 1]
        c = boxes[start + 4 * i + 2]
        d = boxes[start + 4 * i + 3]
        if centered != 0:
            # x, y, width, height
            corners[5 * i] = b - d / 2
            corners[5 * i + 1] = a - c / 2
            corners[5 * i + 2] = b + d / 2
            corners[5 * i + 3] = a + c / 2
        else:
            corners[5 * i] = min(a, c)
            corners[5 * i + 1] = min(b, d)
            corners[5 * i + 2] = max(a, c)
            corners[5 * i + 3] = max(b, d)
        corners[5 * i + 4] = (corners[5 * i + 2] - corners[5 * i]) * (corners[5 * i + 3] - corners[5 * i + 1])
    return 0


def overlaps_kept(corners: Elements, i: int, kept: Elements, count: int, threshold: Elements) -> bool:
    """Whether the intersection of box i with a kept one is more than the threshold's part of their union."""
    low_y = corners[5 * i]
    low_x = corners[5 * i + 1]
    high_y = corners[5 * i + 2]
    high_x = corners[5 * i + 3]
    area = corners[5 * i + 4]
    for k in range(count):
        height = min(high_y, kept[5 * k + 2]) - max(low_y, kept[5 * k])
        width = min(high_x, kept[5 * k + 3]) - max(low_x, kept[5 * k + 1])
        if height > 0 and width > 0:
            common = height * width
            union = area + kept[5 * k + 4] - common
            if common > 0 and area > 0 and kept[5 * k + 4] > 0 and union > 0 and common / union > threshold[0]:
                return True
    return False


def is_worse(a: Any, i: int, b: Any, j: int) -> bool:
    """Whether score a of box i is below score b of box j; of equal scores the one of the later box is."""
    return a < b or (a == b and i > j)


def move_down(scores: Elements, numbers: Elements, start: int, count: int) -> int:
    """Moves the box at `start` of a heap of `count` boxes, the best one on top, down to its place.

    It takes the steps of C++'s `std::priority_queue` (down to a leaf, then up again), so that scores that are NaN, for
    which there is no order, come where ONNX Runtime has them.
    """
    score = scores[start]
    number = numbers[start]
    hole = start
    child = start
    while child < (count - 1) // 2:
        child = 2 * child + 2
        if is_worse(scores[child], numbers[child], scores[child - 1], numbers[child - 1]):
            child = child - 1
        scores[hole] = scores[child]
        numbers[hole] = numbers[child]
        hole = child
    if count % 2 == 0 and child == (count - 2) // 2:
        child = 2 * child + 1
        scores[hole] = scores[child]
        numbers[hole] = numbers[child]
        hole = child
    while hole > start and is_worse(scores[(hole - 1) // 2], numbers[(hole - 1) // 2], score, number):
        scores[hole] = scores[(hole - 1) // 2]
        numbers[hole] = numbers[(hole - 1) // 2]
        hole = (hole - 1) // 2
    scores[hole] = score
    numbers[hole] = number
    return 0


@routine()
def non_max_suppression(
    boxes: Elements, scores: Elements, most: Elements, overlap: Elements, least: Elements,
    selected: Elements, number: Elements,
    corners: Elements, kept: Elements, best: Elements, where: Elements,
    batches: int, classes: int, size: int, has_least: int, centered: int,
) -> int:  # fmt: skip
    """Selects boxes by descending score that do not overlap better ones of their class: rows (batch, class, box).

    At most most[0] boxes per class, with scores above least[0] where `has_least`; boxes of equal scores in their order.
    Scores that are NaN are above no limit. `best` and `where` are a heap with the best score on top.
    """
    total = 0
    for batch in range(batches):
        write_corners(boxes, corners, batch * size * 4, size, centered)
        for kind in range(classes):
            start = (batch * classes + kind) * size
            count = 0
            for i in range(size):
                score = scores[start + i]
                if has_least == 0 or score > least[0]:
                    best[count] = score
                    where[count] = i
                    count = count + 1
            for i in range(count // 2 - 1, -1, -1):
                move_down(best, where, i, count)
            chosen = 0
            while count > 0 and chosen < most[0]:
                i = int(where[0])
                count = count - 1
                best[0] = best[count]
                where[0] = where[count]
                if count > 0:
                    move_down(best, where, 0, count)
                if not overlaps_kept(corners, i, kept, chosen, overlap):
                    for k in range(5):
                        kept[5 * chosen + k] = corners[5 * i + k]
                    chosen = chosen + 1
                    selected[3 * total] = batch
                    selected[3 * total + 1] = kind
                    selected[3 * total + 2] = i
                    total = total + 1
    number[0] = total
    return 0


@routine()
def first_rows(rows: Elements, out: Elements, count: int) -> int:
    """The first elements of a buffer; `count` rows are as many as `out` holds."""
    for i in range(len(out)):
        out[i] = rows[i]
    return 0


@routine("a batch index is out of range")
def roi_align(
    x: Elements, rois: Elements, batch_of_roi: Elements, scale: Elements, out: Elements, weights: Elements,
    places: Elements,
    batches: int, channels: int, height: int, width: int, regions: int, out_height: int, out_width: int,
    ratio: int, is_shifted: int, is_max: int,
) -> int:  # fmt: skip
    """Regions of x[batches, channels, height, width] at fixed sizes: each element pools samples between elements.

    `scale` is that of coordinates in `rois`, half an element, and the least extent of a region; `weights` and `places`
    are of the four elements around a sample; `ratio` is samples per element and dimension, 0 for one per element of x.
    """
    for region in range(regions):
        batch = int(batch_of_roi[region])
        if batch < 0 or batch >= batches:
            return 1
        offset = scale[1] if is_shifted != 0 else scale[1] * 0
        left = rois[4 * region] * scale[0] - offset
        top = rois[4 * region + 1] * scale[0] - offset
        region_width = rois[4 * region + 2] * scale[0] - offset - left
        region_height = rois[4 * region + 3] * scale[0] - offset - top
        if is_shifted == 0:
            region_width = max(region_width, scale[2])
            region_height = max(region_height, scale[2])
        step_x = region_width / out_width
        step_y = region_height / out_height
        samples_x = ratio if ratio > 0 else as_integer(-floor(-step_x))
        samples_y = ratio if ratio > 0 else as_integer(-floor(-step_y))
        count = max(samples_x * samples_y, 1)
        for row in range(out_height):
            for column in range(out_width):
                target = (region * channels * out_height + row) * out_width + column
                for c in range(channels):
                    out[target + c * out_height * out_width] = 0
                for k in range(samples_y * samples_x):
                    y = top + row * step_y + (k // samples_x + scale[1]) * step_y / samples_y
                    place_x = left + column * step_x + (k % samples_x + scale[1]) * step_x / samples_x
                    sample_weights(y, place_x, weights, places, height, width)
                    for c in range(channels):
                        base = (batch * channels + c) * height * width
                        at = target + c * out_height * out_width
                        a = x[base + places[0]] * weights[0]
                        b = x[base + places[1]] * weights[1]
                        e = x[base + places[2]] * weights[2]
                        f = x[base + places[3]] * weights[3]
                        if is_max != 0:
                            value = max(max(a, b), max(e, f))
                            out[at] = value if k == 0 else max(out[at], value)
                        else:
                            out[at] = out[at] + (a + b + e + f)
                if is_max == 0:
                    for c in range(channels):
                        at = target + c * out_height * out_width
                        out[at] = out[at] / count
    return 0


def sample_weights(y: float, x: float, weights: Elements, places: Elements, height: int, width: int) -> int:
    """The elements around a sample and their weights for linear interpolation; zeros outside of the image."""
    for k in range(4):
        weights[k] = 0
        places[k] = 0
    if not (y >= -1 and y <= height and x >= -1 and x <= width) or height == 0 or width == 0:
        return 0
    y = max(y, 0)
    x = max(x, 0)
    low_y = as_integer(y)
    low_x = as_integer(x)
    high_y = low_y + 1
    high_x = low_x + 1
    part_y = y - low_y
    part_x = x - low_x
    if low_y >= height - 1:
        low_y = height - 1
        high_y = height - 1
        part_y = part_y * 0
    if low_x >= width - 1:
        low_x = width - 1
        high_x = width - 1
        part_x = part_x * 0
    weights[0] = (1 - part_y) * (1 - part_x)
    weights[1] = (1 - part_y) * part_x
    weights[2] = part_y * (1 - part_x)
    weights[3] = part_y * part_x
    places[0] = low_y * width + low_x
    places[1] = low_y * width + high_x
    places[2] = high_y * width + low_x
    places[3] = high_y * width + high_x
    return 0
