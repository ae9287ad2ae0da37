"""Adam, Adagrad and Momentum: one step of an optimizer for a list of tensors, as ONNX's training operators have it.

Inputs are a learning rate, the number of steps so far, and for each kind of state the tensors in one order; outputs are
the new tensors, kind by kind.
"""

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import binary, cast, select, unary
from tilewright.ops.checks import expect_dtype, expect_one_element, expect_shape
from tilewright.ops.definition import Definition, OpValue, operator

_DOMAIN = "ai.onnx.preview.training"

_Step = Callable[[Expr, Expr, Sequence[Expr]], tuple[Expr, ...]]
"""New elements, given the rate, the number of steps and the elements: the tensor, its gradient, and its state."""


@operator("Adagrad", domain=_DOMAIN)
def adagrad(d: Definition) -> tuple[OpValue, ...]:
    """The tensor minus its gradient over the root of the sum of squares of all gradients"""
    decay, norm = d.attr_float("decay_factor", 0.0), d.attr_float("norm_coefficient", 0.0)
    epsilon = d.attr_float("epsilon", 1e-6)

    def step(rate: Expr, steps: Expr, values: Sequence[Expr]) -> tuple[Expr, ...]:
        x, gradient, squares = values
        regularized = x * norm + gradient
        added = squares + regularized * regularized
        slower = rate / (cast(x.dtype, steps) * decay + 1.0)
        return x - slower * regularized / (unary("sqrt", added) + epsilon), added

    return _stepped(d, 3, step)


@operator("Adam", domain=_DOMAIN)
def adam(d: Definition) -> tuple[OpValue, ...]:
    """The tensor minus the mean of gradients over the root of the mean of their squares, both of which forget"""
    alpha, beta, epsilon = d.attr_float("alpha", 0.9), d.attr_float("beta", 0.999), d.attr_float("epsilon", 1e-6)
    norm, norm_after = d.attr_float("norm_coefficient", 0.0), d.attr_float("norm_coefficient_post", 0.0)

    def step(rate: Expr, steps: Expr, values: Sequence[Expr]) -> tuple[Expr, ...]:
        x, gradient, mean, squares = values
        regularized = x * norm + gradient
        new_mean = mean * alpha + regularized * (1.0 - alpha)
        new_squares = squares * beta + regularized * regularized * (1.0 - beta)
        count = cast(x.dtype, steps)

        def remainder(factor: float) -> Expr:
            return 1.0 - binary("pow", const(factor, x.dtype), count)

        corrected = rate * unary("sqrt", remainder(beta)) / remainder(alpha)
        adjusted = select(steps > 0, corrected, rate)
        result = (x - adjusted * (new_mean / (unary("sqrt", new_squares) + epsilon))) * (1.0 - norm_after)
        return result, new_mean, new_squares

    return _stepped(d, 4, step)


@operator("Momentum", domain=_DOMAIN)
def momentum(d: Definition) -> tuple[OpValue, ...]:
    """The tensor minus a sum of gradients that forgets, with Nesterov's correction or without

    Raises:
        ShapeError: the mode is neither "standard" nor "nesterov".
    """
    alpha, beta, norm = (d.attr_float(name, 0.0) for name in ("alpha", "beta", "norm_coefficient"))
    mode = d.attr_str("mode", "")
    if mode not in ("standard", "nesterov"):
        raise ShapeError(f"mode: expected standard or nesterov, got {mode!r}", where=f"node {d.label}")

    def step(rate: Expr, steps: Expr, values: Sequence[Expr]) -> tuple[Expr, ...]:
        x, gradient, velocity = values
        regularized = x * norm + gradient
        factor = select(steps > 0, const(beta, x.dtype), const(1.0, x.dtype))
        added = velocity * alpha + factor * regularized
        change = added if mode == "standard" else regularized + added * alpha
        return x - rate * change, added

    return _stepped(d, 3, step)


def _stepped(d: Definition, kinds: int, step: _Step) -> tuple[OpValue, ...]:
    """The new tensors; `kinds` is the number of inputs for each of them."""
    rate, steps = expect_one_element(d, d.input(0), "R"), expect_one_element(d, d.input(1), "T")
    count, rest = divmod(len(d.operands) - 2, kinds)
    if rest or count < 1:
        what = f"expected {pluralize(kinds, 'input')} for each tensor, got {len(d.operands) - 2}"
        raise ShapeError(what, where=f"node {d.label}")
    results: list[list[OpValue]] = [[] for _ in range(kinds - 1)]
    for k in range(count):
        values = [d.input(2 + kind * count + k) for kind in range(kinds)]
        dtype = values[0].dtype
        for kind, x in enumerate(values):
            expect_shape(d, x, values[0].shape, f"input {2 + kind * count + k}")
            expect_dtype(d, x, dtype, f"input {2 + kind * count + k}")
        if dtype.bits < float32.bits or rate.dtype.bits < float32.bits:
            raise d.unsupported(f"tensors of type {dtype} and a rate of type {rate.dtype}")
        for place in range(kinds - 1):
            results[place].append(_new_tensor(d, values, partial(step, cast(dtype, rate), steps), place))
    return tuple(x for kind in results for x in kind)


def _new_tensor(
    d: Definition, values: Sequence[OpValue], step: Callable[[Sequence[Expr]], tuple[Expr, ...]], place: int
) -> OpValue:
    """Result `place` of a step for one tensor and its state."""
    return d.compute(values[0].shape, lambda *i: step([x[i] for x in values])[place])
