"""Reductions and what is made of them: softmax, normalisations, arguments of maxima, running sums."""

from collections.abc import Sequence
from typing import Any

import onnx

from benchmarks.replay.models.build import Graph, Model, Models


def models() -> Models:
    """All of them."""
    yield Model("softmax/rows", lambda: _unary("Softmax", (40, 100), axis=-1))
    yield Model("softmax/short_rows", lambda: _unary("Softmax", (200, 10), axis=-1))
    yield Model("softmax/channels", lambda: _unary("Softmax", (2, 12, 5, 7), axis=1))
    yield Model("softmax/heads", lambda: _unary("Softmax", (2, 4, 24, 24), axis=-1))
    yield Model("softmax/dynamic", lambda: _unary("Softmax", ("n", "m"), axis=-1), ("n:1..64", "m:1..1000"))
    yield Model("softmax/float16", lambda: _unary("Softmax", (8, 64), dtype="float16", axis=-1))
    yield Model("softmax/log", lambda: _unary("LogSoftmax", (16, 33), axis=-1))
    yield Model("softmax/hardmax", lambda: _unary("Hardmax", (6, 20), axis=-1))
    yield Model("normalise/layer", lambda: _layer((24, 96)))
    yield Model("normalise/layer_long", lambda: _layer((8, 1024)))
    yield Model("normalise/layer_dynamic", lambda: _layer(("b", "t", 64)), ("b:1..4", "t:1..256"))
    yield Model("normalise/layer_written_out", _layer_written_out)
    yield Model("normalise/root_mean_square", _root_mean_square)
    yield Model("normalise/instance", _instance)
    yield Model("normalise/group", _group)
    yield Model("normalise/batch", _batch)
    yield Model("normalise/lp", lambda: _unary("LpNormalization", (10, 30), axis=-1, p=2))
    yield Model("normalise/mean_variance", lambda: _unary("MeanVarianceNormalization", (2, 3, 8, 8)))
    yield Model("normalise/local_response", lambda: _unary("LRN", (1, 8, 6, 6), size=5))
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare", "LogSum"):
        axes = [1] if kind in ("Sum", "Max", "L2") else [0]
        yield Model(f"reduce/{kind.lower()}", lambda kind=kind, axes=axes: _reduce(kind, (60, 70), axes))
    yield Model("reduce/all", lambda: _reduce("Sum", (20, 30, 10), None, keepdims=0))
    yield Model("reduce/long_row", lambda: _reduce("Sum", (3, 5000), [1]))
    yield Model("reduce/middle", lambda: _reduce("Mean", (6, 50, 24), [1], keepdims=0))
    yield Model("reduce/outer_and_inner", lambda: _reduce("Max", (6, 20, 24), [0, 2]))
    yield Model("reduce/dynamic", lambda: _reduce("Mean", ("n", "m"), [1]), ("n:1..100", "m:1..1000"))
    yield Model("reduce/columns_dynamic", lambda: _reduce("Sum", ("n", 48), [0]), ("n:1..1000",))
    yield Model("reduce/integers", lambda: _reduce("Sum", (30, 40), [1], "int32"))
    yield Model("reduce/doubles", lambda: _reduce("Sum", (30, 40), [1], "float64"))
    yield Model("reduce/halves", lambda: _reduce("Sum", (30, 40), [1], "float16"))
    yield Model("arg/max", lambda: _unary("ArgMax", (12, 40), "int64", axis=1))
    yield Model("arg/min_columns", lambda: _unary("ArgMin", (12, 40), "int64", axis=0, keepdims=0))
    yield Model("running/sum", lambda: _running((6, 50)))
    yield Model("running/sum_backwards", lambda: _running((4, 30), reverse=1, exclusive=1))
    yield Model("running/sum_dynamic", lambda: _running((4, "n")), ("n:1..100",))
    yield Model("top/k", _top)


def _unary(
    kind: str, shape: Sequence[int | str], result: str = "", dtype: str = "float32", **attributes: Any
) -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op(kind, g.input(*shape, dtype=dtype), **attributes), dtype=result or dtype)


def _layer(shape: Sequence[int | str]) -> onnx.ModelProto:
    g = Graph()
    size = int(shape[-1])
    return g.done(g.op("LayerNormalization", g.input(*shape), g.weight(size), g.weight(size), axis=-1))


def _layer_written_out() -> onnx.ModelProto:
    g = Graph()
    x = g.input(16, 64)
    centred = g.op("Sub", x, g.op("ReduceMean", x, g.constant([-1], "int64")))
    squares = g.op("Pow", centred, g.constant(2.0))
    variance = g.op("ReduceMean", squares, g.constant([-1], "int64"))
    scaled = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.constant(1e-5))))
    return g.done(g.op("Add", g.op("Mul", scaled, g.weight(64)), g.weight(64)))


def _root_mean_square() -> onnx.ModelProto:
    g = Graph()
    x = g.input("t", 80)
    mean = g.op("ReduceMean", g.op("Mul", x, x), g.constant([-1], "int64"))
    factor = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean, g.constant(1e-6))))
    return g.done(g.op("Mul", g.op("Mul", x, factor), g.weight(80)))


def _instance() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("InstanceNormalization", g.input(2, 6, 9, 9), g.weight(6), g.weight(6)))


def _group() -> onnx.ModelProto:
    g = Graph(21)
    return g.done(g.op("GroupNormalization", g.input(2, 8, 6, 6), g.weight(8), g.weight(8), num_groups=4))


def _batch() -> onnx.ModelProto:
    g = Graph()
    variance = g.constant([0.5 + 0.1 * k for k in range(6)])
    return g.done(g.op("BatchNormalization", g.input(2, 6, 9, 9), g.weight(6), g.weight(6), g.weight(6), variance))


def _reduce(
    kind: str, shape: Sequence[int | str], axes: Sequence[int] | None, dtype: str = "float32", keepdims: int = 1
) -> onnx.ModelProto:
    g = Graph()
    x = g.input(*shape, dtype=dtype)
    along = [] if axes is None else [g.constant(axes, "int64")]
    return g.done(g.op(f"Reduce{kind}", x, *along, keepdims=keepdims), dtype=dtype)


def _running(shape: Sequence[int | str], **attributes: Any) -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("CumSum", g.input(*shape), g.constant(1, "int64"), **attributes))


def _top() -> onnx.ModelProto:
    g = Graph()
    values, places = g.ops("TopK", 2, g.input(4, 20), g.constant([3], "int64"))
    return g.done(values, places, dtype=("float32", "int64"))
