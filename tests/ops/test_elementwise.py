"""Element-wise operators against ONNX's reference evaluator."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.harness import EXACT, NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Binary, Select
from tilewright.expr.traversal import post_order

rng = np.random.default_rng(7)


def floats(*shape, dtype=np.float32, low=-3.0, high=3.0):
    return rng.uniform(low, high, shape).astype(dtype)


def ints(*shape, dtype=np.int64, low=-9, high=10):
    return rng.integers(low if np.dtype(dtype).kind == "i" else 0, high, shape).astype(dtype)


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -2.5, 3.5], np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    "op",
    ["Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh",
     "Erf", "Floor", "Ceil", "Round", "Reciprocal", "Abs", "Neg", "Sign"],
)  # fmt: skip
def test_unary_functions(op, dtype):
    if op == "Erf" and dtype == np.float64:
        exact = np.vectorize(math.erf, otypes=[np.float64])
        check(NodeCase(op, [floats(3, 4, dtype=dtype)]), reference=exact)
        return
    low, high = {"Acosh": (1, 4), "Log": (0.1, 4), "Sqrt": (0, 4), "Reciprocal": (0.3, 2)}.get(op, (-0.95, 0.95))
    check(NodeCase(op, [floats(3, 1, 4, dtype=dtype, low=low, high=high)]))


@pytest.mark.parametrize("op", ["Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sqrt", "Exp", "Relu", "IsNaN"])
def test_special_values(op):
    check(NodeCase(op, [SPECIAL]))


@pytest.mark.parametrize("op", ["Abs", "Neg", "Sign"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_unary_functions_of_integers(op, dtype):
    check(NodeCase(op, [ints(4, 3, dtype=dtype)]))


def test_abs_of_unsigned():
    check(NodeCase("Abs", [ints(4, dtype=np.uint8, high=255)]))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Relu", {}), ("LeakyRelu", {}), ("LeakyRelu", {"alpha": 0.3}), ("Elu", {"alpha": 1.7}), ("Selu", {}),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}), ("Celu", {"alpha": 2.0}), ("ThresholdedRelu", {"alpha": 0.6}),
        ("Sigmoid", {}), ("Tanh", {}), ("Softplus", {}), ("Softsign", {}), ("HardSigmoid", {}),
        ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.4}), ("HardSwish", {}), ("Mish", {}), ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}), ("Shrink", {"lambd": 1.5, "bias": 0.5}), ("Swish", {"alpha": 1.3}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_activations(op, attributes, dtype):
    x = floats(2, 3, 5, dtype=dtype, low=-6, high=6)
    if op == "Swish":
        wide = x.astype(np.float64)
        reference = (wide / (1 + np.exp(-1.3 * wide))).astype(dtype)
        check(
            NodeCase(op, [x], attributes),
            reference=lambda _: reference,
            tolerance=Tolerance(atol=1e-3 if dtype == np.float16 else 1e-6),
        )
    else:
        check(
            NodeCase(op, [x], attributes),
            tolerance=Tolerance(2e-2 if dtype == np.float16 else 2e-5, 1e-2 if dtype == np.float16 else 2e-6),
        )


def test_large_arguments_stay_finite():
    x = np.array([-200.0, 200.0, -88.0, 89.0], np.float32)
    for op in ("Sigmoid", "Softplus", "Mish", "Elu", "Gelu"):
        assert np.isfinite(
            check(NodeCase(op, [x]), reference=lambda a, op=op: _exact(op, a), tolerance=Tolerance(1e-5))[0]
        ).all()


def _exact(op, x):
    x = x.astype(np.float64)
    soft = np.logaddexp(x, 0)
    result = {
        "Sigmoid": np.exp(-np.logaddexp(-x, 0)), "Softplus": soft, "Mish": x * np.tanh(soft),
        "Elu": np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        "Gelu": x * 0.5 * (1 + np.array([math.erf(v / math.sqrt(2)) for v in x])),
    }  # fmt: skip
    return result[op].astype(np.float32)


@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((4,), (2, 3, 4)), ((), (3, 2)), ((1, 5), (5, 1))]
)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Mean", "PRelu"])
def test_two_operands_broadcast(op, shapes):
    if op == "PRelu" and (len(shapes[0]) < len(shapes[1]) or shapes[0] == (1, 5)):
        shapes = ((2, 3, 4), (3, 1))
    a, b = floats(*shapes[0], low=0.2), floats(*shapes[1], low=0.2)
    if op == "PRelu":
        a -= 1.5
    check(NodeCase(op, [a, b]), reference=_mean if op == "Mean" else "onnx")


def _mean(*operands):
    return np.mean(np.broadcast_arrays(*operands), axis=0, dtype=np.float32)


@pytest.mark.parametrize("opset", [7, 13, 21])
@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Mean"])
def test_arithmetic_in_every_opset(op, opset):
    check(NodeCase(op, [floats(3, 4), floats(4)], opset=opset))


@pytest.mark.parametrize("op", ["Min", "Max", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_variadic_operators(op, count):
    operands = [floats(2, 3) if k % 2 else floats(3) for k in range(count)]
    check(NodeCase(op, operands), reference=_mean if op == "Mean" else "onnx")


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint32])
def test_integer_division_rounds_towards_zero(dtype):
    a, b = ints(200, dtype=dtype, low=-40, high=40), ints(200, dtype=dtype, low=-7, high=8)
    b[b == 0] = 3
    check(NodeCase("Div", [a, b]), constants=(), reference=lambda x, y: np.trunc(x / y).astype(x.dtype))
    check(NodeCase("Mod", [a, b]), constants=())
    check(NodeCase("Mod", [a, b], {"fmod": 1}), constants=())
    for divisor in (1, 3, -2) if np.dtype(dtype).kind == "i" else (1, 3):
        c = np.array(divisor, dtype)
        check(NodeCase("Div", [a, c]), reference=lambda x, y: np.trunc(x / y).astype(x.dtype))
        check(NodeCase("Mod", [a, c]))
        check(NodeCase("Mod", [a, c], {"fmod": 1}))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_division_by_zero_and_overflow_do_not_trap(dtype):
    a = np.array([5, 0, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    b = np.array([0, 0, -1 if np.dtype(dtype).kind == "i" else 1, 2], dtype)
    for op, attributes in (("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})):
        d, _ = define(NodeCase(op, [a, b], attributes), constants=())
        divisors = [e for stage in d.stages for e in _divisors(stage)]
        # Every divisor is a choice that replaces zero; literals are not zero.
        assert divisors
        assert all(isinstance(e, Select) for e in divisors)
    smallest, largest = a[2], a[3]
    expected = np.array([smallest, largest // 2], dtype)  # negating the smallest number wraps around to itself
    check(NodeCase("Div", [a[2:], b[2:]]), constants=(), reference=lambda *_: expected)


def _divisors(stage):
    assert isinstance(stage, Computation)
    return [e.b for e in post_order(stage.body) if isinstance(e, Binary) and e.op in ("floordiv", "mod", "fmod")]


def test_float_remainder():
    check(NodeCase("Mod", [floats(30, low=-9, high=9), floats(30, low=1, high=3)], {"fmod": 1}))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, -1, 0.5, 2.5])
def test_power_with_a_literal_exponent(exponent):
    check(NodeCase("Pow", [floats(3, 4, low=0.2), np.array(exponent, np.float32)]), tolerance=Tolerance(1e-6))


@pytest.mark.parametrize(
    ("base", "exponent"),
    [(np.float32, np.int64), (np.int64, np.float32), (np.int32, np.int32), (np.float16, np.float32)],
)
def test_power_of_mixed_types(base, exponent):
    a = ints(4, 3, low=1, high=5).astype(base)
    check(NodeCase("Pow", [a, np.array([0, 2, 3], exponent)]), constants=())
    check(NodeCase("Pow", [a, np.array([0, 2, 3], exponent)]), constants=(1,))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (None, 1.0), (0.5, None), (None, None)])
@pytest.mark.parametrize("opset", [7, 11, 13])
def test_clip(low, high, opset):
    x = floats(4, 5)
    if opset < 11:
        attributes = {k: v for k, v in (("min", low), ("max", high)) if v is not None}
        check(
            NodeCase("Clip", [x], attributes, opset=opset),
            reference=lambda a: np.clip(a, low, high) if attributes else a,
        )
        return
    limits = [None if v is None else np.array(v, np.float32) for v in (low, high)]
    check(NodeCase("Clip", [x, *limits], opset=opset))
    check(NodeCase("Clip", [x, *limits], opset=opset), constants=())


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (None, 1.0), (0.5, None), (None, None), (-np.inf, np.inf)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("opset", [6, 13])
def test_clip_makes_infinities_finite_without_a_limit(low, high, dtype, opset):
    x = floats(9).astype(dtype)
    x[[1, 4, 7]] = np.inf, -np.inf, np.nan
    if opset >= 11:
        limits = [None if v is None else np.array(v, dtype) for v in (low, high)]
        check(NodeCase("Clip", [x, *limits], opset=opset), reference="ort", tolerance=EXACT)
    elif dtype == np.float32:
        attributes = {k: v for k, v in (("min", low), ("max", high)) if v is not None}
        check(NodeCase("Clip", [x], attributes, opset=opset), reference="ort", tolerance=EXACT)


def test_clip_of_integers_and_one_element_limits():
    check(NodeCase("Clip", [ints(10), np.array(-2), np.array(4)]))
    check(
        NodeCase("Clip", [floats(10), np.array([0.0], np.float32), np.array([1.0], np.float32)]),
        reference=lambda x, a, b: x.clip(0, 1),
    )


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_comparisons(op, dtype):
    check(NodeCase(op, [ints(4, 6, low=0, high=3).astype(dtype), ints(6, low=0, high=3).astype(dtype)]))


def test_comparisons_with_nan_are_false():
    for op in ("Equal", "Less", "GreaterOrEqual"):
        check(NodeCase(op, [SPECIAL, SPECIAL[::-1].copy()]))


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op):
    check(NodeCase(op, [ints(3, 4, low=0, high=2).astype(bool), ints(4, low=0, high=2).astype(bool)]), constants=())


def test_not():
    check(NodeCase("Not", [ints(9, low=0, high=2).astype(bool)]))


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_bitwise_operators(op, dtype):
    operands = [ints(3, 4, dtype=dtype, high=100), ints(4, dtype=dtype, high=100)]
    check(NodeCase(op, operands[: 1 if op == "BitwiseNot" else 2]), constants=())


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction):
    a, b = ints(3, 4, dtype=np.uint8, high=200), ints(4, dtype=np.uint8, high=7)
    check(NodeCase("BitShift", [a, b], {"direction": direction}), constants=())
    wide = np.full(4, 9, np.uint8)
    check(
        NodeCase("BitShift", [a, wide], {"direction": direction}), constants=(), reference=lambda x, y: np.zeros_like(x)
    )


@pytest.mark.parametrize("reference", ["onnx", "ort"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_bit_shift_of_signed_integers(dtype, direction, reference):
    """Also by negative numbers, and by the width or more: what the sign extends to is left."""
    bits, info = np.iinfo(dtype).bits, np.iinfo(dtype)
    a = np.array([-8, -1, info.min, info.max, *ints(6, low=-100, high=100)], dtype)
    b = np.array([[0], [1], [3], [bits - 1], [bits], [bits + 1], [100], [-1], [info.min]], dtype)
    values = check(NodeCase("BitShift", [a, b], {"direction": direction}, opset=28), constants=(), reference=reference)[
        0
    ]
    if direction == "RIGHT":
        assert values[4, 0] == -1


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_where(dtype):
    a, b = ints(3, 1).astype(dtype), ints(2, 1, 4).astype(dtype)
    check(NodeCase("Where", [ints(3, 4, low=0, high=2).astype(bool), a, b]), constants=())


@pytest.mark.parametrize(("negative", "positive"), [(0, 1), (1, 0), (1, 1), (0, 0)])
def test_is_inf(negative, positive):
    check(NodeCase("IsInf", [SPECIAL], {"detect_negative": negative, "detect_positive": positive}))
    check(
        NodeCase(
            "IsInf", [SPECIAL.astype(np.float16)], {"detect_negative": negative, "detect_positive": positive}, opset=20
        )
    )


@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, bool])
@pytest.mark.parametrize("target", [1, 2, 3, 6, 7, 9, 10, 11, 12])
def test_cast(source, target):
    check(NodeCase("Cast", [floats(6, low=0, high=90).astype(source)], {"to": target}))


def test_cast_like_and_bfloat16():
    check(NodeCase("CastLike", [floats(5), ints(1, dtype=np.int32)]), constants=())
    import ml_dtypes

    x = floats(5)
    check(
        NodeCase("Cast", [x], {"to": 16}), reference=lambda a: a.astype(ml_dtypes.bfloat16), tolerance=Tolerance(0, 0)
    )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_broadcast_of_random_shapes(data):
    full = data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    shapes = [
        [1 if data.draw(st.booleans()) else n for n in full[data.draw(st.integers(0, len(full))) :]] for _ in range(3)
    ]
    check(NodeCase("Sum", [floats(*s) for s in shapes]))


def test_dropout_and_identity_are_views():
    x = floats(3, 4)
    for op, opset in (("Dropout", 7), ("Dropout", 12), ("Dropout", 13), ("Identity", 14)):
        check(NodeCase(op, [x], opset=opset))
        assert define(NodeCase(op, [x], opset=opset))[0].stages == []
    check(NodeCase("Dropout", [x], opset=13, outputs=2))
    check(NodeCase("Dropout", [x, np.array(0.3, np.float32), np.array(False)], opset=13))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "message"),
    [
        ("Add", [floats(2), floats(3)], {}, ShapeError,
         "[shape] node node (Add): broadcast along dimension 0: sizes 2 and 3 differ"),
        ("Add", [floats(2), ints(2)], {}, ShapeError,
         "[shape] node node (Add): input 1: expected type float32, got int64"),
        ("Add", [floats(2), None], {}, ShapeError, "[shape] node node (Add): input 1 is missing"),
        ("Max", [], {}, ShapeError, "[shape] node node (Max): expected at least 1 input, got 0"),
        ("Exp", [ints(3)], {}, ShapeError,
         "[shape] node node (Exp): input 0: expected a floating-point type, got int64"),
        ("Mod", [floats(2), floats(2)], {}, ShapeError,
         "[shape] node node (Mod): expected fmod=1 for floating-point inputs, got fmod=0"),
        ("Clip", [floats(2), floats(2), floats(1)], {}, ShapeError,
         "[shape] node node (Clip): input 1: expected one element, got shape [2]"),
        ("Clip", [floats(2), np.array(1)], {}, ShapeError,
         "[shape] node node (Clip): input 1: expected type float32, got int64"),
        ("And", [floats(2), floats(2)], {}, ShapeError,
         "[shape] node node (And): input 0: expected type bool, got float32"),
        ("Where", [floats(2), floats(2), floats(2)], {}, ShapeError,
         "[shape] node node (Where): input 0 (condition): expected type bool, got float32"),
        ("Where", [np.array([True]), floats(2), ints(2)], {}, ShapeError,
         "[shape] node node (Where): input 2: expected type float32, got int64"),
        ("BitwiseAnd", [floats(2), floats(2)], {}, ShapeError,
         "[shape] node node (BitwiseAnd): input 0: expected an integer type, got float32"),
        ("BitShift", [ints(2, dtype=np.uint8), ints(2, dtype=np.uint8)], {"direction": "UP"}, ShapeError,
         "[shape] node node (BitShift): direction: expected LEFT or RIGHT, got 'UP'"),
        ("Gelu", [floats(2)], {"approximate": "fast"}, ShapeError,
         "[shape] node node (Gelu): approximate: expected none or tanh, got fast"),
        ("Cast", [floats(2)], {}, ShapeError, "[shape] node node (Cast): attribute to is missing"),
        ("Cast", [floats(2)], {"to": 8}, UnsupportedError, "[unsupported] node node (Cast): element type number 8"),
        ("Shrink", [ints(2)], {"lambd": 0.5}, UnsupportedError,
         "[unsupported] node node (Shrink): fractional lambd 0.5 or bias 0.0 with type int64"),
        ("Dropout", [floats(2), None, np.array(True)], {}, UnsupportedError,
         "[unsupported] node node (Dropout): training_mode is true"),
    ],
)  # fmt: skip
def test_elementwise_rejects(op, inputs, attributes, error, message):
    with pytest.raises(error) as raised:
        define(NodeCase(op, inputs, attributes))
    assert str(raised.value) == message


def test_arithmetic_identities_are_views():
    x, one = floats(3, 4), np.array([1.0], np.float32)
    for op, inputs in (("Mul", [x, one]), ("Div", [x, one]), ("Pow", [x, one]), ("Expand", [x, np.array([1, 3, 4])])):
        d, _ = define(NodeCase(op, inputs), constants=(1,))
        assert not any(isinstance(s, Computation) for s in d.stages)
        check(NodeCase(op, inputs), constants=(1,), symbolic=False)
    d, _ = define(NodeCase("Mul", [x, np.ones((4, 3, 4), np.float32)]), constants=())
    assert any(isinstance(s, Computation) for s in d.stages)
