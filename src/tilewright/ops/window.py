"""Sliding windows of convolution and pooling: attributes, output sizes, and the padded copy of the input.

Padding is a separate stage (`pad_input`), so the consumer loads `x[..., y*stride + k*dilation]` unconditionally.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.nodes import TRUE, Expr, const
from tilewright.expr.operations import ceildiv, conjunction, maximum, minimum, select
from tilewright.ops.definition import Definition, OpValue, is_zero

_AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")

MAX_STEP = (1 << 31) - 1
"""Largest magnitude of strides and paddings: sums and products with sizes stay far from the ends of int64."""


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a sliding window, one entry per spatial dimension.

    Attributes:
        sizes: of the input.
        kernel: taps.
        strides: steps between windows.
        dilations: steps between taps.
        before: padding before the input; negative values crop.
        after: padding after the input.
        output: number of windows.
        padded_sizes: sizes of the padded input; windows never leave it.
    """

    sizes: tuple[Expr, ...]
    kernel: tuple[Expr, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Expr, ...]
    after: tuple[Expr, ...]
    output: tuple[Expr, ...]
    padded_sizes: tuple[Expr, ...]

    def at(self, window: Sequence[Expr], tap: Sequence[Expr]) -> tuple[Expr, ...]:
        """Index of a tap of a window in the padded input."""
        return tuple(
            y * stride + k * dilation
            for y, k, stride, dilation in zip(window, tap, self.strides, self.dilations, strict=True)
        )


def spatial_ints(d: Definition, name: str, rank: int, default: int, *, min_value: int | None = None) -> tuple[int, ...]:
    """An attribute with one integer per spatial dimension.

    Raises:
        ShapeError: it has another length, or a value is less than `min_value` or beyond `MAX_STEP`.
    """
    values = d.attr_ints(name)
    if not values:
        return (default,) * rank
    if len(values) != rank:
        raise ShapeError(f"{name}: expected {pluralize(rank, 'value')}, got {len(values)}", where=f"node {d.label}")
    for v in values:
        if min_value is not None and v < min_value:
            raise ShapeError(f"{name}: expected values of at least {min_value}, got {v}", where=f"node {d.label}")
        if abs(v) > MAX_STEP:
            raise ShapeError(f"{name}: expected values of at most {MAX_STEP}, got {v}", where=f"node {d.label}")
    return values


def auto_pad_of(d: Definition) -> str:
    """The attribute auto_pad.

    Raises:
        ShapeError: it is none of the four names.
    """
    value = d.attr_str("auto_pad", "NOTSET") or "NOTSET"
    if value not in _AUTO_PAD:
        raise ShapeError(f"auto_pad: expected one of {', '.join(_AUTO_PAD)}, got {value!r}", where=f"node {d.label}")
    return value


def split_padding(total: Expr, extra_before: bool) -> tuple[Expr, Expr]:
    """Padding (before, after) of sum `total`; an odd element comes before where `extra_before` is set."""
    half = total // 2
    return (total - half, half) if extra_before else (half, total - half)


def window_of(d: Definition, sizes: Sequence[Expr], kernel: Sequence[Expr], *, ceil: bool = False) -> Window:
    """The window that the attributes strides, dilations, pads and auto_pad describe.

    Args:
        d: the operator.
        sizes: of the input, spatial dimensions only.
        kernel: taps per dimension.
        ceil: whether an incomplete last window counts, provided that it starts inside the input or its front padding.

    Raises:
        ShapeError: malformed attributes, or a window that is larger than the padded input.
    """
    rank = len(sizes)
    strides = spatial_ints(d, "strides", rank, 1, min_value=1)
    dilations = spatial_ints(d, "dilations", rank, 1, min_value=1)
    auto_pad = auto_pad_of(d)
    pads = spatial_ints(d, "pads", 2 * rank, 0)
    before: list[Expr] = []
    after: list[Expr] = []
    output: list[Expr] = []
    padded: list[Expr] = []
    for k, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        span = (kernel[k] - 1) * dilation + 1
        pad_before, pad_after = const(0), const(0)
        if auto_pad.startswith("SAME"):
            total = maximum((ceildiv(size, stride) - 1) * stride + span - size, 0)
            pad_before, pad_after = split_padding(total, auto_pad == "SAME_LOWER")
            count = ceildiv(size, stride)
        else:
            if auto_pad == "NOTSET":
                pad_before, pad_after = const(pads[k]), const(pads[rank + k])
            padded_extent = size + pad_before + pad_after
            message = f"dimension {k}: a window of {span} does not fit the padded size {padded_extent}"
            # An incomplete window may be the only one.
            d.require(span < padded_extent + stride if ceil else span <= padded_extent, message)
            count = (padded_extent - span) // stride + 1
            if ceil:
                count = minimum(ceildiv(padded_extent - span, stride) + 1, ceildiv(size + pad_before, stride))
        before.append(pad_before)
        after.append(pad_after)
        output.append(count)
        padded.append(_padded_size(size + pad_before + pad_after, (count - 1) * stride + span, ceil))
    return Window(
        tuple(sizes), tuple(kernel), strides, dilations, tuple(before), tuple(after), tuple(output), tuple(padded)
    )


def _padded_size(size: Expr, needed: Expr, ceil: bool) -> Expr:
    """The padded size, extended with `ceil` to hold an incomplete last window."""
    return size if not ceil or can_prove(needed <= size) else maximum(size, needed)


def pad_input(d: Definition, x: OpValue, window: Window, fill: Expr, channels_last: bool = False) -> OpValue:
    """A copy of `x` with `fill` around its spatial dimensions, which are the last ones or (`channels_last`) those
    before the last; `x` itself without padding."""
    leading = x.rank - len(window.sizes) - channels_last
    if all(is_zero(b) and p is n for b, p, n in zip(window.before, window.padded_sizes, window.sizes, strict=True)):
        return x

    def body(*i: Expr) -> Expr:
        conditions: list[Expr] = []
        source = list(i[:leading])
        for k, position in enumerate(i[leading : leading + len(window.sizes)]):
            low, high = window.before[k], window.before[k] + window.sizes[k]
            source.append(position - low)
            conditions.append(TRUE if is_zero(low) else position >= low)
            conditions.append(TRUE if can_prove(window.padded_sizes[k] <= high) else position < high)
        source += i[leading + len(window.sizes) :]
        return select(conjunction(*conditions), x[tuple(source)], fill)

    return d.compute((*x.shape[:leading], *window.padded_sizes, *x.shape[leading + len(window.sizes) :]), body)
