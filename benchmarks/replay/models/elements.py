"""Element-wise operators: arithmetic, functions, logic, casts, quantisation, broadcasts, and chains of them."""

from collections.abc import Sequence
from typing import Any

import onnx

from benchmarks.replay.models.build import Graph, Model, Models, tensor_type


def models() -> Models:
    """All of them."""
    for kinds in _CHAINS:
        yield Model(f"chain/{'_'.join(kinds).lower()}", lambda kinds=kinds: _chain(kinds, (6, 50)))
    yield Model("chain/dynamic", lambda: _chain(("Tanh", "Abs", "Sqrt"), ("n", 33)), ("n:1..1000",))
    yield Model("chain/float64", lambda: _chain(("Exp", "Sigmoid", "Tanh", "Erf"), (5, 31), "float64"))
    yield Model("chain/float16", lambda: _chain(("Exp", "Relu", "Tanh"), (5, 31), "float16"))
    for kind in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Mod"):
        yield Model(f"binary/{kind.lower()}", lambda kind=kind: _binary(kind, (12, 20), (12, 20)))
    yield Model("binary/row", lambda: _binary("Add", (12, 20), (20,)))
    yield Model("binary/column", lambda: _binary("Mul", (12, 20), (12, 1)))
    yield Model("binary/outer", lambda: _binary("Sub", (12, 1), (1, 20)))
    yield Model("binary/scalar", lambda: _binary("Div", (3, 4, 5), ()))
    yield Model("binary/channels", lambda: _binary("Add", (2, 6, 5, 7), (6, 1, 1)))
    yield Model("binary/dynamic", lambda: _binary("Add", ("n", 20), ("n", 20)))
    yield Model("binary/dynamic_row", lambda: _binary("Mul", ("n", "m"), ("m",)), ("n:1..64", "m:1..64"))
    for kind in ("Add", "Div", "Mod", "Min"):
        yield Model(f"integer/{kind.lower()}", lambda kind=kind: _binary(kind, (8, 30), (8, 30), "int32"))
    yield Model("integer/long", lambda: _binary("Mul", (8, 30), (30,), "int64"))
    yield Model("integer/bytes", lambda: _binary("Add", (8, 30), (8, 30), "uint8"))
    yield Model("integer/shift", _shift)
    yield Model("integer/bits", _bits)
    yield Model("logic/compare", _compare)
    yield Model("logic/where", _where)
    yield Model("logic/not_a_number", _not_a_number)
    for source, result in _CASTS:
        yield Model(f"cast/{source}_{result}", lambda source=source, result=result: _cast(source, result))
    yield Model("function/gelu", _gelu)
    yield Model("function/gelu_tanh", _gelu_tanh)
    yield Model("function/clip", _clip)
    yield Model("function/leaky", lambda: _one("LeakyRelu", alpha=0.1))
    yield Model("function/slope", _slope)
    yield Model("function/sums", _sums)
    yield Model("quantised/linear", lambda: _quantise(0))
    yield Model("quantised/linear_per_channel", lambda: _quantise(5))
    yield Model("quantised/dynamic", _dynamic_quantise)
    yield Model("quantised/there_and_back", _there_and_back)


_CHAINS = [
    ("Exp", "Log", "Neg"), ("Sin", "Cos", "Tan"), ("Sigmoid", "Softplus"), ("Tanh", "Erf"),
    ("Abs", "Sqrt", "Reciprocal"),
    ("Floor", "Ceil", "Round", "Sign"), ("Elu", "Selu", "Celu"), ("HardSigmoid", "HardSwish", "Mish"),
    ("Asin", "Atan"), ("Sinh", "Asinh"), ("Relu", "ThresholdedRelu", "Softsign"),
]  # fmt: skip

_CASTS = [
    ("float32", "int32"), ("int32", "float32"), ("float32", "float16"), ("float16", "float32"), ("float32", "bool"),
    ("float32", "uint8"), ("int8", "int64"), ("float64", "float32"), ("int64", "float64"), ("bool", "float32"),
    ("float32", "bfloat16"),
]  # fmt: skip


def _chain(kinds: Sequence[str], shape: Sequence[int | str], dtype: str = "float32") -> onnx.ModelProto:
    g = Graph()
    x = g.input(*shape, dtype=dtype)
    for kind in kinds:
        x = g.op(kind, x)
    return g.done(x, dtype=dtype)


def _one(kind: str, **attributes: Any) -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op(kind, g.input(4, 40), **attributes))


