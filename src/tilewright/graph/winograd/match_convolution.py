"""Which computations are filters that slide over an input by single steps, read off their expressions.

    out[n, o, y, x] = sum(data[n, c, y + k, x + l] * weights[o, c, k, l] for c, k, l)

in any number of dimensions and any order of indices. Strides, dilations and groups have other indices and are none.
"""

from collections.abc import Container
from dataclasses import dataclass

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Binary, Const, Expr, Load, Var


@dataclass(frozen=True, slots=True)
class SpatialAxis:
    """A dimension along which the filter moves.

    Attributes:
        axis: of the results.
        tap: the reduction axis of the filter, of literal extent.
    """

    axis: Axis
    tap: Axis

    @property
    def taps(self) -> int:
        """Elements of the filter."""
        assert isinstance(self.tap.extent, Const)
        return int(self.tap.extent.value)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A sliding filter.

    Attributes:
        stage: the sum.
        data: the load of the input.
        weights: the load of the filter, a constant; where it has one tap the index is a literal.
        batch: axes of the results that the filter does not know.
        slides: dimensions along which it moves.
        outputs: the axis of the results that the input does not know.
        channels: the reduction axis that both operands have.
    """

    stage: Computation
    data: Load
    weights: Load
    batch: tuple[Axis, ...]
    spatial: tuple[SpatialAxis, ...]
    output_channels: Axis
    input_channels: Axis

    def input_dimension(self, slide: SpatialAxis) -> int:
        """The dimension of the input along which the filter moves."""
        return next(k for k, i in enumerate(self.data.indices) if polynomial(i).get((slide.tap.var,)))


def match_convolution(stage: object, constants: Container[str]) -> Convolution | None:
    """The sliding filter that a step of a program is, None where it is none.

    Args:
        stage: a step.
        constants: names of buffers whose data is known.
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
    inner = {a.var: a for a in stage.reduce_axes}
    own = [i for i in weights.indices if isinstance(i, Var)]
    fixed = sum(isinstance(i, Const) for i in weights.indices)
    if len(own) + fixed != len(weights.indices) or len(set(own)) != len(own) or not inner.keys() <= set(own):
        return None
    outer = {a.var: a for a in stage.axes}
    slides: list[SpatialAxis] = []
    plain: list[Expr] = []
    for index in data.indices:
        slide = _match_spatial_axis(index, outer, inner)
        if slide is None:
            plain.append(index)
        else:
            slides.append(slide)
    moved = {s.axis.var for s in slides}
    taps = {s.tap.var for s in slides}
    channels = [a for v, a in inner.items() if v not in taps]
    outputs = [outer[v] for v in own if v in outer]
    batch = [a for v, a in outer.items() if v not in moved and a not in outputs]
    kinds_fit = len(channels) == len(outputs) == 1 and slides and len(taps) == len(moved) == len(slides)
    wanted = {*(a.var for a in batch), *(a.var for a in channels)}
    if not kinds_fit or set(plain) != wanted or len(plain) != len(wanted) or outputs[0].var in moved:
        return None
    return Convolution(stage, data, weights, tuple(batch), tuple(slides), outputs[0], channels[0])


def _match_spatial_axis(index: Expr, outer: dict[Var, Axis], inner: dict[Var, Axis]) -> SpatialAxis | None:
    """`axis + tap` with a tap of literal extent."""
    terms = polynomial(index)
    if len(terms) != 2 or any(c != 1 or len(m) != 1 for m, c in terms.items()):
        return None
    variables = [m[0] for m in terms]
    axis = next((outer[v] for v in variables if isinstance(v, Var) and v in outer), None)
    tap = next((inner[v] for v in variables if isinstance(v, Var) and v in inner), None)
    if axis is None or tap is None or not isinstance(tap.extent, Const) or tap.extent.value < 1:
        return None
    return SpatialAxis(axis, tap)
