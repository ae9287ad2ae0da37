"""Transposed convolution in gather form, by the phases of its outputs (polyphase decomposition).

Outputs whose positions are equal modulo the stride, a *phase*, take the same taps: output q * stride + p takes taps
p, p + stride, ... of inputs q, q - 1, ... So all phases together are a convolution of stride 1 whose kernel has
ceil(taps / stride) taps, [n, o, h, ph, w, pw] with affine indices, viewed as [n, o, h*ph, w*pw] and cropped. A kernel
as large as its stride has one tap per phase and nothing to crop. Otherwise (`_has_phases`) the input is dilated, with
zeros between its elements, and convolved with the mirrored kernel, which multiplies zeros for the most part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, ceildiv, conjunction, maximum, select
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
    blocks: tuple[Expr, ...]
    """Runs of `stride` outputs from the first one before cropping to the last one behind it."""
    is_covered: bool
    """Whether it is proved that the blocks hold all outputs."""


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
    has_phases = _has_phases(w, groups, geometry)
    total = (_convolve_phases if has_phases else _convolve_dilated)(d, x, w, groups, geometry, wide)
    y = epilogue(d, total, x.dtype) if bias is None else epilogue(d, total, x.dtype, lambda i: cast(wide, bias[i[1]]))
    return _interleave_phases(d, y, geometry) if has_phases else y


def _geometry(d: Definition, x: OpValue, w: OpValue, pads: Sequence[Expr]) -> _Geometry:
    rank = x.rank - 2
    strides = spatial_ints(d, "strides", rank, 1, min_value=1)
    dilations = spatial_ints(d, "dilations", rank, 1, min_value=1)
    extra = spatial_ints(d, "output_padding", rank, 0, min_value=0)
    output_shape = d.attr_ints("output_shape")
    if output_shape and len(output_shape) not in (rank, rank + 2):
        what = f"output_shape: expected {pluralize(rank, 'value')}, got {len(output_shape)}"
        raise ShapeError(what, where=f"node {d.label}")
    auto = auto_pad_of(d)
    before: list[Expr] = []
    output: list[Expr] = []
    blocks: list[Expr] = []
    is_covered = True
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
        # those of the full size; a declared size may be larger
        blocks.append(x.shape[2 + k] + (span - 1 + extra[k]) // stride)
        if output_shape:
            blocks[k] = maximum(blocks[k], ceildiv(pad_before + size, stride))
            is_covered = is_covered and isinstance(blocks[k], Const)
    return _Geometry(strides, dilations, tuple(before), tuple(output), tuple(blocks), is_covered)


def _channel(o: Expr, c: Expr, w: OpValue, groups: int) -> tuple[Expr, Expr]:
    """Input channel and second index of the weights for output channel `o` and input channel `c` of its group."""
    if groups == 1:
        return c, o
    depth = w.shape[0] // groups
    return (o // w.shape[1]) * depth + c, o % w.shape[1]


def _has_phases(w: OpValue, groups: int, g: _Geometry) -> bool:
    """Whether the phases are computed: not where a dimension has a stride and a dilation, or a symbolic size that is to
    become a declared one, nor where a sum has no channels, as the pass that interleaves and crops then costs more than
    products with zeros."""
    has_both = any(step > 1 and dilation > 1 for step, dilation in zip(g.strides, g.dilations, strict=True))
    if has_both or not g.is_covered:
        return False
    is_exact = all(map(is_zero, (*g.before, *(n - step for n, step in zip(w.shape[2:], g.strides, strict=True)))))
    depth = w.shape[0] // groups
    return is_exact or not (isinstance(depth, Const) and depth.value == 1)


def _convolve_phases(d: Definition, x: OpValue, w: OpValue, groups: int, g: _Geometry, dtype: DType) -> OpValue:
    """A convolution of stride 1 that computes [N, O, h, ph, w, pw], without phases where the stride is 1."""
    taps = [ceildiv(n, step) for n, step in zip(w.shape[2:], g.strides, strict=True)]
    reach = [(n - 1) * dilation for n, dilation in zip(taps, g.dilations, strict=True)]
    # without phases the pads crop what is computed
    crops = [pad if step == 1 else const(0) for pad, step in zip(g.before, g.strides, strict=True)]
    sizes = [out if step == 1 else n for n, out, step in zip(g.blocks, g.output, g.strides, strict=True)]
    source = _pad_input(d, x, [r - c for r, c in zip(reach, crops, strict=True)],
                        [n + r for n, r in zip(sizes, reach, strict=True)])  # fmt: skip
    kernel = _pad_kernel(d, w, [n * step for n, step in zip(taps, g.strides, strict=True)])
    shape: list[Expr] = [x.shape[0], w.shape[1] * groups]
    for size, step in zip(sizes, g.strides, strict=True):
        shape.extend((size,) if step == 1 else (size, const(step)))

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        channel, o = _channel(i[1], r[0], w, groups)
        indices = iter(i[2:])
        position: list[Expr] = []
        tap: list[Expr] = []
        for k, step, dilation, count in zip(r[1:], g.strides, g.dilations, taps, strict=True):
            position.append(next(indices) + k * dilation)
            mirrored = (count - 1 - k) * step
            tap.append(mirrored if step == 1 else mirrored + next(indices))
        return widening_product(source[(i[0], channel, *position)], kernel[(channel, o, *tap)], dtype)

    return sum_over(d, shape, (w.shape[0] // groups, *taps), body)


def _interleave_phases(d: Definition, phases: OpValue, g: _Geometry) -> OpValue:
    """[N, O, h*ph, w*pw] of [N, O, h, ph, w, pw], without what the pads crop."""
    axes = iter(phases.shape[2:])
    sizes = [next(axes) if step == 1 else next(axes) * next(axes) for step in g.strides]
    if all(step == 1 or is_zero(pad) for step, pad in zip(g.strides, g.before, strict=True)) and (*sizes,) == g.output:
        return d.view(phases, (*phases.shape[:2], *sizes))

    def body(n: Expr, o: Expr, *position: Expr) -> Expr:
        indices: list[Expr] = []
        for p, pad, step in zip(position, g.before, g.strides, strict=True):
            indices.extend((p,) if step == 1 else ((p + pad) // step, (p + pad) % step))
        return phases[(n, o, *indices)]

    return d.compute((*phases.shape[:2], *g.output), body)


def _pad_input(d: Definition, x: OpValue, before: Sequence[Expr], sizes: Sequence[Expr]) -> OpValue:
    """`x` with zeros before and after the elements of its spatial dimensions, which get the sizes."""
    if all(map(is_zero, before)) and tuple(sizes) == x.shape[2:]:
        return x

    def body(n: Expr, c: Expr, *position: Expr) -> Expr:
        source = [p - width for p, width in zip(position, before, strict=True)]
        inside = [test for p, size in zip(source, x.shape[2:], strict=True) for test in (p >= 0, p < size)]
        return select(conjunction(*inside), x[(n, c, *source)], const(0, x.dtype))

    return d.compute((*x.shape[:2], *sizes), body)


def _pad_kernel(d: Definition, w: OpValue, sizes: Sequence[Expr]) -> OpValue:
    """`w` with zeros behind its taps, so that all phases have as many."""
    if all(is_zero(size - n) for size, n in zip(sizes, w.shape[2:], strict=True)):
        return w

    def body(c: Expr, o: Expr, *taps: Expr) -> Expr:
        inside = conjunction(*(k < n for k, n in zip(taps, w.shape[2:], strict=True)))
        return select(inside, w[(c, o, *taps)], const(0, w.dtype))

    return d.compute((*w.shape[:2], *sizes), body)


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
