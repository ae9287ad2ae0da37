"""Networks of several kernels: perceptrons, blocks with a residual, attention, recurrent steps, a small detector."""

from typing import Any

import onnx

from benchmarks.replay.models.build import Graph, Model, Models


def models() -> Models:
    """All of them."""
    yield Model("network/perceptron", _perceptron, ("n:1..64",))
    yield Model("network/residual_block", _residual_block)
    yield Model(
        "network/residual_block_dynamic", lambda: _residual_block("n", "h", "w"), ("n:1..8", "h:8..64", "w:8..64")
    )
    yield Model("network/inverted_residual", _inverted_residual)
    yield Model("network/squeeze_excite", _squeeze_excite)
    yield Model("network/stem", _stem, ("n:1..4",))
    yield Model("network/pyramid", _pyramid)
    yield Model("network/mixer", _mixer)
    yield Model("network/two_outputs", _two_outputs)
    yield Model("network/same_kernel_twice", _same_kernel_twice)
    yield Model("network/quantised", _quantised)
    yield Model("attention/one_head", lambda: _attention(16, 1, 32))
    yield Model("attention/heads", lambda: _attention(24, 4, 64))
    yield Model("attention/heads_dynamic", lambda: _attention("t", 4, 64), ("t:1..128",))
    yield Model("attention/long", lambda: _attention(1200, 8, 64))
    yield Model("attention/causal", _causal)
    yield Model("attention/rotary", _rotary)
    yield Model("attention/transformer", _transformer, ("t:1..64",))
    yield Model("recurrent/lstm", _lstm)
    yield Model("recurrent/gru", _gru)
    yield Model("recurrent/scan", _scan)
    yield Model("control/if", _if)


def _dense(g: Graph, x: str, inner: int, outer: int, after: str = "") -> str:
    y = g.op("Add", g.op("MatMul", x, g.weight(inner, outer)), g.weight(outer))
    return g.op(after, y) if after else y