def _binary(kind: str, a: Sequence[int | str], b: Sequence[int | str], dtype: str = "float32") -> onnx.ModelProto:
    g = Graph()
    attributes = {"fmod": 1} if kind == "Mod" and dtype == "float32" else {}
    return g.done(g.op(kind, g.input(*a, dtype=dtype), g.input(*b, dtype=dtype), **attributes), dtype=dtype)


def _shift() -> onnx.ModelProto:
    g = Graph()
    x = g.input(6, 20, dtype="uint32")
    y = g.op("BitShift", x, g.constant([3], "uint32"), direction="LEFT")
    return g.done(g.op("BitShift", y, g.constant([1], "uint32"), direction="RIGHT"), dtype="uint32")


def _bits() -> onnx.ModelProto:
    g = Graph()
    x, y = g.input(6, 20, dtype="int32"), g.input(6, 20, dtype="int32")
    return g.done(g.op("BitwiseXor", g.op("BitwiseAnd", x, y), g.op("BitwiseNot", x)), dtype="int32")


def _compare() -> onnx.ModelProto:
    g = Graph()
    x, y = g.input(6, 30), g.input(6, 30)
    both = g.op("And", g.op("Less", x, y), g.op("Not", g.op("GreaterOrEqual", x, g.constant(0.0))))
    return g.done(g.op("Xor", both, g.op("Equal", x, y)), dtype="bool")


def _where() -> onnx.ModelProto:
    g = Graph()
    x, y = g.input(6, 30), g.input(30)
    return g.done(g.op("Where", g.op("Greater", x, g.constant(0.5)), x, y))


def _not_a_number() -> onnx.ModelProto:
    g = Graph()
    x = g.input(6, 30)
    return g.done(g.op("Where", g.op("Or", g.op("IsNaN", x), g.op("IsInf", x)), g.constant(0.0), x))


def _cast(source: str, result: str) -> onnx.ModelProto:
    g = Graph()
    number = onnx.TensorProto.BFLOAT16 if result == "bfloat16" else tensor_type(result)
    if result == "bfloat16":
        back = g.op("Cast", g.op("Cast", g.input(5, 37), to=number), to=onnx.TensorProto.FLOAT)
        return g.done(back)
    return g.done(g.op("Cast", g.input(5, 37, dtype=source), to=number), dtype=result)


def _gelu() -> onnx.ModelProto:
    g = Graph()
    x = g.input("n", 48)
    inner = g.op("Erf", g.op("Div", x, g.constant(1.41421356)))
    return g.done(g.op("Mul", g.op("Mul", x, g.op("Add", inner, g.constant(1.0))), g.constant(0.5)))


def _gelu_tanh() -> onnx.ModelProto:
    g = Graph(20)
    return g.done(g.op("Gelu", g.input(6, 48), approximate="tanh"))


def _clip() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Clip", g.input(6, 48), g.constant(0.0), g.constant(6.0)))


def _slope() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("PRelu", g.input(1, 6, 5, 7), g.weight(6, 1, 1)))


def _sums() -> onnx.ModelProto:
    g = Graph()
    x, y, z = g.input(6, 48), g.input(6, 48), g.input(48)
    return g.done(g.op("Mean", g.op("Sum", x, y, z), g.op("Max", x, y), g.op("Min", x, y)))


def _quantise(count: int) -> onnx.ModelProto:
    g = Graph()
    x = g.input(2, 5, 12)
    scale = g.constant([0.01 * (k + 1) for k in range(count)] if count else 0.02)
    zero = g.constant([100 + k for k in range(count)] if count else 128, "uint8")
    return g.done(g.op("QuantizeLinear", x, scale, zero, axis=1), dtype="uint8")


def _dynamic_quantise() -> onnx.ModelProto:
    g = Graph()
    results = g.ops("DynamicQuantizeLinear", 3, g.input(6, 30))
    return g.done(*results, dtype=("uint8", "float32", "uint8"))


def _there_and_back() -> onnx.ModelProto:
    g = Graph()
    scale, zero = g.constant(0.05), g.constant(3, "int8")
    x = g.op("DequantizeLinear", g.op("QuantizeLinear", g.input(10, 32), scale, zero), scale, zero)
    w = g.op("DequantizeLinear", g.weight(32, 24, dtype="int8"), g.constant(0.01), g.constant(0, "int8"))
    return g.done(g.op("Relu", g.op("MatMul", x, w)))
