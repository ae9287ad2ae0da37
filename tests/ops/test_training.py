"""Steps of training operators against ONNX's reference."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define, reference_outputs

from tilewright.errors import ShapeError

RNG = np.random.default_rng(97)
DOMAIN = "ai.onnx.preview.training"
KINDS = {"Adagrad": 3, "Adam": 4, "Momentum": 3}


def operands(op, shapes, steps):
    tensors = [RNG.random(s).astype(np.float32) + 0.1 for _ in range(KINDS[op]) for s in shapes]
    return [np.float32(0.1), np.int64(steps), *tensors]


@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("shapes", [[(3,)], [(2, 3), (1, 4)], [(0, 2)]])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Adagrad", {"norm_coefficient": 0.01, "epsilon": 1e-5, "decay_factor": 0.1}),
        ("Adam", {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.98, "epsilon": 1e-5}),
        ("Adam", {"norm_coefficient_post": 0.2, "alpha": 0.8, "beta": 0.9}),
        ("Momentum", {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.7, "mode": "standard"}),
        ("Momentum", {"norm_coefficient": 0.0, "alpha": 0.9, "beta": 1.0, "mode": "nesterov"}),
    ],
)
def test_steps(op, attributes, shapes, steps):
    outputs = (KINDS[op] - 1) * len(shapes)
    case = NodeCase(op, operands(op, shapes, steps), attributes, outputs=outputs, domain=DOMAIN)
    # the reference corrects Adam's means in float64
    expected = [y.astype(np.float32) for y in reference_outputs("onnx", case)]
    tolerance = Tolerance(1e-5, 1e-6)
    check(case, constants=(), symbolic=False, tolerance=tolerance, reference=lambda *_: expected)


def test_rejections():
    attributes = {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.0, "mode": "fast"}
    with pytest.raises(ShapeError, match="mode: expected standard or nesterov, got 'fast'"):
        define(NodeCase("Momentum", operands("Momentum", [(3,)], 1), attributes, domain=DOMAIN))
    with pytest.raises(ShapeError, match="expected 4 inputs for each tensor, got 5"):
        define(NodeCase("Adam", [*operands("Adam", [(3,)], 1), np.ones(3, np.float32)], domain=DOMAIN))
    with pytest.raises(ShapeError, match="input 4: expected shape"):
        define(NodeCase("Adagrad", [*operands("Adagrad", [(3,)], 1)[:-1], np.ones(2, np.float32)], domain=DOMAIN))
