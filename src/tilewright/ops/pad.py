"""Pad: constant, edge, reflected or wrapped borders; negative widths crop."""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import TRUE, Const, Expr, const
from tilewright.expr.operations import cast, conjunction, maximum, minimum, select
from tilewright.ops.axes import axes_of
from tilewright.ops.checks import expect_dtype
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.data_dependent import data_dependent_pad, is_data_dependent
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import scalar
from tilewright.ops.window import MAX_STEP

_MODES = ("constant", "edge", "reflect", "wrap")


@dataclass(frozen=True, slots=True)
class Border:
    """Widths of the border before and after a dimension."""

    before: Expr
    after: Expr

    def cropped_size(self, size: Expr) -> Expr:
        """Size of a dimension after cropping by negative widths."""
        return size + minimum(self.before, 0) + minimum(self.after, 0)

    def adds_elements(self) -> tuple[bool, bool]:
        """Whether each side may add elements: its width is not a literal of 0 or less."""
        return (
            not (isinstance(self.before, Const) and self.before.value <= 0),
            not (isinstance(self.after, Const) and self.after.value <= 0),
        )


@operator("Pad")
def pad(d: Definition) -> OpValue:
    """The input with borders.

    Raises:
        ShapeError: the mode is unknown, or the widths do not match the dimensions.
    """
    if d.opset >= 11 and (is_data_dependent(d, 1) or is_data_dependent(d, 3)):
        return data_dependent_pad(d, d.input(0), _mode(d), _fill_value(d, d.input(0), 2))
    widths, axes = _widths_and_axes(d)
    return padded(d, widths, axes, 2 if d.opset >= 11 else None)


def padded(d: Definition, widths: Sequence[Expr], axes: Sequence[int] | None, fill: int | None) -> OpValue:
    """Input 0 with borders, as the attribute `mode` says.

    Args:
        d: the operator.
        widths: before the axes, then after them.
        axes: dimensions with borders; None for all.
        fill: position of the optional input with the constant; None where it is the attribute `value`.

    Raises:
        ShapeError: the mode is unknown, or the widths do not match the dimensions.
    """
    x, mode = d.input(0), _mode(d)
    borders = _borders(d, x, widths, axes)
    if mode == "reflect":
        for k, border in borders.items():
            for width in (border.before, border.after):
                what = f"dimension {k}: expected a reflected border below {x.shape[k]}, got {width}"
                d.require(width < x.shape[k], what)
    sizes = tuple(borders[k].before + n + borders[k].after if k in borders else n for k, n in enumerate(x.shape))
    value = _fill_value(d, x, fill)
    if not borders:
        return d.view(x, x.shape)
    for k in borders:
        d.require(sizes[k] >= 0, f"dimension {k}: expected a size of at least 0, the borders leave {sizes[k]}")
    if mode != "constant":
        _require_elements(d, x, borders, mode)

    def body(*i: Expr) -> Expr:
        source = tuple(p - borders[k].before if k in borders else p for k, p in enumerate(i))
        if mode == "constant":
            in_bounds = conjunction(*(_in_bounds(source[k], border, x.shape[k]) for k, border in borders.items()))
            return select(in_bounds, x[source], value)
        clamped = tuple(
            _source_position(mode, p, borders[k], x.shape[k]) if k in borders else p for k, p in enumerate(source)
        )
        return zero_if_empty(
            x[clamped], *((clamped[k], x.shape[k]) for k, border in borders.items() if any(border.adds_elements()))
        )

    return d.compute(sizes, body)


def _mode(d: Definition) -> str:
    mode = d.attr_str("mode", "constant")
    if mode not in _MODES:
        raise ShapeError(f"mode: expected {', '.join(_MODES)}, got {mode}", where=f"node {d.label}")
    return mode


def _widths_and_axes(d: Definition) -> tuple[Sequence[Expr], Sequence[int] | None]:
    """The widths of all borders and the dimensions that have them, None for all."""
    if d.opset < 11:
        return [const(n) for n in d.attr_ints("pads") or ()], None
    return [cast(int64, n) for n in d.known_elements(1)], axes_of(d, d.input(0).rank, 3)


def _borders(d: Definition, x: OpValue, widths: Sequence[Expr], axes: Sequence[int] | None) -> dict[int, Border]:
    """Borders by dimension, without those of zero width."""
    axes = tuple(range(x.rank)) if axes is None else axes
    if len(widths) != 2 * len(axes):
        raise ShapeError(f"pads: expected {2 * len(axes)} numbers, got {len(widths)}", where=f"node {d.label}")
    for w in widths:
        if isinstance(w, Const) and abs(w.value) > MAX_STEP:
            raise ShapeError(f"pads: expected numbers of at most {MAX_STEP}, got {w}", where=f"node {d.label}")
    pairs = zip(axes, widths[: len(axes)], widths[len(axes) :], strict=True)
    return {k: Border(a, b) for k, a, b in pairs if not (a is const(0) and b is const(0))}


def _require_elements(d: Definition, x: OpValue, borders: dict[int, Border], mode: str) -> None:
    """Requires elements for a border to repeat: a nonempty dimension, for "wrap" also after cropping."""
    for k, border in borders.items():
        if any(border.adds_elements()):
            available = border.cropped_size(x.shape[k]) if mode == "wrap" else x.shape[k]
            d.require(available >= 1, f"dimension {k}: no elements for the border to repeat")


def _fill_value(d: Definition, x: OpValue, position: int | None) -> Expr:
    if position is None:
        return const(d.attr_float("value", 0.0), x.dtype)
    operand = d.optional(position)
    if operand is None:
        return const(0, x.dtype)
    expect_dtype(d, operand, x.dtype, f"input {position} (constant_value)")
    return scalar(d, position)


def _in_bounds(position: Expr, border: Border, size: Expr) -> Expr:
    before, after = border.adds_elements()
    return conjunction(position >= 0 if before else TRUE, position < size if after else TRUE)


def _source_position(mode: str, position: Expr, border: Border, size: Expr) -> Expr:
    """The position in the dimension whose element a position in the border repeats."""
    before, after = border.adds_elements()
    if mode == "wrap":
        return _wrap_position(position, border, size) if before or after else position
    if mode == "edge":
        position = maximum(position, 0) if before else position
        return minimum(position, size - 1) if after else position
    if before:
        position = select(position < 0, -position, position)
    if after:
        position = select(position < size, position, (size - 1) * 2 - position)
    # That the border is smaller than a symbolic size is checked only at a call; clamping keeps loads in bounds anyway.
    return clamp_index(position, size) if before or after else position


def _wrap_position(position: Expr, border: Border, size: Expr) -> Expr:
    """The position modulo the cropped size: ONNX crops by negative widths before it wraps."""
    cropped_size = border.cropped_size(size)
    if cropped_size is size:
        return position % size
    first = maximum(-border.before, 0)
    if can_prove(cropped_size >= 1):
        return first + (position - first) % cropped_size
    # That elements remain after cropping is checked only at a call.
    return clamp_index(first + (position - first) % maximum(cropped_size, 1), size)
