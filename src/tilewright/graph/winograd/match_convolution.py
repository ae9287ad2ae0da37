"""Matching of convolutions with stride 1 in tensor expressions.

    out[n, o, y, x] = sum(data[n, c, y + k, x + l] * weights[o, c, k, l] for c, k, l)

in any number of dimensions and any order of indices. Convolutions with strides, dilations or groups have other indices
and do not match.
"""

from collections.abc import Container
from dataclasses import dataclass

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Binary, Const, Expr, Load, Var


@dataclass(frozen=True, slots=True)
class SpatialAxis:
    """A dimension along which the filter slides.

    Attributes:
        axis: of the results.
        tap: the reduction axis of the filter, of literal extent.
    """

    axis: Axis
    tap: Axis

    @property
    def taps(self) -> int:
        """Number of filter elements."""
        assert isinstance(self.tap.extent, Const)
        return int(self.tap.extent.value)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with stride 1.

    Attributes:
        stage: the sum.
        data: the load of the input.
        weights: the load of the filter, a constant; the index of a dimension with one tap is a literal.
        batch: axes of the results that do not occur in the filter's indices.
        spatial: dimensions along which the filter slides.
        output_channels: the axis of the results that does not occur in the input's indices.
        input_channels: the reduction axis that both operands have.
    """

    stage: Computation
    data: Load
    weights: Load
    batch: tuple[Axis, ...]
    spatial: tuple[SpatialAxis, ...]
    output_channels: Axis
    input_channels: Axis

    def input_dimension(self, slide: SpatialAxis) -> int:
        """The dimension of the input along which the filter slides."""
        return next(k for k, i in enumerate(self.data.indices) if polynomial(i).get((slide.tap.var,)))


def match_convolution(stage: object, constants: Container[str]) -> Convolution | None:
    """The convolution that a step computes, None where it computes none.

    Args:
        stage: a step of a program.
        constants: names of constant buffers.
    """
    if not isinstance(stage, Computation) or stage.reducer is not Reducer.SUM or stage.output.dtype != float32:
        return None
    product = stage.body
    if not (isinstance(product, Binary) and product.op == "mul"):
        return None
    for data, weights in ((product.a, product.b), (product.b, product.a)):
        if not (isinstance(data, Load) and isinstance(weights, Load)):
            return None
        if weights.buffer.name in constants and data.buffer.name not in constants:
            return _match_operands(stage, data, weights)
    return None


def _match_operands(stage: Computation, data: Load, weights: Load) -> Convolution | None:
    reduce_axes = {a.var: a for a in stage.reduce_axes}
    weight_vars = [i for i in weights.indices if isinstance(i, Var)]
    literals = sum(isinstance(i, Const) for i in weights.indices)
    if (
        len(weight_vars) + literals != len(weights.indices)
        or len(set(weight_vars)) != len(weight_vars)
        or not reduce_axes.keys() <= set(weight_vars)
    ):
        return None
    axes = {a.var: a for a in stage.axes}
    slides: list[SpatialAxis] = []
    unit_indices: list[Expr] = []
    for index in data.indices:
        slide = _match_spatial_axis(index, axes, reduce_axes)
        if slide is None:
            unit_indices.append(index)
        else:
            slides.append(slide)
    spatial_vars = {s.axis.var for s in slides}
    taps = {s.tap.var for s in slides}
    channels = [a for v, a in reduce_axes.items() if v not in taps]
    outputs = [axes[v] for v in weight_vars if v in axes]
    batch = [a for v, a in axes.items() if v not in spatial_vars and a not in outputs]
    kinds_fit = len(channels) == len(outputs) == 1 and slides and len(taps) == len(spatial_vars) == len(slides)
    expected = {*(a.var for a in batch), *(a.var for a in channels)}
    if (
        not kinds_fit
        or set(unit_indices) != expected
        or len(unit_indices) != len(expected)
        or outputs[0].var in spatial_vars
    ):
        return None
    return Convolution(stage, data, weights, tuple(batch), tuple(slides), outputs[0], channels[0])


def _match_spatial_axis(index: Expr, axes: dict[Var, Axis], reduce_axes: dict[Var, Axis]) -> SpatialAxis | None:
    """`axis + tap` with a tap of literal extent."""
    terms = polynomial(index)
    if len(terms) != 2 or any(c != 1 or len(m) != 1 for m, c in terms.items()):
        return None
    variables = [m[0] for m in terms]
    axis = next((axes[v] for v in variables if isinstance(v, Var) and v in axes), None)
    tap = next((reduce_axes[v] for v in variables if isinstance(v, Var) and v in reduce_axes), None)
    if axis is None or tap is None or not isinstance(tap.extent, Const) or tap.extent.value < 1:
        return None
    return SpatialAxis(axis, tap)
