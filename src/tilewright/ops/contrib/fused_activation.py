"""Activations that ONNX Runtime's optimizers fuse into the convolution or matrix product before them.

They are named by an attribute, and their parameters are further attributes.
"""

from collections.abc import Callable

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, maximum, minimum, select, unary
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition

Activation = Callable[[Expr], Expr]
"""A function of one element."""

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _relu(x: Expr) -> Expr:
    return maximum(x, const(0, x.dtype))


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return maximum(minimum(x * alpha + beta, const(1, x.dtype)), const(0, x.dtype))


_WITHOUT_PARAMETERS: dict[str, Activation] = {
    "Relu": _relu,
    "Tanh": lambda x: unary("tanh", x),
    "Sigmoid": lambda x: unary("sigmoid", x),
    "HardSwish": lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5),
    "Softplus": lambda x: unary("softplus", x),
    "Softsign": lambda x: x / (unary("abs", x) + 1),
}
"""Activations without parameters."""


def conv_activation(d: Definition) -> Activation | None:
    """The activation that a convolution names in `activation`, with `activation_params`; None where it names none.

    Raises:
        ShapeError: it has too few parameters.
        UnsupportedError: it is not known.
    """
    name = d.attr_str("activation", "")
    listed = d.attributes.get("activation_params", ())
    parameters = tuple(float(v) for v in listed)

    def parameter(position: int) -> float:
        if position >= len(parameters):
            what = f"activation_params: expected {position + 1} or more for {name}, got {len(parameters)}"
            raise ShapeError(what, where=f"node {d.label}")
        return parameters[position]

    if name == "LeakyRelu":
        return _computed_in_float(_leaky_relu(parameter(0)))
    if name == "Clip":
        low, high = parameter(0), parameter(1)
        return lambda x: minimum(maximum(x, const(low, x.dtype)), const(high, x.dtype))
    if name == "HardSigmoid":
        alpha, beta = parameter(0), parameter(1)
        return _computed_in_float(lambda x: _hard_sigmoid(x, alpha, beta))
    return _plain(d, name)


def gemm_activation(d: Definition) -> Activation | None:
    """The activation that a matrix product names in `activation`, with `activation_alpha`, `activation_beta` and
    `activation_gamma`; None where it names none.

    Raises:
        UnsupportedError: it is not known.
    """
    name = d.attr_str("activation", "")
    makers: dict[str, tuple[float, float, float, Callable[[float, float, float], Activation]]] = {
        "LeakyRelu": (0.01, 0.0, 0.0, lambda a, b, c: _leaky_relu(a)),
        "HardSigmoid": (0.2, 0.5, 0.0, lambda a, b, c: lambda x: _hard_sigmoid(x, a, b)),
        "Elu": (1.0, 0.0, 0.0, lambda a, b, c: lambda x: select(x > 0, x, unary("expm1", x) * a)),
        "Celu": (1.0, 0.0, 0.0, lambda a, b, c: lambda x: select(x > 0, x, unary("expm1", x / a) * a)),
        "ThresholdedRelu": (1.0, 0.0, 0.0, lambda a, b, c: lambda x: select(x > a, x, 0)),
        "Selu": (
            _SELU_ALPHA, 0.0, _SELU_GAMMA, lambda a, b, c: lambda x: select(x > 0, x, unary("expm1", x) * a) * c,
        ),
    }  # fmt: skip
    alpha, beta, gamma, make = makers.get(name, (0.0, 0.0, 0.0, None))
    alpha, beta, gamma = (
        d.attr_float(f"activation_{p}", v) for p, v in (("alpha", alpha), ("beta", beta), ("gamma", gamma))
    )
    return _plain(d, name) if make is None else _computed_in_float(make(alpha, beta, gamma))


def _leaky_relu(alpha: float) -> Activation:
    return lambda x: select(x < 0, x * alpha, x)


def _plain(d: Definition, name: str) -> Activation | None:
    if not name:
        return None
    if name not in _WITHOUT_PARAMETERS:
        raise d.unsupported(f"activation {name} is not supported")
    return _computed_in_float(_WITHOUT_PARAMETERS[name])


def _computed_in_float(function: Activation) -> Activation:
    """The function computed in float32 on 16-bit floats."""
    return lambda x: cast(x.dtype, function(cast(accumulator_dtype(x.dtype), x)))
