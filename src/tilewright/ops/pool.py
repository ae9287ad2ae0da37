"""Pooling over windows and over whole planes: maximum, average and Lp norm."""

from collections.abc import Callable, Sequence

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import Const, Expr, binary, cast, ceildiv, const, maximum, minimum, unary
from tilewright.expr.prover import prove
from tilewright.ops.contraction import accumulator, reduce_over
from tilewright.ops.definition import Definition, Operand, operator
from tilewright.ops.window import Window, padded, spatial_ints, window_of


def _pool_window(d: Definition, x: Operand) -> Window:
    if x.rank < 3:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    if not d.attr_ints("kernel_shape"):
        raise ShapeError("attribute kernel_shape is missing", where=f"node {d.label}")
    kernel = spatial_ints(d, "kernel_shape", x.rank - 2, 1, least=1)
    return window_of(d, x.shape[2:], [const(k) for k in kernel], ceil=bool(d.attr_int("ceil_mode", 0)))


def _pooled(d: Definition, x: Operand, window: Window, value: Callable[[Expr], Expr], reducer: Reducer) -> Operand:
    """`reducer` of `value(element)` over every window of `x`, which is padded already."""

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        return value(x[(*i[:2], *window.at(i[2:], r))])

    return reduce_over(d, (*x.shape[:2], *window.output), window.kernel, body, reducer)


@operator("MaxPool")
def max_pool(d: Definition) -> Operand:
    """The maximum of every window"""
    x = d.input(0)
    if d.wanted > 1:
        raise d.unsupported("output Indices is not expressed")
    window = _pool_window(d, x)
    lowest = Reducer.MAX.identity(x.dtype)
    return _pooled(d, padded(d, x, window, lowest), window, lambda v: v, Reducer.MAX)


@operator("AveragePool")
def average_pool(d: Definition) -> Operand:
    """The mean of every window, over the elements inside the input or (count_include_pad) inside its padding too"""
    x = d.input(0)
    window = _pool_window(d, x)
    wide = accumulator(x.dtype)
    total = _pooled(d, padded(d, x, window, const(0, x.dtype)), window, lambda v: cast(wide, v), Reducer.SUM)
    include = bool(d.attr_int("count_include_pad", 0))

    def mean(*i: Expr) -> Expr:
        # floats before they are multiplied: a product of index expressions is expanded, and computed for every element
        count: Expr = const(1, wide)
        for k, y in enumerate(i[2:]):
            count = count * cast(wide, _taps(window, k, y, include))
        return cast(x.dtype, total[i] / count)

    return d.compute(total.shape, mean)


def _taps(window: Window, k: int, y: Expr, include: bool) -> Expr:
    """How many taps of window `y` along dimension `k` are counted."""
    taps, dilation = window.kernel[k], window.dilations[k]
    room = window.sizes[k] + window.before[k] + window.after[k]
    low, high = (const(0), room) if include else (window.before[k], window.before[k] + window.sizes[k])
    start = y * window.strides[k]
    last = (window.output[k] - 1) * window.strides[k] + (taps - 1) * dilation
    first_tap = const(0) if isinstance(low, Const) and low.value <= 0 else maximum(ceildiv(low - start, dilation), 0)
    end_tap = taps if prove(last < high) else minimum(ceildiv(high - start, dilation), taps)
    return end_tap - first_tap


@operator("LpPool")
def lp_pool(d: Definition) -> Operand:
    """The p-norm of every window"""
    x = d.input(0)
    window = _pool_window(d, x)
    p = d.attr_int("p", 2)
    wide = accumulator(x.dtype)
    source = padded(d, x, window, const(0, x.dtype))
    total = _pooled(d, source, window, lambda v: power(cast(wide, v), p), Reducer.SUM)
    return d.compute(total.shape, lambda *i: cast(x.dtype, root(total[i], p)))


def power(v: Expr, p: int) -> Expr:
    """|v| ** p"""
    if p == 2:
        return v * v
    size = unary("abs", v)
    return size if p == 1 else binary("pow", size, float(p))


def root(v: Expr, p: int) -> Expr:
    """v ** (1/p)"""
    if p == 2:
        return unary("sqrt", v)
    return v if p == 1 else binary("pow", v, 1.0 / p)


def _whole(d: Definition, x: Operand, value: Callable[[Expr], Expr], reducer: Reducer) -> Operand:
    """`reducer` over all spatial dimensions: [N, C, 1, ...]."""
    if x.rank < 3:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    ones: Sequence[Expr] = [const(1)] * (x.rank - 2)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        return value(x[(*i[:2], *r)])

    return reduce_over(d, (*x.shape[:2], *ones), x.shape[2:], body, reducer)


@operator("GlobalMaxPool")
def global_max_pool(d: Definition) -> Operand:
    """The maximum of every plane"""
    return _whole(d, d.input(0), lambda v: v, Reducer.MAX)


@operator("GlobalAveragePool")
def global_average_pool(d: Definition) -> Operand:
    """The mean of every plane"""
    x = d.input(0)
    wide = accumulator(x.dtype)
    total = _whole(d, x, lambda v: cast(wide, v), Reducer.SUM)
    count: Expr = const(1)
    for n in x.shape[2:]:
        count = count * n
    return d.compute(total.shape, lambda *i: cast(x.dtype, total[i] / cast(wide, count)))


@operator("GlobalLpPool")
def global_lp_pool(d: Definition) -> Operand:
    """The p-norm of every plane"""
    x = d.input(0)
    p = d.attr_int("p", 2)
    wide = accumulator(x.dtype)
    total = _whole(d, x, lambda v: power(cast(wide, v), p), Reducer.SUM)
    return d.compute(total.shape, lambda *i: cast(x.dtype, root(total[i], p)))
