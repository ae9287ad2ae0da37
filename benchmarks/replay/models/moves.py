"""Operators that move elements: transposes, joins, cuts, borders, gathers, changes of shape, resizing."""

from collections.abc import Sequence
from typing import Any

import onnx

from benchmarks.replay.models.build import Graph, Model, Models


def models() -> Models:
    """All of them."""
    for name, shape, perm in (
        ("2d", (60, 90), [1, 0]), ("odd", (37, 53), [1, 0]), ("heads", (20, 4, 16), [1, 0, 2]),
        ("channels_last", (2, 8, 10, 12), [0, 2, 3, 1]), ("reversed", (4, 6, 8, 10), [3, 2, 1, 0]),
        ("dynamic", ("n", "m"), [1, 0]),
    ):  # fmt: skip
        yield Model(f"transpose/{name}", lambda shape=shape, perm=perm: _one("Transpose", shape, perm=perm))
    yield Model("transpose/twice", _transposes)
    yield Model("concat/rows", lambda: _concat(((3, 20), (5, 20)), 0))
    yield Model("concat/columns", lambda: _concat(((6, 10), (6, 7), (6, 16)), 1))
    yield Model("concat/channels_dynamic", lambda: _concat((("n", 4, 6), ("n", 8, 6)), 1), ("n:1..32",))
    yield Model("concat/dynamic_sizes", lambda: _concat((("n", 8), ("m", 8)), 0), ("n:1..32", "m:1..32"))
    yield Model("split/three", _split)
    yield Model("slice/steps", lambda: _slice((20, 30), [2, 1], [18, 29], [2, 3]))
    yield Model("slice/backwards", lambda: _slice((20, 30), [-1, 0], [-21, 30], [-1, 1]))
    yield Model("slice/dynamic", lambda: _slice(("n", 30), [1, 0], [1000, 10], [1, 1]), ("n:2..100",))
    for mode in ("constant", "reflect", "edge"):
        yield Model(f"pad/{mode}", lambda mode=mode: _pad(mode))
    yield Model("gather/embedding", _embedding)
    yield Model("gather/embedding_dynamic", lambda: _embedding("t"), ("t:1..128",))
    yield Model("gather/columns", _gather_columns)
    yield Model("gather/elements", _gather_elements)
    yield Model("gather/nd", _gather_nd)
    yield Model("scatter/elements", _scatter_elements)
    yield Model("scatter/nd", _scatter_nd)
    yield Model("shape/expand", _expand)
    yield Model("shape/tile", _tile)
    yield Model("shape/reshape_dynamic", _reshape, ("n:1..32",))
    yield Model("shape/computed", _computed_shape, ("n:1..16", "m:1..64"))
    yield Model("shape/squeeze", _squeeze)
    yield Model("space/to_depth", lambda: _one("SpaceToDepth", (1, 3, 8, 8), blocksize=2))
    yield Model("space/from_depth", lambda: _one("DepthToSpace", (1, 16, 5, 5), blocksize=2, mode="CRD"))
    for mode in ("nearest", "linear", "cubic"):
        yield Model(f"resize/{mode}", lambda mode=mode: _resize(mode, (1, 3, 7, 9)))
    yield Model("resize/nearest_dynamic", lambda: _resize("nearest", (1, 4, "h", "w")))
    yield Model("resize/linear_dynamic", lambda: _resize("linear", (1, 4, "h", "w")))
    yield Model("resize/grid_sample", _grid_sample)
    yield Model("make/one_hot", _one_hot)
    yield Model("make/range", _range)
    yield Model("make/triangle", lambda: _one("Trilu", (3, 12, 12), upper=0))
    yield Model("make/filled", _filled)
    yield Model("fallback/nonzero", _nonzero)
    yield Model("fallback/determinant_between", _determinant)
    yield Model("constant/folded", _folded)
    yield Model("constant/output", _constant_output)


def _one(kind: str, shape: Sequence[int | str], **attributes: Any) -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op(kind, g.input(*shape), **attributes))


def _transposes() -> onnx.ModelProto:
    g = Graph()
    y = g.op("Transpose", g.input(4, 10, 6), perm=[2, 0, 1])
    return g.done(g.op("Transpose", g.op("Relu", y), perm=[1, 2, 0]))


def _concat(shapes: Sequence[Sequence[int | str]], axis: int) -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Concat", *(g.input(*s) for s in shapes), axis=axis))


def _split() -> onnx.ModelProto:
    g = Graph()
    parts = g.ops("Split", 3, g.input(10, 24), g.constant([8, 4, 12], "int64"), axis=1)
    return g.done(g.op("Sigmoid", parts[0]), g.op("Tanh", parts[1]), parts[2])


