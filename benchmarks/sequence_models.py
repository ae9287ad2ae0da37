"""Models around control flow that users bring: beam search, a tagger of sequences with lengths, a detector.

Each function returns an ONNX model with weights from a fixed seed, and its inputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Model = tuple[onnx.ModelProto, Mapping[str, np.ndarray]]


class _Constants:
    """Constants of a model, drawn at random."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.arrays: dict[str, np.ndarray] = {}

    def normal(self, *shape: int) -> np.ndarray:
        """Numbers whose products with vectors keep their size: float32."""
        fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[-2] if len(shape) > 1 else 1
        return (self.rng.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32)

    def add(self, **shapes: Sequence[int]) -> None:
        """Draws constants of these names and shapes."""
        self.arrays |= {name: self.normal(*shape) for name, shape in shapes.items()}


def _value(name: str, kind: int, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node of space-separated names; "-" omits an input."""
    names = [x if x != "-" else "" for x in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=f"{op}_{outputs.split()[0]}", **attributes)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _beam_step() -> list[onnx.NodeProto]:
    """One step of all beams: a transformer with caches, the best continuations, and the caches of their parents."""
    return [
        _node("Gather", "table tokens", "x"),
        *(node for k in "qkv" for node in (_node("MatMul", f"x w{k}", k), _node("Unsqueeze", f"{k} one", f"{k}3"))),
        _node("Concat", "keys k3", "longer_keys", axis=1),
        _node("Concat", "values v3", "longer_values", axis=1),
        _node("Transpose", "longer_keys", "kt", perm=[0, 2, 1]),
        _node("MatMul", "q3 kt", "s"),
        _node("Mul", "s scale", "scaled"),
        _node("Softmax", "scaled", "p", axis=-1),
        _node("MatMul", "p longer_values", "a3"),
        _node("Squeeze", "a3 one", "a"),
        _node("Add", "x a", "h"),
        _node("MatMul", "h w1", "f"),
        _node("Relu", "f", "g"),
        _node("MatMul", "g w2", "o"),
        _node("Add", "h o", "r"),
        _node("MatMul", "r head", "logits"),
        _node("LogSoftmax", "logits", "log_p", axis=-1),
        _node("Add", "scores log_p", "totals"),
        _node("Reshape", "totals flat", "all_totals"),
        _node("TopK", "all_totals beams", "best places"),
        _node("Div", "places size", "parents"),
        _node("Mod", "places size", "next"),
        _node("Unsqueeze", "best one", "next_scores"),
        _node("Gather", "longer_keys parents", "next_keys", axis=0),
        _node("Gather", "longer_values parents", "next_values", axis=0),
        _node("Gather", "next first", "likeliest"),
        _node("Equal", "likeliest stop", "is_end"),
        _node("Not", "is_end", "more1"),
        _node("Squeeze", "more1", "more"),
        _node("Identity", "next", "token"),
        _node("Identity", "parents", "parent"),
    ]


def beam_search(width: int = 128, vocabulary: int = 500, beams: int = 4, steps: int = 24) -> Model:
    """Beam search with a one-layer transformer: caches grow by a token per iteration, and are reordered by the parents
    of the beams that survive; it ends at a token or after `n` steps."""
    w = _Constants(1)
    w.add(wq=(width, width), wk=(width, width), wv=(width, width), w1=(width, 2 * width), w2=(2 * width, width),
          head=(width, vocabulary), table=(vocabulary, width))  # fmt: skip
    w.arrays |= {
        "one": np.array([1]), "flat": np.array([-1]), "beams": np.array([beams]), "size": np.array(vocabulary),
        "stop": np.array([-1]), "scale": np.array(width**-0.5, np.float32), "first": np.array([0]),
    }  # fmt: skip
    cache = [beams, None, width]
    carried = [("tokens", "next", INT, [beams]), ("scores", "next_scores", FLOAT, [beams, 1]),
               ("keys", "next_keys", FLOAT, cache), ("values", "next_values", FLOAT, cache)]  # fmt: skip
    graph = helper.make_graph(
        _beam_step(), "body",
        [_value("i", INT, []), _value("go", BOOL, []), *(_value(name, kind, dims) for name, _, kind, dims in carried)],
        [_value("more", BOOL, []), *(_value(name, kind, dims) for _, name, kind, dims in carried),
         _value("token", INT, [beams]), _value("parent", INT, [beams])],
    )  # fmt: skip
    results = "last best_scores k_last v_last all_tokens all_parents"
    loop = _node("Loop", "n - t0 s0 k0 v0", results, body=graph)
    inputs = [_value("n", INT, []), _value("t0", INT, [beams]), _value("s0", FLOAT, [beams, 1]),
              _value("k0", FLOAT, [beams, "P", width]), _value("v0", FLOAT, [beams, "P", width])]  # fmt: skip
    outputs = [_value("best_scores", FLOAT, None), _value("all_tokens", INT, None), _value("all_parents", INT, None)]
    scores = np.log(np.arange(1, beams + 1, dtype=np.float32))[:, None]
    feeds = {"n": np.array(steps), "t0": np.arange(beams), "s0": -scores,
             "k0": w.normal(beams, 4, width), "v0": w.normal(beams, 4, width)}  # fmt: skip
    return _model([loop], inputs, outputs, w.arrays), feeds


def tagger(hidden: int = 64, tags: int = 17, steps: int = 30, batch: int = 4) -> Model:
    """A bidirectional LSTM over sequences of different lengths, and the likeliest tag of every token."""
    w, features = _Constants(2), 50
    w.add(wx=(2, 4 * hidden, features), wh=(2, 4 * hidden, hidden), b=(2, 8 * hidden), out=(2 * hidden, tags))
    w.arrays |= {"shape": np.array([0, 0, -1])}
    nodes = [
        _node("LSTM", "x wx wh b lengths", "both", hidden_size=hidden, direction="bidirectional"),
        _node("Transpose", "both", "together", perm=[0, 2, 1, 3]),
        _node("Reshape", "together shape", "states"),
        _node("MatMul", "states out", "scores"),
        _node("ArgMax", "scores", "tags", axis=-1, keepdims=0),
    ]
    inputs = [_value("x", FLOAT, ["S", "N", features]), _value("lengths", TensorProto.INT32, ["N"])]
    outputs = [_value("scores", FLOAT, None), _value("tags", INT, None)]
    lengths = np.linspace(steps, steps // 3, batch).astype(np.int32)
    feeds = {"x": w.rng.normal(size=(steps, batch, features)).astype(np.float32), "lengths": lengths}
    return _model(nodes, inputs, outputs, w.arrays), feeds


def detector(size: int = 64, classes: int = 4) -> Model:
    """A small convolutional detector with NonMaxSuppression in the graph: boxes, classes and scores that are left."""
    w, cells = _Constants(3), (size // 8) ** 2
    channels = (3, 16, 32, 32)
    w.add(**{f"c{k}": (channels[k + 1], channels[k], 3, 3) for k in range(3)}, b=(4, 32, 1, 1), s=(classes, 32, 1, 1))
    grid = np.stack(np.meshgrid(*[np.arange(size // 8)] * 2, indexing="ij"), -1).reshape(1, cells, 2)
    w.arrays |= {
        "grid": ((grid + 0.5) / (size // 8)).astype(np.float32), "flat_boxes": np.array([1, 4, cells]),
        "flat_scores": np.array([1, classes, cells]), "most": np.array([20]), "overlap": np.array([0.4], np.float32),
        "least": np.array([0.5], np.float32), "two": np.array([2, 2]), "last": np.array([2]), "mid": np.array([1]),
        "small": np.array(0.2, np.float32), "box_shape": np.array([-1, 4]),
    }  # fmt: skip
    nodes = [node for k in range(3) for node in (
        _node("Conv", f"{'x' if k == 0 else f'r{k - 1}'} c{k}", f"h{k}", strides=[2, 2], pads=[1, 1, 1, 1]),
        _node("Relu", f"h{k}", f"r{k}"))]  # fmt: skip
    nodes += [
        _node("Conv", "r2 b", "box_map"),
        _node("Reshape", "box_map flat_boxes", "box_rows"),
        _node("Transpose", "box_rows", "raw", perm=[0, 2, 1]),
        _node("Split", "raw two", "offsets extents", axis=2),
        _node("Tanh", "offsets", "shifts"),
        _node("Mul", "shifts small", "small_shifts"),
        _node("Add", "grid small_shifts", "centres"),
        _node("Sigmoid", "extents", "shares"),
        _node("Mul", "shares small", "halves"),
        _node("Sub", "centres halves", "low"),
        _node("Add", "centres halves", "high"),
        _node("Concat", "low high", "boxes", axis=2),
        _node("Conv", "r2 s", "score_map"),
        _node("Reshape", "score_map flat_scores", "score_rows"),
        _node("Sigmoid", "score_rows", "scores"),
        _node("NonMaxSuppression", "boxes scores most overlap least", "selected"),
        _node("Gather", "selected last", "box_places", axis=1),
        _node("Squeeze", "box_places mid", "places"),
        _node("Reshape", "boxes box_shape", "all_boxes"),
        _node("Gather", "all_boxes places", "kept_boxes"),
        _node("GatherND", "scores selected", "kept_scores"),
    ]
    inputs = [_value("x", FLOAT, [1, 3, size, size])]
    outputs = [_value("selected", INT, None), _value("kept_boxes", FLOAT, None), _value("kept_scores", FLOAT, None)]
    return _model(nodes, inputs, outputs, w.arrays), {"x": w.rng.normal(size=(1, 3, size, size)).astype(np.float32)}