def _conv(g: Graph, x: str, inner: int, outer: int, size: int = 3, after: str = "Relu", **attributes: Any) -> str:
    y = g.op("Conv", x, g.weight(outer, inner, size, size), g.weight(outer), pads=[size // 2] * 4, **attributes)
    return g.op(after, y) if after else y


def _perceptron() -> onnx.ModelProto:
    g = Graph()
    x = _dense(g, g.input("n", 24), 24, 40, "Relu")
    return g.done(g.op("Softmax", _dense(g, x, 40, 10), axis=-1))


def _residual_block(n: int | str = 1, h: int | str = 14, w: int | str = 14) -> onnx.ModelProto:
    g = Graph()
    x = g.input(n, 16, h, w)
    y = _conv(g, _conv(g, x, 16, 16), 16, 16, after="")
    return g.done(g.op("Relu", g.op("Add", y, x)))


def _inverted_residual() -> onnx.ModelProto:
    g = Graph()
    x = g.input(1, 8, 14, 14)
    y = _conv(g, x, 8, 32, 1, after="HardSwish")
    y = g.op("Conv", y, g.weight(32, 1, 3, 3), g.weight(32), pads=[1] * 4, group=32)
    y = g.op("Clip", y, g.constant(0.0), g.constant(6.0))
    return g.done(g.op("Add", _conv(g, y, 32, 8, 1, after=""), x))


def _squeeze_excite() -> onnx.ModelProto:
    g = Graph()
    x = g.input(1, 16, 12, 12)
    y = g.op("GlobalAveragePool", x)
    y = _conv(g, _conv(g, y, 16, 4, 1), 4, 16, 1, after="HardSigmoid")
    return g.done(g.op("Mul", x, y))


def _stem() -> onnx.ModelProto:
    g = Graph()
    y = _conv(g, g.input("n", 3, 32, 32), 3, 8, strides=[2, 2])
    y = g.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = g.op("Flatten", g.op("GlobalAveragePool", _conv(g, y, 8, 16)))
    return g.done(_dense(g, y, 16, 10))


def _pyramid() -> onnx.ModelProto:
    g = Graph()
    fine = _conv(g, g.input(1, 3, 16, 16), 3, 8)
    coarse = _conv(g, g.op("MaxPool", fine, kernel_shape=[2, 2], strides=[2, 2]), 8, 8)
    wide = g.op("Resize", coarse, "", g.constant([1, 1, 2, 2]), mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    return g.done(_conv(g, g.op("Concat", fine, wide, axis=1), 16, 4, 1, after="Sigmoid"), coarse)


def _mixer() -> onnx.ModelProto:
    g = Graph()
    x = g.input(1, 16, 24)
    y = g.op("LayerNormalization", x, g.weight(24), g.weight(24), axis=-1)
    y = g.op("Transpose", y, perm=[0, 2, 1])
    y = g.op("Transpose", _dense(g, _dense(g, y, 16, 32, "Erf"), 32, 16), perm=[0, 2, 1])
    return g.done(g.op("Add", x, y))


def _two_outputs() -> onnx.ModelProto:
    g = Graph()
    x = _dense(g, g.input(6, 20), 20, 32, "Tanh")
    return g.done(_dense(g, x, 32, 8), g.op("ReduceSum", x, g.constant([1], "int64")), x)


def _same_kernel_twice() -> onnx.ModelProto:
    g = Graph()
    x = g.input(8, 32)
    for _ in range(3):
        x = _dense(g, x, 32, 32, "Relu")
    return g.done(x)


def _quantised() -> onnx.ModelProto:
    g = Graph()
    scale, zero = g.constant(0.05), g.constant(128, "uint8")
    x = g.input(1, 4, 10, 10)
    x = g.op("DequantizeLinear", g.op("QuantizeLinear", x, scale, zero), scale, zero)
    scales, zeros = g.constant([0.01 + 0.001 * k for k in range(8)]), g.constant([0] * 8, "int8")
    w = g.op("DequantizeLinear", g.weight(8, 4, 3, 3, dtype="int8"), scales, zeros, axis=0)
    y = g.op("Relu", g.op("Conv", x, w, pads=[1] * 4))
    return g.done(g.op("DequantizeLinear", g.op("QuantizeLinear", y, scale, zero), scale, zero))


def _heads(g: Graph, x: str, heads: int, size: int) -> str:
    y = g.op("Reshape", x, g.constant([0, -1, heads, size // heads], "int64"))
    return g.op("Transpose", y, perm=[0, 2, 1, 3])


def _attended(g: Graph, q: str, k: str, v: str, size: int, mask: str = "") -> str:
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Div", scores, g.constant(float(size) ** 0.5))
    if mask:
        scores = g.op("Add", scores, mask)
    return g.op("MatMul", g.op("Softmax", scores, axis=-1), v)


def _self_attention(g: Graph, x: str, heads: int, size: int, mask: str = "") -> str:
    q, k, v = (_heads(g, _dense(g, x, size, size), heads, size) for _ in range(3))
    y = g.op("Transpose", _attended(g, q, k, v, size // heads, mask), perm=[0, 2, 1, 3])
    return _dense(g, g.op("Reshape", y, g.constant([0, -1, size], "int64")), size, size)


def _attention(tokens: int | str, heads: int, size: int) -> onnx.ModelProto:
    g = Graph()
    if tokens == 1200:
        q, k, v = (g.input(1, heads, tokens, size) for _ in range(3))
        return g.done(_attended(g, q, k, v, size))
    return g.done(_self_attention(g, g.input(1, tokens, size), heads, size))


def _causal() -> onnx.ModelProto:
    g = Graph()
    mask = g.constant([[0.0 if j <= i else -1e9 for j in range(16)] for i in range(16)])
    return g.done(_self_attention(g, g.input(2, 16, 32), 2, 32, mask))


def _rotary() -> onnx.ModelProto:
    g = Graph()
    x = g.input(1, 2, 12, 16)
    parts = g.ops("Split", 2, x, axis=3, num_outputs=2)
    turned = g.op("Concat", g.op("Neg", parts[1]), parts[0], axis=3)
    return g.done(g.op("Add", g.op("Mul", x, g.weight(12, 16)), g.op("Mul", turned, g.weight(12, 16))))


def _transformer() -> onnx.ModelProto:
    g = Graph()
    x = g.op("Gather", g.weight(40, 32), g.input(1, "t", dtype="int64"), axis=0)
    y = g.op("LayerNormalization", x, g.weight(32), g.weight(32), axis=-1)
    x = g.op("Add", x, _self_attention(g, y, 2, 32))
    y = g.op("LayerNormalization", x, g.weight(32), g.weight(32), axis=-1)
    return g.done(g.op("Add", x, _dense(g, _dense(g, y, 32, 64, "Erf"), 64, 32)))


def _lstm() -> onnx.ModelProto:
    g = Graph()
    x, w, r, b = g.input(5, 2, 8), g.weight(1, 48, 8), g.weight(1, 48, 12), g.weight(1, 96)
    return g.done(*g.ops("LSTM", 3, x, w, r, b, hidden_size=12))


def _gru() -> onnx.ModelProto:
    g = Graph()
    x, w, r, b = g.input("t", 2, 8), g.weight(1, 36, 8), g.weight(1, 36, 12), g.weight(1, 72)
    return g.done(*g.ops("GRU", 2, x, w, r, b, hidden_size=12))


def _scan() -> onnx.ModelProto:
    info = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("Add", ["state", "step"], ["next"]),
        onnx.helper.make_node("Tanh", ["next"], ["out"]),
    ]
    body = onnx.helper.make_graph(
        nodes, "body", [info("state", kind, [6]), info("step", kind, [6])],
        [info("next", kind, [6]), info("out", kind, [6])],
    )  # fmt: skip
    g = Graph()
    return g.done(*g.ops("Scan", 2, g.input(6), g.input(10, 6), body=body, num_scan_inputs=1))


def _if() -> onnx.ModelProto:
    info = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    g = Graph()
    x, condition = g.input(4, 6), g.input(dtype="bool")
    branches = [
        onnx.helper.make_graph([onnx.helper.make_node(op, [x], [op])], op, [], [info(op, kind, [4, 6])])
        for op in ("Exp", "Neg")
    ]
    return g.done(g.op("If", condition, then_branch=branches[0], else_branch=branches[1]))
