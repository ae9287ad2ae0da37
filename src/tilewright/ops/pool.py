"""Pooling over windows and whole planes: maximum, average and Lp norm."""

from collections.abc import Callable, Sequence

from tilewright.errors import ShapeError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import binary, cast, ceildiv, conjunction, maximum, minimum, select, unary
from tilewright.ops.axes import num_elements
from tilewright.ops.contraction import accumulator_dtype, reduce_over
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.window import Window, pad_input, spatial_ints, window_of


def pool_window(d: Definition, x: OpValue, channels_last: bool = False) -> Window:
    """The window of a pooling operator on [N, C, *sizes], or (`channels_last`) on [N, *sizes, C].

    Raises:
        ShapeError: too few dimensions, or attributes that do not match.
    """
    if x.rank < 3:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    if not d.attr_ints("kernel_shape"):
        raise ShapeError("attribute kernel_shape is missing", where=f"node {d.label}")
    kernel = spatial_ints(d, "kernel_shape", x.rank - 2, 1, min_value=1)
    sizes = x.shape[1:-1] if channels_last else x.shape[2:]
    return window_of(d, sizes, [const(k) for k in kernel], ceil=bool(d.attr_int("ceil_mode", 0)))


def reduce_windows(
    d: Definition,
    x: OpValue,
    window: Window,
    value: Callable[[Expr], Expr],
    reducer: Reducer,
    channels_last: bool = False,
) -> OpValue:
    """`reducer` of `value(element)` over every window of `x`, which is already padded."""
    if channels_last:
        shape = (x.shape[0], *window.output, x.shape[-1])
        return reduce_over(
            d, shape, window.kernel, lambda i, r: value(x[(i[0], *window.at(i[1:-1], r), i[-1])]), reducer
        )

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        return value(x[(*i[:2], *window.at(i[2:], r))])

    return reduce_over(d, (*x.shape[:2], *window.output), window.kernel, body, reducer)


@operator("MaxPool")
def max_pool(d: Definition) -> OpValue | tuple[OpValue, ...]:
    """The maximum of every window and, on demand, its index in the input"""
    x, columns_first = d.input(0), d.attr_int("storage_order", 0)
    if columns_first not in (0, 1):
        raise ShapeError(f"storage_order: expected 0 or 1, got {columns_first}", where=f"node {d.label}")
    window = pool_window(d, x)
    source = pad_input(d, x, window, Reducer.MAX.identity(x.dtype))
    best = reduce_windows(d, source, window, lambda v: v, Reducer.MAX)
    return best if d.num_outputs == 1 else (best, _argmax_indices(d, x, window, best, bool(columns_first), source is x))


