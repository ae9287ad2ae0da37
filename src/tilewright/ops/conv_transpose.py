"""Transposed convolution in gather form.

A kernel as large as its stride contributes to every output once: [n, o, h, kh, w, kw] with affine indices, viewed as
[n, o, h*kh, w*kw]. Otherwise the input is dilated (zeros between its elements) and convolved with the mirrored kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, conjunction, maximum, select
from tilewright.expr.traversal import is_one
from tilewright.ops.checks import expect_dtype, expect_rank, expect_size
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over, widening_product
from tilewright.ops.conv import check_bias, check_kernel, groups_of
from tilewright.ops.definition import Definition, OpValue, is_zero, operator
from tilewright.ops.window import auto_pad_of, spatial_ints, split_padding


@dataclass(frozen=True, slots=True)
class _Geometry:
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Expr, ...]
    output: tuple[Expr, ...]
    is_direct: bool
    """Whether every output has exactly one tap per dimension."""


@operator("ConvTranspose")
def conv_transpose(d: Definition) -> OpValue:
    """Y[n, o, y*stride + k*dilation - pad] += X[n, i, y] * W[i, o, k] for all i, y, k; plus B[o]"""
    rank = d.input(0).rank - 2
    pads = spatial_ints(d, "pads", 2 * rank, 0) if rank > 0 else ()
    return transposed_convolution(d, d.optional(2), tuple(const(n) for n in pads))


def transposed_convolution(d: Definition, bias: OpValue | None, pads: Sequence[Expr]) -> OpValue:
    """ConvTranspose of inputs 0 and 1.

    Args:
        d: the operator, for all attributes of ConvTranspose but `pads`.
        bias: one value per output channel.
        pads: widths before all spatial dimensions, then those after them.

    Raises:
        ShapeError: ranks, channels, groups or attributes do not match.
    """
    x, w = d.input(0), d.input(1)
    if x.rank < 3:
        raise ShapeError(f"X: expected at least 3 dimensions, got {x.rank}", where=f"node {d.label}")
    expect_rank(d, w, x.rank, "W")
    expect_dtype(d, w, x.dtype, "W")
    check_kernel(d, w.shape[2:])
    expect_size(d, x.shape[1], w.shape[0], "channels of X")
    groups = groups_of(d, w.shape[0], "channels of X")
    geometry = _geometry(d, x, w, pads)
    wide = accumulator_dtype(x.dtype)
    if bias is not None:
        check_bias(d, bias, w.shape[1] * groups, x.dtype)
    total = (_direct if geometry.is_direct else _convolve_dilated)(d, x, w, groups, geometry, wide)
    y = epilogue(d, total, x.dtype) if bias is None else epilogue(d, total, x.dtype, lambda i: cast(wide, bias[i[1]]))
    return d.view(y, (x.shape[0], w.shape[1] * groups, *geometry.output))


def _geometry(d: Definition, x: OpValue, w: OpValue, pads: Sequence[Expr]) -> _Geometry:
    rank = x.rank - 2
    strides = spatial_ints(d, "strides", rank, 1, min_value=1)
    dilations = spatial_ints(d, "dilations", rank, 1, min_value=1)
    extra = spatial_ints(d, "output_padding", rank, 0, min_value=0)
    output_shape = d.attr_ints("output_shape")
    if output_shape and len(output_shape) not in (rank, rank + 2):
        raise ShapeError(f"output_shape: expected {rank} values, got {len(output_shape)}", where=f"node {d.label}")
    auto = auto_pad_of(d)
    before: list[Expr] = []
    output: list[Expr] = []
    is_direct = True
    for k in range(rank):
        stride, span = strides[k], (w.shape[2 + k] - 1) * dilations[k] + 1
        full_size = (x.shape[2 + k] - 1) * stride + span + extra[k]
        size, pad_before = full_size, const(0)
        if output_shape or auto.startswith("SAME"):
            size = const(output_shape[len(output_shape) - rank + k]) if output_shape else x.shape[2 + k] * stride
            pad_before = split_padding(maximum(full_size - size, 0), auto != "SAME_UPPER")[0]
        elif auto == "NOTSET":
            size, pad_before = full_size - pads[k] - pads[rank + k], pads[k]
            d.require(size >= 1, f"dimension {k}: the pads crop the whole output of {full_size}")
        before.append(pad_before)
        output.append(size)
        # The size written as x.size * stride proves that the view of the direct form is exact.
        kernel = w.shape[2 + k]
        is_exact_tiling = isinstance(kernel, Const) and kernel.value == stride and dilations[k] == 1
        is_direct = is_direct and is_exact_tiling and is_zero(pad_before) and size is x.shape[2 + k] * stride
    return _Geometry(strides, dilations, tuple(before), tuple(output), is_direct)


def _channel(o: Expr, c: Expr, w: OpValue, groups: int) -> tuple[Expr, Expr]:
    """Input channel and second index of the weights for output channel `o` and input channel `c` of its group."""
    if groups == 1:
        return c, o
    depth = w.shape[0] // groups
    return (o // w.shape[1]) * depth + c, o % w.shape[1]


def _direct(d: Definition, x: OpValue, w: OpValue, groups: int, g: _Geometry, dtype: DType) -> OpValue:
    """[N, O, h, kh, w, kw], without the kernel dimensions of size 1."""
    kernel = w.shape[2:]
    shape: list[Expr] = [x.shape[0], w.shape[1] * groups]
    for size, taps in zip(x.shape[2:], kernel, strict=True):
        shape.extend((size,) if is_one(taps) else (size, taps))

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        channel, o = _channel(i[1], r[0], w, groups)
        indices = iter(i[2:])
        position: list[Expr] = []
        tap: list[Expr] = []
        for taps in kernel:
            position.append(next(indices))
            tap.append(const(0) if is_one(taps) else next(indices))
        return widening_product(x[(i[0], channel, *position)], w[(channel, o, *tap)], dtype)

    return sum_over(d, shape, (w.shape[0] // groups,), body)


def _convolve_dilated(d: Definition, x: OpValue, w: OpValue, groups: int, g: _Geometry, dtype: DType) -> OpValue:
    """A convolution of stride 1 of the dilated input with the mirrored kernel."""
    kernel = w.shape[2:]
    reach = [(n - 1) * step for n, step in zip(kernel, g.dilations, strict=True)]
    source = _dilate_input(d, x, g, reach)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        (n, out, *y), (c, *k) = i, r
        channel, o = _channel(out, c, w, groups)
        position = [a + b * step for a, b, step in zip(y, k, g.dilations, strict=True)]
        mirrored = [size - 1 - b for size, b in zip(kernel, k, strict=True)]
        return widening_product(source[(n, channel, *position)], w[(channel, o, *mirrored)], dtype)

    return sum_over(d, (x.shape[0], w.shape[1] * groups, *g.output), (w.shape[0] // groups, *kernel), body)


def _dilate_input(d: Definition, x: OpValue, g: _Geometry, halo: list[Expr]) -> OpValue:
    """`x` with stride - 1 zeros between elements and `halo - before` zeros in front, of size output + halo."""
    shape = [n + r for n, r in zip(g.output, halo, strict=True)]
    pads_before = [r - b for r, b in zip(halo, g.before, strict=True)]
    if all(is_zero(f) and s == 1 for f, s in zip(pads_before, g.strides, strict=True)) and tuple(shape) == x.shape[2:]:
        return x

    def body(n: Expr, c: Expr, *z: Expr) -> Expr:
        conditions: list[Expr] = []
        source: list[Expr] = []
        for position, pad_before, stride, size in zip(z, pads_before, g.strides, x.shape[2:], strict=True):
            t = position - pad_before
            source.append(t // stride)
            conditions.extend((t >= 0, t < (size - 1) * stride + 1))
            if stride > 1:
                conditions.append((t % stride).equals(0))
        return select(conjunction(*conditions), x[(n, c, *source)], const(0, x.dtype))

    return d.compute((*x.shape[:2], *shape), body)
