"""Operators on boxes of detectors: NonMaxSuppression and RoiAlign."""

from tilewright.errors import ShapeError
from tilewright.expr.dtype import float32, int64
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import minimum, select
from tilewright.ops.cast import convert
from tilewright.ops.checks import expect_dtype, expect_one_element, expect_rank, expect_shape, expect_size
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine, data_sizes, float_tensor, upper_bound
from tilewright.ops.routines.boxes import first_rows, non_max_suppression, roi_align
from tilewright.routine.stages import DataSize


@operator("NonMaxSuppression")
def non_max_suppression_(d: Definition) -> OpValue:
    """Rows (batch, class, box) of the boxes that overlap no better one of their class by more than a threshold.

    Raises:
        ShapeError: boxes and scores do not fit.
    """
    boxes, scores = d.input(0), d.input(1)
    expect_rank(d, boxes, 3, "boxes")
    expect_rank(d, scores, 3, "scores")
    expect_dtype(d, boxes, float32, "boxes")
    expect_dtype(d, scores, float32, "scores")
    expect_size(d, boxes.shape[2], const(4), "numbers of a box")
    batches = expect_size(d, scores.shape[0], boxes.shape[0], "batch of scores")
    size = expect_size(d, scores.shape[2], boxes.shape[1], "boxes of scores")
    classes = scores.shape[1]
    zero = const(0.0, float32)
    most, overlap, least = _scalar(d, 2, const(0)), _scalar(d, 3, zero), _scalar(d, 4, zero)
    per_class = size
    if most.known_elements is not None:
        limit = most.known_elements[0]
        per_class = select(limit < 0, const(0), minimum(limit, size))
    capacity = batches * classes * per_class
    numbers = ((size * 5, float32), (size * 5, float32), (size, float32), (size, int64))
    selected, number = call_routine(
        d, non_max_suppression, [boxes, scores, most, overlap, least], [((capacity, 3), int64), ((1,), int64)],
        [batches, classes, size, int(d.optional(4) is not None), d.attr_int("center_point_box", 0)], numbers,
    )  # fmt: skip
    ((symbol, count),) = data_sizes(d, number, [DataSize(0, upper_bound(batches, classes, size))])
    (rows,) = call_routine(d, first_rows, [selected], [((count, 3), int64)], [symbol])
    return rows


def _scalar(d: Definition, position: int, default: Expr) -> OpValue:
    """An optional operand of one element."""
    x = d.optional(position)
    if x is None:
        return d.compute((1,), lambda *_: default)
    expect_one_element(d, x, f"input {position}")
    return x


@operator("RoiAlign")
def roi_align_(d: Definition) -> OpValue:
    """Regions of an image at a fixed size: an element is the mean or the largest of samples between those of the image.

    Raises:
        ShapeError: operands do not fit, or an attribute is out of range.
    """
    x, rois, indices = d.input(0), d.input(1), d.input(2)
    expect_rank(d, x, 4, "X")
    expect_rank(d, rois, 2, "rois")
    expect_size(d, rois.shape[1], const(4), "numbers of a region")
    expect_shape(d, indices, (rois.shape[0],), "batch_indices")
    mode, default = d.attr_str("mode", "avg"), "half_pixel" if d.opset >= 16 else "output_half_pixel"
    transformation = d.attr_str("coordinate_transformation_mode", default)
    if mode not in ("avg", "max") or transformation not in ("half_pixel", "output_half_pixel"):
        raise ShapeError(f"unknown mode {mode} or {transformation}", where=f"node {d.label}")
    height, width = d.attr_int("output_height", 1), d.attr_int("output_width", 1)
    ratio = d.attr_int("sampling_ratio", 0)
    if height < 1 or width < 1 or ratio < 0:
        what = f"expected positive sizes and a sampling ratio of at least 0, got {height}, {width} and {ratio}"
        raise ShapeError(what, where=f"node {d.label}")
    wide = accumulator_dtype(x.dtype)
    scale = float_tensor(d, (d.attr_float("spatial_scale", 1.0), 0.5, 1.0), wide)
    operands = [convert(d, x, wide), convert(d, rois, wide), indices, scale]
    shape = (rois.shape[0], x.shape[1], height, width)
    sizes = (*x.shape, rois.shape[0], height, width, ratio, int(transformation == "half_pixel"), int(mode == "max"))
    (pooled,) = call_routine(d, roi_align, operands, [(shape, wide)], sizes, [(4, wide), (4, int64)])
    return convert(d, pooled, x.dtype)
