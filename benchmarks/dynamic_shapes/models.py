"""Models with dynamic sizes, by kind: operators and small networks drawn by a seed, and models of the zoo.

An operator's channels, heads and windows are drawn, so that a table has none that somebody chose; its dynamic sizes
have declared ranges.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from benchmarks.zoo.inputs import Feeds, Sizes
from benchmarks.zoo.model import Model, build_model
from benchmarks.zoo.models import MODELS

OPSET = 20
CHANNELS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDTHS = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072)

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DynamicModel:
    """A model of one kind.

    Attributes:
        name: unique.
        kind: its class in tables.
        ranges: inclusive ranges of its dynamic sizes that are declared.
        drawn: ranges that shapes are drawn from; their ends are multiples as well.
        build: makes the ONNX model.
        feeds: makes inputs for sizes.
        multiples: by size, what a drawn one is a multiple of.
    """

    name: str
    kind: str
    ranges: Ranges
    drawn: Ranges
    build: Callable[[], ModelProto]
    feeds: Callable[[np.random.Generator, Sizes], Feeds]
    multiples: Mapping[str, int] = field(default_factory=dict[str, int])


def all_models(seed: int, per_kind: int = 4) -> tuple[DynamicModel, ...]:
    """The models of all kinds, so many of each kind that is drawn."""
    kinds = {
        "gemm rows": _gemm, "conv batch": _conv_by_batch, "conv size": _conv_by_size, "attention": _attention,
        "cnn size": _network,
    }  # fmt: skip
    drawn: list[DynamicModel] = []
    for kind, draw in kinds.items():
        rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])
        drawn += [draw(kind, rng, k) for k in range(per_kind)]
    return (*drawn, *_zoo())


def _gemm(kind: str, rng: np.random.Generator, number: int) -> DynamicModel:
    k, n = (int(rng.choice(WIDTHS)) for _ in range(2))
    name = f"gemm{number} {k}x{n}"

    def build() -> ModelProto:
        weights = [_constant(name, (k, n), k), _constant(f"{name} bias", (n,), n)]
        nodes = [helper.make_node("Gemm", ["x", *(w.name for w in weights)], ["y"])]
        return _model(nodes, weights, {"x": ("rows", k)}, {"y": ("rows", n)})

    sizes = {"rows": (1, 1024)}
    return DynamicModel(name, kind, sizes, sizes, build, lambda g, s: {"x": _normal(g, s["rows"], k)})


def _conv_by_batch(kind: str, rng: np.random.Generator, number: int) -> DynamicModel:
    size, sizes = int(rng.integers(7, 57)), {"batch": (1, 16)}
    return _convolution(kind, rng, number, ("batch", size, size), sizes, sizes)


def _conv_by_size(kind: str, rng: np.random.Generator, number: int) -> DynamicModel:
    sizes = {"height": (8, 256), "width": (8, 256)}
    drawn = {"height": (12, 160), "width": (12, 160)}
    return _convolution(kind, rng, number, (1, "height", "width"), sizes, drawn)


def _convolution(
    kind: str, rng: np.random.Generator, number: int, picture: Sequence[int | str], ranges: Ranges, drawn: Ranges
) -> DynamicModel:
    """A convolution with bias and SiLU, of 3x3 or, every other one, of 1x1."""
    channels, results = (int(rng.choice(CHANNELS)) for _ in range(2))
    window = 1 if number % 2 else 3
    name = f"{'batch' if 'batch' in ranges else 'size'}{number} {channels}to{results} {window}x{window}"

    def build() -> ModelProto:
        weights, nodes = _conv_silu(name, "x", "y", channels, results, window)
        batch, *size = picture
        return _model(nodes, weights, {"x": (batch, channels, *size)}, {"y": (batch, results, *size)})

    def feeds(g: np.random.Generator, s: Sizes) -> Feeds:
        batch, *size = (x if isinstance(x, int) else s[x] for x in picture)
        return {"x": _normal(g, batch, channels, *size)}

    return DynamicModel(name, kind, ranges, drawn, build, feeds)


def _attention(kind: str, rng: np.random.Generator, number: int) -> DynamicModel:
    """Attention with its projections, as in an encoder."""
    heads, size = int(rng.choice((4, 8, 12, 16))), int(rng.choice((32, 64)))
    width = heads * size
    name = f"attention{number} {heads}x{size}"

    def build() -> ModelProto:
        nodes: list[NodeProto] = []
        weights = [numpy_helper.from_array(np.array([0, 0, heads, size], np.int64), "split"),
                   numpy_helper.from_array(np.array([0, 0, width], np.int64), "join"),
                   numpy_helper.from_array(np.float32(size**-0.5), "scale")]  # fmt: skip
        orders = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
        for part, order in orders.items():
            weights.append(_constant(f"w{part}", (width, width), width))
            nodes += [
                helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}1"]),
                helper.make_node("Reshape", [f"{part}1", "split"], [f"{part}2"]),
                helper.make_node("Transpose", [f"{part}2"], [part], perm=order),
            ]
        nodes += [
            helper.make_node("MatMul", ["q", "k"], ["s1"]),
            helper.make_node("Mul", ["s1", "scale"], ["s2"]),
            helper.make_node("Softmax", ["s2"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "v"], ["o1"]),
            helper.make_node("Transpose", ["o1"], ["o2"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", ["o2", "join"], ["y"]),
        ]
        return _model(nodes, weights, {"x": (1, "length", width)}, {"y": (1, "length", width)})

    sizes = {"length": (1, 512)}
    return DynamicModel(name, kind, sizes, sizes, build, lambda g, s: {"x": _normal(g, 1, s["length"], width)})


def _network(kind: str, rng: np.random.Generator, number: int) -> DynamicModel:
    """A small network for pictures: a stem, blocks of 1x1 and 3x3 convolutions with residual sums, two strides."""
    width = int(rng.choice((16, 24, 32)))
    name = f"cnn{number} {width}"

    def build() -> ModelProto:
        weights: list[TensorProto] = []
        nodes: list[NodeProto] = []

        def add(source: str, result: str, channels: int, results: int, window: int, stride: int = 1) -> str:
            w, n = _conv_silu(f"{name} {result}", source, result, channels, results, window, stride)
            weights.extend(w)
            nodes.extend(n)
            return result

        x = add("x", "stem", 3, width, 3, 2)
        for k, channels in enumerate((width, 2 * width)):
            a = add(x, f"a{k}", channels, channels, 1)
            b = add(a, f"b{k}", channels, channels, 3)
            nodes.append(helper.make_node("Add", [x, b], [f"c{k}"]))
            x = add(f"c{k}", f"d{k}", channels, 2 * channels, 3, 2)
        nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"]))
        return _model(nodes, weights, {"x": (1, 3, "height", "width")}, {"y": (1, 4 * width, 1, 1)})

    sizes = {"height": (32, 512), "width": (32, 512)}
    drawn = {"height": (64, 320), "width": (64, 320)}
    return DynamicModel(
        name, kind, sizes, drawn, build, lambda g, s: {"x": _normal(g, 1, 3, s["height"], s["width"])}
    )


def _zoo() -> list[DynamicModel]:
    """Whole models; the sizes are some that their users have."""
    picture = {"height": 32, "width": 32}
    return [
        _of_zoo("bert_base_dyn", {"batch": (1, 4), "sequence": (8, 256)}),
        _of_zoo("resnet50_dyn", {"batch": (1, 8)}),
        _of_zoo("resnet18_dyn", {"batch": (1, 2), "height": (96, 288), "width": (96, 288)}),
        _of_zoo("yolov8n", {"height": (192, 480), "width": (192, 480)}, picture),
        _of_zoo("ppocr_det", {"batch": (1, 1), "height": (160, 640), "width": (160, 640)}, picture),
        _of_zoo("ppocr_rec", {"batch": (1, 6), "width": (80, 480)}),
    ]


def _of_zoo(name: str, drawn: Ranges, multiples: Mapping[str, int] | None = None) -> DynamicModel:
    """A model of the zoo with the ranges that it declares."""
    model = MODELS[name]
    ranges = {n: (int(r.partition("..")[0]), int(r.partition("..")[2])) for n, r in model.ranges.items()}
    return DynamicModel(name, name, ranges, drawn, lambda: _built(model), model.feeds, multiples or {})


def _built(model: Model) -> ModelProto:
    build_model(model)
    return onnx.load(model.path)


def _conv_silu(
    name: str, source: str, result: str, channels: int, results: int, window: int, stride: int = 1
) -> tuple[list[TensorProto], list[NodeProto]]:
    """Weights and nodes of a convolution with bias and SiLU."""
    weights = [_constant(f"{name} w", (results, channels, window, window), channels * window * window),
               _constant(f"{name} b", (results,), results)]  # fmt: skip
    conv, gate = f"{result} conv", f"{result} gate"
    return weights, [
        helper.make_node("Conv", [source, *(w.name for w in weights)], [conv], kernel_shape=[window, window],
                         pads=[window // 2] * 4, strides=[stride, stride]),
        helper.make_node("Sigmoid", [conv], [gate]),
        helper.make_node("Mul", [conv, gate], [result]),
    ]  # fmt: skip


def _constant(name: str, shape: Sequence[int], terms: int) -> TensorProto:
    rng = np.random.default_rng(zlib.crc32(f"{name}{shape}".encode()))
    data = rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(terms**-0.5)
    return numpy_helper.from_array(data, name)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


Dims = Sequence[int | str]
"""Sizes of a value: numbers, and names of dynamic ones."""


def _model(
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto],
    inputs: Mapping[str, Dims],
    outputs: Mapping[str, Dims],
) -> ModelProto:
    sources, results = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in x.items()] for x in (inputs, outputs)
    )
    graph = helper.make_graph(list(nodes), "dynamic", sources, results, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
