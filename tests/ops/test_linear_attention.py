"""LinearAttention and CausalConvWithState against ONNX's reference."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Symbol

RNG = np.random.default_rng(83)
RULES = ["linear", "gated", "delta", "gated_delta"]


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def operands(rule, heads=4, groups=2, steps=5, depth=3, size=6, *, common=False):
    decay = -RNG.random((2, steps, groups if common else groups * depth)).astype(np.float32)
    rates = RNG.random((2, steps, 1 if common else groups)).astype(np.float32)
    return [
        normal(2, steps, heads * depth), normal(2, steps, groups * depth), normal(2, steps, groups * size), None,
        decay if rule.startswith("gated") else None, rates if rule.endswith("delta") else None,
    ]  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("has_past", [False, True])
def test_rules(rule, heads, common, has_past):
    inputs = operands(rule, heads, common=common)
    inputs[3] = normal(2, 2, 3, 6) if has_past else None
    attributes = {"q_num_heads": heads, "kv_num_heads": 2, "update_rule": rule, "scale": 0.0 if common else 0.4}
    sizes = {(k, a): Symbol("bt"[a], 0, 99) for k in (0, 1, 2, 4, 5) if inputs[k] is not None for a in (0, 1)}
    sizes |= {(3, 0): Symbol("b", 0, 99)} if has_past else {}
    case = NodeCase("LinearAttention", inputs, attributes, opset=27, outputs=2)
    check(case, constants=(), symbolic=False, sizes=sizes, tolerance=Tolerance(1e-4, 1e-5))


def test_half_precision():
    inputs = [x if x is None else x.astype(np.float16) for x in operands("gated_delta")]
    case = NodeCase("LinearAttention", inputs, {"q_num_heads": 4, "kv_num_heads": 2}, opset=27, outputs=2)
    check(case, constants=(), symbolic=False, tolerance=Tolerance(3e-3, 3e-3))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"q_num_heads": 3}, "a positive kv_num_heads that divides q_num_heads, got 2 and 3"),
        ({"kv_num_heads": 0}, "a positive kv_num_heads that divides q_num_heads, got 0 and 4"),
        ({"update_rule": "delta_gated"}, "update_rule: expected linear, gated, delta or gated_delta"),
        ({"update_rule": "delta"}, "update_rule delta: expected no input decay"),
        ({"update_rule": "gated"}, "update_rule gated: expected no input beta"),
        ({"q_num_heads": 8}, "query: expected a multiple of 8 heads, got 12"),
    ],
)
def test_rejections(attributes, message):
    attributes = {"q_num_heads": 4, "kv_num_heads": 2} | attributes
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("LinearAttention", operands("gated_delta"), attributes, opset=27))


@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize(("length", "taps"), [(7, 3), (1, 4), (5, 1)])
def test_causal_convolutions(length, taps, has_past, activation):
    past = normal(2, 4, taps - 1) if has_past else None
    for bias in (None, normal(4)):
        inputs = [normal(2, 4, length), normal(4, 1, taps), bias, past]
        sizes = {(0, 2): Symbol("t", 1, 99)}
        case = NodeCase("CausalConvWithState", inputs, {"activation": activation}, opset=27, outputs=2)
        check(case, constants=(), symbolic=False, sizes=sizes, tolerance=Tolerance(1e-4, 1e-5))


def test_causal_convolution_rejects():
    for inputs, message in (
        ([normal(2, 4, 7), normal(3, 1, 2)], "weight: expected shape"),
        ([normal(2, 4, 7), normal(4, 1, 3), None, normal(2, 4, 3)], "past_state: expected shape"),
        ([normal(2, 4, 7), normal(4, 1, 3), normal(3)], "bias: expected 4, got 3"),
        ([normal(2, 4, 7), normal(4, 1, 0)], "weight: expected at least one tap, got 0"),
    ):
        with pytest.raises(ShapeError, match=message):
            define(NodeCase("CausalConvWithState", inputs, opset=27))
    case = NodeCase("CausalConvWithState", [normal(2, 4, 7), normal(4, 1, 2)], {"activation": "relu"}, opset=27)
    with pytest.raises(ShapeError, match="activation: expected none, silu or swish, got 'relu'"):
        define(case)