def _slice(shape: Sequence[int | str], starts: object, ends: object, steps: object) -> onnx.ModelProto:
    g = Graph()
    x = g.input(*shape)
    bounds = [g.constant(v, "int64") for v in (starts, ends, [0, 1], steps)]
    return g.done(g.op("Slice", x, *bounds))


def _pad(mode: str) -> onnx.ModelProto:
    g = Graph()
    x, sizes = g.input(2, 3, 8, 9), g.constant([0, 0, 1, 2, 0, 0, 2, 1], "int64")
    return g.done(g.op("Pad", x, sizes, mode=mode))


def _embedding(tokens: int | str = 12) -> onnx.ModelProto:
    g = Graph()
    rows = g.op("Gather", g.weight(50, 32), g.input(2, tokens, dtype="int64"), axis=0)
    return g.done(g.op("Add", rows, g.weight(32)))


def _gather_columns() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Gather", g.input(10, 20), g.constant([3, 1, 19, -1], "int64"), axis=1))


def _gather_elements() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("GatherElements", g.input(6, 10), g.input(6, 4, dtype="int64"), axis=1))


def _gather_nd() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("GatherND", g.input(6, 10, 8), g.input(5, 2, dtype="int64")))


def _scatter_elements() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("ScatterElements", g.input(6, 10), g.input(6, 4, dtype="int64"), g.input(6, 4), axis=1))


def _scatter_nd() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("ScatterND", g.input(8, 10), g.constant([[1], [5]], "int64"), g.input(2, 10)))


def _expand() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Expand", g.input(3, 1, 5), g.constant([2, 1, 4, 5], "int64")))


def _tile() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Tile", g.input(3, 5), g.constant([2, 3], "int64")))


def _reshape() -> onnx.ModelProto:
    g = Graph()
    y = g.op("Reshape", g.input("n", 12, 10), g.constant([0, 4, -1], "int64"))
    return g.done(g.op("Transpose", y, perm=[0, 2, 1]))


def _computed_shape() -> onnx.ModelProto:
    g = Graph()
    x = g.input("n", "m", 8)
    size = g.op("Shape", x)
    first = g.op("Gather", size, g.constant([0], "int64"), axis=0)
    second = g.op("Gather", size, g.constant([1], "int64"), axis=0)
    flat = g.op("Concat", g.op("Mul", first, second), g.constant([8], "int64"), axis=0)
    return g.done(g.op("MatMul", g.op("Reshape", x, flat), g.weight(8, 12)))


def _squeeze() -> onnx.ModelProto:
    g = Graph()
    y = g.op("Squeeze", g.input(3, 1, 8), g.constant([1], "int64"))
    return g.done(g.op("Flatten", g.op("Unsqueeze", g.op("Neg", y), g.constant([0], "int64")), axis=2))


def _resize(mode: str, shape: Sequence[int | str]) -> onnx.ModelProto:
    g = Graph()
    x, scales = g.input(*shape), g.constant([1, 1, 2, 2])
    way = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if mode == "nearest" else {}
    return g.done(g.op("Resize", x, "", scales, mode=mode, **way))


def _grid_sample() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("GridSample", g.input(1, 3, 8, 8), g.input(1, 5, 6, 2), mode="bilinear"))


def _one_hot() -> onnx.ModelProto:
    g = Graph()
    depth, values = g.constant(10, "int64"), g.constant([0.0, 1.0])
    return g.done(g.op("OneHot", g.input(4, 6, dtype="int64"), depth, values, axis=-1))


def _range() -> onnx.ModelProto:
    g = Graph()
    x = g.input("n", 4)
    count = g.op("Squeeze", g.op("Shape", x, start=0, end=1))
    steps = g.op("Range", g.constant(0, "int64"), count, g.constant(1, "int64"))
    column = g.op("Unsqueeze", g.op("Cast", steps, to=onnx.TensorProto.FLOAT), g.constant([1], "int64"))
    return g.done(g.op("Add", x, column))


def _filled() -> onnx.ModelProto:
    g = Graph()
    x = g.input("n", 6)
    value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [1.5])
    return g.done(g.op("Concat", x, g.op("ConstantOfShape", g.op("Shape", x), value=value), axis=1))


def _nonzero() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("NonZero", g.op("Relu", g.input(4, 6))), dtype="int64")


def _determinant() -> onnx.ModelProto:
    g = Graph()
    y = g.op("Det", g.op("Tanh", g.input("n", 4, 4)))
    return g.done(g.op("Exp", y))


def _folded() -> onnx.ModelProto:
    g = Graph()
    table = g.op("Softmax", g.op("MatMul", g.weight(6, 8), g.weight(8, 20)), axis=-1)
    return g.done(g.op("Mul", g.input(6, 20), g.op("Transpose", g.op("Transpose", table, perm=[1, 0]), perm=[1, 0])))


def _constant_output() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Exp", g.weight(3, 5)), g.op("Neg", g.input(3, 5)))
