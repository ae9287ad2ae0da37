"""Pooling of quantized tensors; channels may be the last dimension."""

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import float32, int32
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast
from tilewright.ops.axes import num_elements
from tilewright.ops.contraction import reduce_over
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.contrib.parameters import quantization_of
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.pool import counted_taps, pool_window, reduce_windows
from tilewright.ops.window import pad_input


@operator("NhwcMaxPool", domain=CONTRIB)
def nhwc_max_pool(d: Definition) -> OpValue:
    """The maximum of every window of [N, *sizes, C]"""
    x = d.input(0)
    window = pool_window(d, x, channels_last=True)
    source = pad_input(d, x, window, Reducer.MAX.identity(x.dtype), channels_last=True)
    return reduce_windows(d, source, window, lambda v: v, Reducer.MAX, channels_last=True)


@operator("QLinearAveragePool", domain=CONTRIB)
def qlinear_average_pool(d: Definition) -> OpValue:
    """The mean of every window of a quantized tensor, quantized again: inputs X, its scale and zero point, those of the
    result. The mean is over the elements inside of the input, or (count_include_pad) over the whole kernel as in ONNX
    Runtime, also where an incomplete last window (ceil_mode) ends beyond the padding; elements outside are 0."""
    x, is_last = d.input(0), bool(d.attr_int("channels_last", 0))
    window = pool_window(d, x, is_last)
    source, result = quantization_of(d, 1, 2, x.dtype, "x"), quantization_of(d, 3, 4, x.dtype, "y")
    padded = pad_input(d, x, window, cast(x.dtype, source.zero), is_last)

    def centred(v: Expr) -> Expr:
        return cast(int32, v) - source.zero

    total = reduce_windows(d, padded, window, centred, Reducer.SUM, is_last)
    counts_all = bool(d.attr_int("count_include_pad", 0))

    def mean(*i: Expr) -> Expr:
        if counts_all:
            count = cast(float32, num_elements(window.kernel))
        else:
            count = counted_taps(window, i[1:-1] if is_last else i[2:], float32, count_padding=False)
        return result.quantize(cast(float32, total[i]) * source.scale / count)

    return d.compute(total.shape, mean)


@operator("QLinearGlobalAveragePool", domain=CONTRIB)
def qlinear_global_average_pool(d: Definition) -> OpValue:
    """The mean of every plane of a quantized tensor, quantized again; inputs as of QLinearAveragePool."""
    x, is_last = d.input(0), bool(d.attr_int("channels_last", 0))
    if x.rank < 3:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    source, result = quantization_of(d, 1, 2, x.dtype, "x"), quantization_of(d, 3, 4, x.dtype, "y")
    sizes = x.shape[1:-1] if is_last else x.shape[2:]
    ones = [const(1)] * len(sizes)

    def centred(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        return cast(int32, x[(i[0], *r, i[-1]) if is_last else (*i[:2], *r)]) - source.zero

    shape = (x.shape[0], *ones, x.shape[-1]) if is_last else (*x.shape[:2], *ones)
    total = reduce_over(d, shape, sizes, centred, Reducer.SUM)
    count = cast(float32, num_elements(sizes))
    return d.compute(shape, lambda *i: result.round(cast(float32, total[i]) * (source.scale / (result.scale * count))))
