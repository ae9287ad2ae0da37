"""Resize by tables of positions and weights, which a routine computes for each axis.

For what index expressions do not state: scales, sizes or regions that are data, and filters with antialiasing, whose
length depends on the scale. An axis is a pass over the operand, a weighted sum of elements next to each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, boolean, float64, int64
from tilewright.expr.nodes import FALSE, Const, Expr, const
from tilewright.expr.operations import binary, cast, ceildiv, maximum, select
from tilewright.ops.axes import replace_axis
from tilewright.ops.cast import convert
from tilewright.ops.checks import expect_shape
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.contraction import accumulator_dtype, sum_over
from tilewright.ops.definition import Definition, OpValue
from tilewright.ops.resize_scale import Scale, is_present, scales_of
from tilewright.ops.routine_call import (
    MAX_DATA_DEPENDENT_SIZE,
    call_routine,
    data_sizes,
    float_tensor,
    shape_tensor,
)
from tilewright.ops.routines.resize import filter_lengths, filter_table, scales_by_sizes, sizes_by_scales
from tilewright.routine.stages import DataSize

_TRANSFORMATIONS = {
    "asymmetric": 0, "half_pixel": 1, "pytorch_half_pixel": 2, "align_corners": 3, "half_pixel_symmetric": 5,
    "tf_crop_and_resize": 6,
}  # fmt: skip
_ALIGN_CORNERS_BY_SIZE = 4
_ROUNDINGS = {"floor": 0, "ceil": 1, "round_prefer_ceil": 2, "round_prefer_floor": 3, "simple": 4}
"""Numbers of nearest modes; "simple" is that of early operator sets."""

_POLICIES = {"stretch": 0, "not_larger": 1, "not_smaller": 2}
_LINEAR, _CUBIC = 10, 11


@dataclass(frozen=True, slots=True)
class Sampling:
    """The attributes that determine taps and weights.

    Attributes:
        mode: "nearest", "linear", with its names for two and three dimensions, or "cubic".
        transformation: coordinate_transformation_mode.
        nearest: nearest_mode; "simple" for the rounding of early operator sets.
        cubic: the free parameter of the cubic weights.
        exclude_outside: whether elements outside of the operand count nothing.
        extrapolation: the value outside of the operand where a region is resized.
        antialias: whether the filter of linear and cubic is stretched where a dimension shrinks.
    """

    mode: str
    transformation: str
    nearest: str
    cubic: float
    exclude_outside: bool
    extrapolation: float
    antialias: bool

    @property
    def crops(self) -> bool:
        """Whether coordinates outside the input give the extrapolation value."""
        return self.transformation == "tf_crop_and_resize"

    @property
    def kernel(self) -> int:
        """The number of the filter, as routines have it."""
        if self.mode == "nearest":
            return _ROUNDINGS[self.nearest]
        return _CUBIC if self.mode == "cubic" else _LINEAR

    @property
    def radius(self) -> int:
        """How far the filter reaches where nothing shrinks; 0 for nearest."""
        return 0 if self.mode == "nearest" else 2 if self.mode == "cubic" else 1

    @property
    def stretches(self) -> bool:
        """Whether the filter is stretched where a dimension shrinks."""
        return self.antialias and self.mode != "nearest"


@dataclass(frozen=True, slots=True)
class TableInputs:
    """Positions of the inputs that say what is resized how, None where the operator set does not have one."""

    roi: int | None
    scales: int
    sizes: int | None


@dataclass(frozen=True, slots=True)
class _Resizing:
    """What is known of the axes: scales as a tensor of two numbers per dimension, and Exprs of the result.

    Attributes:
        ratios: numerator and denominator of each dimension's scale.
        axes: the dimensions that change.
        outputs: what the routines get for the sizes of the result, and these.
        lengths: what the routines get for the number of elements that the filter of an axis reads, and this number.
    """

    ratios: OpValue
    axes: tuple[int, ...]
    outputs: tuple[tuple[Expr, Expr], ...]
    lengths: tuple[tuple[Expr, Expr], ...]


def has_data(d: Definition, position: int) -> bool:
    """Whether an input is there whose elements are not known."""
    x = d.optional(position)
    return x is not None and x.known_elements is None and is_present(d, position)


def needs_tables(d: Definition, x: OpValue, sampling: Sampling) -> bool:
    """Whether a Resize has antialiasing, data for scales, sizes or regions, or sizes that no coordinate states."""
    if sampling.stretches or has_data(d, 2) or has_data(d, 3) or (sampling.crops and has_data(d, 1)):
        return True
    is_literal = all(isinstance(n, Const) for n in x.shape)
    keeps_aspect = d.attr_str("keep_aspect_ratio_policy", "stretch") != "stretch" and is_present(d, 3)
    return (sampling.crops or keeps_aspect) and not is_literal


def resize_by_tables(d: Definition, x: OpValue, sampling: Sampling, inputs: TableInputs) -> OpValue:
    """X resized, axis by axis.

    Raises:
        ShapeError: an attribute is unknown, an input has another length than there are axes, or both or neither of
            scales and sizes are given.
        UnsupportedError: interpolation of integers.
    """
    if sampling.mode not in ("nearest", "linear", "cubic", "bilinear", "trilinear"):
        raise ShapeError(f"mode: expected nearest, linear or cubic, got {sampling.mode!r}", where=f"node {d.label}")
    if sampling.transformation not in _TRANSFORMATIONS:
        what = f"coordinate_transformation_mode: {sampling.transformation!r} is unknown"
        raise ShapeError(what, where=f"node {d.label}")
    if sampling.mode != "nearest" and not x.dtype.is_float:
        raise d.unsupported(f"mode {sampling.mode} on {x.dtype}")
    by_scale = is_present(d, inputs.scales)
    if by_scale == (inputs.sizes is not None and is_present(d, inputs.sizes)):
        got = "both" if by_scale else "neither"
        raise ShapeError(f"expected either scales or sizes, got {got}", where=f"node {d.label}")
    axes = tuple(d.axis(a, x.rank) for a in d.attr_ints("axes") or range(x.rank))
    regions = _regions(d, x, axes, sampling, inputs.roi)
    positions = [inputs.scales if by_scale else inputs.sizes, inputs.roi if sampling.crops else None]
    is_known = all(p is None or not has_data(d, p) for p in positions)
    keeps_aspect = d.attr_str("keep_aspect_ratio_policy", "stretch") != "stretch" and not by_scale
    if is_known and (not keeps_aspect or all(isinstance(n, Const) for n in x.shape)):
        resizing = _known_resizing(d, x, scales_of(d, x, roi=inputs.roi, scales=inputs.scales, sizes=inputs.sizes),
                                   sampling)  # fmt: skip
    else:
        resizing = _data_dependent_resizing(d, x, axes, regions, sampling, inputs, by_scale)
    return _passes(d, x, resizing, regions, sampling, by_scale)


def _regions(d: Definition, x: OpValue, axes: Sequence[int], sampling: Sampling, position: int | None) -> OpValue:
    """Start and end of the part of each dimension that is resized."""
    if not sampling.crops:
        return float_tensor(d, [0.0, 1.0], float64)
    if position is None or not is_present(d, position):
        raise ShapeError("tf_crop_and_resize needs input roi", where=f"node {d.label}")
    roi = d.input(position)
    expect_shape(d, roi, (const(2 * len(axes)),), "roi")

    def body(i: Expr) -> Expr:
        value: Expr = select((i % 2).equals(0), const(0.0, float64), const(1.0, float64))
        for j, axis in enumerate(axes):
            for k in range(2):
                value = select(i.equals(2 * axis + k), cast(float64, roi[(const(j + k * len(axes)),)]), value)
        return value

    return d.compute((2 * x.rank,), body)


def _known_resizing(d: Definition, x: OpValue, scales: Sequence[Scale], sampling: Sampling) -> _Resizing:
    numbers = [e for s in scales for e in (maximum(s.numerator, 1), maximum(s.denominator, 1))]
    changed = tuple(k for k, s in enumerate(scales) if not s.is_identity)
    lengths: list[tuple[Expr, Expr]] = []
    for top, bottom in zip(numbers[::2], numbers[1::2], strict=True):
        reach = maximum(top, bottom) if sampling.stretches else top
        length = ceildiv(reach * sampling.radius, top) * 2 if sampling.radius else const(1)
        lengths.append((length, length))
    outputs = tuple((s.output, s.output) for s in scales)
    return _Resizing(shape_tensor(d, numbers), changed, outputs, tuple(lengths))


def _data_dependent_resizing(
    d: Definition, x: OpValue, axes: Sequence[int], regions: OpValue, sampling: Sampling, inputs: TableInputs,
    by_scale: bool,
) -> _Resizing:  # fmt: skip
    given = d.input(inputs.scales if by_scale or inputs.sizes is None else inputs.sizes)
    expect_shape(d, given, (const(len(axes)),), "scales" if by_scale else "sizes")
    operands = [given, shape_tensor(d, axes), shape_tensor(d, x.shape)]
    results = [((2 * x.rank,), int64), ((x.rank,), int64)]
    if by_scale:
        ratios, sizes = call_routine(
            d, sizes_by_scales, [*operands, regions], results, [int(sampling.crops)], [(2, given.dtype)]
        )
    else:
        policy = d.attr_str("keep_aspect_ratio_policy", "stretch")
        if policy not in _POLICIES:
            expected = ", ".join(_POLICIES)
            what = f"keep_aspect_ratio_policy: expected one of {expected}, got {policy!r}"
            raise ShapeError(what, where=f"node {d.label}")
        ratios, sizes = call_routine(d, scales_by_sizes, operands, results, [_POLICIES[policy]])
    symbols = data_sizes(d, sizes, [DataSize(k, MAX_DATA_DEPENDENT_SIZE) for k in range(x.rank)])
    outputs = tuple(s if k in axes else (n, n) for k, (n, s) in enumerate(zip(x.shape, symbols, strict=True)))
    if not sampling.stretches:
        length = const(max(2 * sampling.radius, 1))
        return _Resizing(ratios, tuple(sorted(axes)), outputs, ((length, length),) * x.rank)
    (lengths,) = call_routine(d, filter_lengths, [ratios], [((x.rank,), int64)], [sampling.radius])
    made = data_sizes(d, lengths, [DataSize(x.rank + k, MAX_DATA_DEPENDENT_SIZE) for k in range(x.rank)])
    return _Resizing(ratios, tuple(sorted(axes)), outputs, made)


@dataclass(frozen=True, slots=True)
class _Table:
    """First position, weights and whether it is outside of the operand, for each place along an axis."""

    positions: OpValue
    weights: OpValue
    outside: OpValue


def _passes(
    d: Definition, x: OpValue, resizing: _Resizing, regions: OpValue, sampling: Sampling, by_scale: bool
) -> OpValue:
    transformation = _TRANSFORMATIONS[sampling.transformation]
    if sampling.transformation == "align_corners" and not by_scale:
        transformation = _ALIGN_CORNERS_BY_SIZE
    cubic = float_tensor(d, [sampling.cubic], float64)
    tables: dict[int, _Table] = {}
    for axis in resizing.axes:
        symbol, output = resizing.outputs[axis]
        taps, length = resizing.lengths[axis]
        scalars = [axis, x.shape[axis], symbol, taps, transformation, sampling.kernel,
                   int(sampling.exclude_outside), int(sampling.stretches)]  # fmt: skip
        outputs = [((output,), int64), ((output, length), float64), ((output,), boolean)]
        operands = [resizing.ratios, regions, cubic]
        tables[axis] = _Table(*call_routine(d, filter_table, operands, outputs, scalars, [(2, int64)]))
    if not tables:
        return x
    if sampling.mode == "nearest":
        value = _take(d, x, tables)
    else:
        value = x
        for axis, table in tables.items():
            value = _filter(d, value, axis, table)
    if not sampling.crops:
        return convert(d, value, x.dtype)
    return _extrapolate(d, value, tables, const(sampling.extrapolation, x.dtype), x.dtype)


def _take(d: Definition, x: OpValue, tables: dict[int, _Table]) -> OpValue:
    """The elements at the positions of tables, all axes at once."""
    shape = tuple(tables[k].positions.shape[0] if k in tables else n for k, n in enumerate(x.shape))

    def body(*i: Expr) -> Expr:
        source = list(i)
        for k, table in tables.items():
            source[k] = clamp_index(table.positions[i[k]], x.shape[k])
        return zero_if_empty(x[tuple(source)], *((source[k], x.shape[k]) for k in tables))

    return d.compute(shape, body)


def _filter(d: Definition, x: OpValue, axis: int, table: _Table) -> OpValue:
    """The weighted sums along one axis, in the accumulator type; an element of weight 0 counts nothing, even NaN."""
    wide = accumulator_dtype(x.dtype)
    size = x.shape[axis]
    shape = replace_axis(x.shape, axis, table.positions.shape[0])

    def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        weight = table.weights[i[axis], r[0]]
        place = clamp_index(table.positions[i[axis]] + r[0], size)
        value = zero_if_empty(x[replace_axis(i, axis, place)], (place, size))
        return select(weight.equals(0.0), const(0.0, wide), cast(wide, value) * cast(wide, weight))

    return sum_over(d, shape, [table.weights.shape[1]], term)


def _extrapolate(d: Definition, value: OpValue, tables: dict[int, _Table], fill: Expr, dtype: DType) -> OpValue:
    def body(*i: Expr) -> Expr:
        is_outside: Expr = FALSE
        for k, table in tables.items():
            is_outside = binary("or", is_outside, table.outside[i[k]])
        return select(is_outside, fill, cast(dtype, value[i]))

    return d.compute(value.shape, body)