def _argmax_indices(
    d: Definition, x: OpValue, window: Window, best: OpValue, columns_first: bool, is_unpadded: bool
) -> OpValue:
    """The linear index, in the whole input, of each window's maximum; -1 for a window of padding alone.

    Of equal maxima the first in row-major order counts, as in ONNX Runtime, also for column-major indices. NaN counts
    as the maximum. Indices of a plane are row-major or (`columns_first`) column-major.
    """
    sizes = window.sizes
    plane = num_elements(sizes)

    def candidate(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        position = [p - b for p, b in zip(window.at(i[2:], r), window.before, strict=True)]
        value = x[(*i[:2], *position)]
        is_maximum = value.equals(best[i])
        if x.dtype.is_float:
            is_maximum = binary("or", is_maximum, unary("isnan", value))
        in_bounds = [] if is_unpadded else [conjunction(p >= 0, p < n) for p, n in zip(position, sizes, strict=True)]
        return select(conjunction(*in_bounds), select(is_maximum, _linearize(position, sizes), plane), plane)

    first = reduce_over(d, best.shape, window.kernel, candidate, Reducer.MIN)

    def output_index(*i: Expr) -> Expr:
        row_major = first[i]
        in_plane = _linearize(_delinearize(row_major, sizes)[::-1], sizes[::-1]) if columns_first else row_major
        in_tensor = (i[0] * x.shape[1] + i[1]) * plane + in_plane
        return in_tensor if is_unpadded else select(row_major < plane, in_tensor, -1)

    return d.compute(best.shape, output_index)


def _linearize(position: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """The row-major linear index of a position in a box of the given sizes."""
    index: Expr = const(0)
    for p, n in zip(position, sizes, strict=True):
        index = index * n + p
    return index


def _delinearize(index: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """The position with a linear index; inverse of `_linearize`."""
    position: list[Expr] = []
    # A size of 0 has windows of padding alone; it must not be a divisor.
    for n in (n if can_prove(n >= 1) else maximum(n, 1) for n in sizes[:0:-1]):
        position.append(index % n)
        index = index // n
    return [index, *position[::-1]]


@operator("AveragePool")
def average_pool(d: Definition) -> OpValue:
    """The mean of every window, over the elements inside the input or (count_include_pad) inside its padding too"""
    x = d.input(0)
    window = pool_window(d, x)
    wide = accumulator_dtype(x.dtype)
    total = reduce_windows(d, pad_input(d, x, window, const(0, x.dtype)), window, lambda v: cast(wide, v), Reducer.SUM)
    count_padding = bool(d.attr_int("count_include_pad", 0))

    def mean(*i: Expr) -> Expr:
        return cast(x.dtype, total[i] / counted_taps(window, i[2:], wide, count_padding))

    return d.compute(total.shape, mean)


def counted_taps(window: Window, y: Sequence[Expr], dtype: DType, count_padding: bool) -> Expr:
    """The number of taps of the window at `y` that an average counts, as a float."""
    # Converted to float first: a product of index expressions would be expanded and computed for every element.
    count: Expr = const(1, dtype)
    for k, position in enumerate(y):
        count = count * cast(dtype, _tap_count(window, k, position, count_padding))
    return count


def _tap_count(window: Window, k: int, y: Expr, count_padding: bool) -> Expr:
    """The number of counted taps of window `y` along dimension `k`."""
    taps, dilation = window.kernel[k], window.dilations[k]
    padded_size = window.sizes[k] + window.before[k] + window.after[k]
    low, high = (const(0), padded_size) if count_padding else (window.before[k], window.before[k] + window.sizes[k])
    start = y * window.strides[k]
    last = (window.output[k] - 1) * window.strides[k] + (taps - 1) * dilation
    first_tap = const(0) if isinstance(low, Const) and low.value <= 0 else maximum(ceildiv(low - start, dilation), 0)
    end_tap = taps if can_prove(last < high) else minimum(ceildiv(high - start, dilation), taps)
    return end_tap - first_tap


@operator("LpPool")
def lp_pool(d: Definition) -> OpValue:
    """The p-norm of every window"""
    x = d.input(0)
    window = pool_window(d, x)
    p = d.attr_int("p", 2)
    wide = accumulator_dtype(x.dtype)
    source = pad_input(d, x, window, const(0, x.dtype))
    total = reduce_windows(d, source, window, lambda v: power(cast(wide, v), p), Reducer.SUM)
    return d.compute(total.shape, lambda *i: cast(x.dtype, root(total[i], p)))


def power(v: Expr, p: int) -> Expr:
    """|v| ** p"""
    if p == 2:
        return v * v
    magnitude = unary("abs", v)
    return magnitude if p == 1 else binary("pow", magnitude, float(p))


def root(v: Expr, p: int) -> Expr:
    """v ** (1/p)"""
    if p == 2:
        return unary("sqrt", v)
    return v if p == 1 else binary("pow", v, 1.0 / p)


def _reduce_planes(d: Definition, x: OpValue, value: Callable[[Expr], Expr], reducer: Reducer) -> OpValue:
    """`reducer` over all spatial dimensions: [N, C, 1, ...]."""
    if x.rank < 3:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    ones: Sequence[Expr] = [const(1)] * (x.rank - 2)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        return value(x[(*i[:2], *r)])

    return reduce_over(d, (*x.shape[:2], *ones), x.shape[2:], body, reducer)


@operator("GlobalMaxPool")
def global_max_pool(d: Definition) -> OpValue:
    """The maximum of every plane"""
    return _reduce_planes(d, d.input(0), lambda v: v, Reducer.MAX)


@operator("GlobalAveragePool")
def global_average_pool(d: Definition) -> OpValue:
    """The mean of every plane"""
    x = d.input(0)
    wide = accumulator_dtype(x.dtype)
    total = _reduce_planes(d, x, lambda v: cast(wide, v), Reducer.SUM)
    count = cast(wide, num_elements(x.shape[2:]))
    return d.compute(total.shape, lambda *i: cast(x.dtype, total[i] / count))


@operator("GlobalLpPool")
def global_lp_pool(d: Definition) -> OpValue:
    """The p-norm of every plane"""
    x = d.input(0)
    p = d.attr_int("p", 2)
    wide = accumulator_dtype(x.dtype)
    total = _reduce_planes(d, x, lambda v: power(cast(wide, v), p), Reducer.SUM)
    return d.compute(total.shape, lambda *i: cast(x.dtype, root(total[i], p)))
