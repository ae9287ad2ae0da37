"""STFT and MelWeightMatrix: spectra of frames of a signal, and the weights of mel bands."""

import math

from tilewright.errors import ShapeError
from tilewright.expr.dtype import float32, float64, int64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import binary, cast, conjunction, maximum, select, unary
from tilewright.ops.cast import attribute_dtype, convert
from tilewright.ops.checks import expect_dtype, expect_one_element, expect_rank, expect_size
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.data_dependent import elements_or_symbols
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.fourier import MAX_TRANSFORM_LENGTH, FourierTask, fourier

_MEL, _HERTZ = 2595.0 / math.log(10.0), 700.0
"""A frequency f in Hz is _MEL * log(1 + f / _HERTZ) mel."""


@operator("STFT")
def stft(d: Definition) -> OpValue:
    """Y[b, f, k] = sum over j of signal[b, f * step + j] * window[j] * exp(-2 pi i j k / length), as two parts

    Raises:
        ShapeError: the signal is not [batch, length, 1 or 2], or shorter than a frame; a step below 1; a window of
            another length; neither window nor frame_length.
        UnsupportedError: frames that are very long.
    """
    x, window = d.input(0), d.optional(2)
    expect_rank(d, x, 3, "signal")
    batch, length, parts = x.shape
    if not isinstance(parts, Const) or parts.value not in (1, 2):
        raise ShapeError(f"signal: expected a last dimension of 1 or 2, got {parts}", where=f"node {d.label}")
    step = _integer(d, 1, "frame_step", 1)
    size = _frame_length(d, window)
    if isinstance(size, Const) and size.value > MAX_TRANSFORM_LENGTH:
        raise d.unsupported(f"frames of length {size}")
    d.require(step >= 1, f"frame_step: expected at least 1, got {step}")
    d.require(conjunction(size >= 1, size <= length), f"a frame of {size} does not fit a signal of {length}")
    size = maximum(size, 1)
    frames = maximum((length - size) // maximum(step, 1) + 1, 0)
    bins = size // 2 + 1 if d.attr_int("onesided", 1) else size
    wide = accumulator_dtype(x.dtype)
    if window is not None:
        expect_dtype(d, window, x.dtype, "window")
        window = convert(d, window, wide)
    geometry = [frames, length, step, 1, size, frames * bins, bins, 1, bins]
    task = FourierTask(batch * frames, size, geometry, is_inverse=False, is_real=False)
    shape = (batch, frames, bins, const(2))
    return convert(d, fourier(d, convert(d, x, wide), window, task, shape), x.dtype)


def _integer(d: Definition, position: int, what: str, first: int) -> Expr:
    """An integer input of one element; a symbol, which `first` distinguishes, where it is data."""
    expect_one_element(d, d.input(position), what)
    (value,) = elements_or_symbols(d, position, first)
    return cast(int64, value)


def _frame_length(d: Definition, window: OpValue | None) -> Expr:
    if window is not None:
        expect_rank(d, window, 1, "window")
    if d.optional(3) is None:
        if window is None:
            raise ShapeError("expected a window or frame_length, got neither", where=f"node {d.label}")
        return window.shape[0]
    size = _integer(d, 3, "frame_length", 2)
    return size if window is None else expect_size(d, window.shape[0], size, "window")


@operator("MelWeightMatrix")
def mel_weight_matrix(d: Definition) -> OpValue:
    """Weights [spectrum bins, mel bins]: triangles over three neighbouring edges, which are equally far apart in mel.

    Raises:
        ShapeError: an input has more than one element.
    """
    dtype = attribute_dtype(d, "output_datatype", float32)
    bands, length = _integer(d, 0, "num_mel_bins", 0), _integer(d, 1, "dft_length", 1)
    d.require(conjunction(bands >= 0, length >= 0), f"expected sizes of at least 0, got {bands} and {length}")
    names = ("sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    rate, low, high = (cast(float64, expect_one_element(d, d.input(2 + k), name)) for k, name in enumerate(names))
    first, last = (unary("log", f / _HERTZ + 1.0) * _MEL for f in (low, high))

    def edge(k: Expr) -> Expr:
        mel = cast(float64, k) * ((last - first) / cast(float64, bands + 2)) + first
        hertz = (unary("exp", mel / _MEL) - 1.0) * _HERTZ
        return cast(int64, unary("floor", cast(float64, length + 1) * hertz / rate))

    edges = d.compute((bands + 2,), edge)

    def body(bin_: Expr, band: Expr) -> Expr:
        left, middle, right = edges[band], edges[band + 1], edges[band + 2]

        def quotient(a: Expr, b: Expr) -> Expr:
            return cast(dtype, cast(float64, a) / cast(float64, b))

        zero, one = const(0, dtype), const(1, dtype)
        rises = conjunction(bin_ >= left, bin_ <= middle)
        falls = conjunction(bin_ >= middle, bin_ < right)
        rising = select(rises, select(binary("eq", left, middle), one, quotient(bin_ - left, middle - left)), zero)
        return select(falls, quotient(right - bin_, right - middle), rising)

    return d.compute((length // 2 + 1, bands), body)
