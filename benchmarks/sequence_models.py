"""Models around control flow that users bring: beam search, a tagger of sequences with lengths, a detector.

Each function returns an ONNX model with weights from a fixed seed, and its inputs.
"""

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper

from benchmarks.common.model_builders import BOOL, FLOAT, INT, Model, make_model, make_node, tensor


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


def _beam_step() -> list[NodeProto]:
    """One step of all beams: a transformer with caches, the best continuations, and the caches of their parents."""
    return [
        make_node("Gather", "table tokens", "x"),
        *(make_node("MatMul", f"x w{k}", k) for k in "qkv"),
        *(make_node("Unsqueeze", f"{k} one", f"{k}3") for k in "qkv"),
        make_node("Concat", "keys k3", "longer_keys", axis=1),
        make_node("Concat", "values v3", "longer_values", axis=1),
        make_node("Transpose", "longer_keys", "kt", perm=[0, 2, 1]),
        make_node("MatMul", "q3 kt", "s"),
        make_node("Mul", "s scale", "scaled"),
        make_node("Softmax", "scaled", "p", axis=-1),
        make_node("MatMul", "p longer_values", "a3"),
        make_node("Squeeze", "a3 one", "a"),
        make_node("Add", "x a", "h"),
        make_node("MatMul", "h w1", "f"),
        make_node("Relu", "f", "g"),
        make_node("MatMul", "g w2", "o"),
        make_node("Add", "h o", "r"),
        make_node("MatMul", "r head", "logits"),
        make_node("LogSoftmax", "logits", "log_p", axis=-1),
        make_node("Add", "scores log_p", "totals"),
        make_node("Reshape", "totals flat", "all_totals"),
        make_node("TopK", "all_totals beams", "best places"),
        make_node("Div", "places size", "parents"),
        make_node("Mod", "places size", "next"),
        make_node("Unsqueeze", "best one", "next_scores"),
        make_node("Gather", "longer_keys parents", "next_keys", axis=0),
        make_node("Gather", "longer_values parents", "next_values", axis=0),
        make_node("Gather", "next first", "likeliest"),
        make_node("Equal", "likeliest stop", "is_end"),
        make_node("Not", "is_end", "more1"),
        make_node("Squeeze", "more1", "more"),
        make_node("Identity", "next", "token"),
        make_node("Identity", "parents", "parent"),
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
        [tensor("i", INT, []), tensor("go", BOOL, []), *(tensor(name, kind, dims) for name, _, kind, dims in carried)],
        [tensor("more", BOOL, []), *(tensor(name, kind, dims) for _, name, kind, dims in carried),
         tensor("token", INT, [beams]), tensor("parent", INT, [beams])],
    )  # fmt: skip
    results = "last best_scores k_last v_last all_tokens all_parents"
    loop = make_node("Loop", "n - t0 s0 k0 v0", results, body=graph)
    inputs = [tensor("n", INT, []), tensor("t0", INT, [beams]), tensor("s0", FLOAT, [beams, 1]),
              tensor("k0", FLOAT, [beams, "P", width]), tensor("v0", FLOAT, [beams, "P", width])]  # fmt: skip
    outputs = [tensor("best_scores", FLOAT, None), tensor("all_tokens", INT, None), tensor("all_parents", INT, None)]
    scores = np.log(np.arange(1, beams + 1, dtype=np.float32))[:, None]
    feeds = {"n": np.array(steps), "t0": np.arange(beams), "s0": -scores,
             "k0": w.normal(beams, 4, width), "v0": w.normal(beams, 4, width)}  # fmt: skip
    return make_model([loop], inputs, outputs, w.arrays), feeds


def tagger(hidden: int = 64, tags: int = 17, steps: int = 30, batch: int = 4) -> Model:
    """A bidirectional LSTM over sequences of different lengths, and the likeliest tag of every token."""
    w, features = _Constants(2), 50
    w.add(wx=(2, 4 * hidden, features), wh=(2, 4 * hidden, hidden), b=(2, 8 * hidden), out=(2 * hidden, tags))
    w.arrays |= {"shape": np.array([0, 0, -1])}
    nodes = [
        make_node("LSTM", "x wx wh b lengths", "both", hidden_size=hidden, direction="bidirectional"),
        make_node("Transpose", "both", "together", perm=[0, 2, 1, 3]),
        make_node("Reshape", "together shape", "states"),
        make_node("MatMul", "states out", "scores"),
        make_node("ArgMax", "scores", "tags", axis=-1, keepdims=0),
    ]
    inputs = [tensor("x", FLOAT, ["S", "N", features]), tensor("lengths", TensorProto.INT32, ["N"])]
    outputs = [tensor("scores", FLOAT, None), tensor("tags", INT, None)]
    lengths = np.linspace(steps, steps // 3, batch).astype(np.int32)
    feeds = {"x": w.rng.normal(size=(steps, batch, features)).astype(np.float32), "lengths": lengths}
    return make_model(nodes, inputs, outputs, w.arrays), feeds


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
        make_node("Conv", f"{'x' if k == 0 else f'r{k - 1}'} c{k}", f"h{k}", strides=[2, 2], pads=[1, 1, 1, 1]),
        make_node("Relu", f"h{k}", f"r{k}"))]  # fmt: skip
    nodes += [
        make_node("Conv", "r2 b", "box_map"),
        make_node("Reshape", "box_map flat_boxes", "box_rows"),
        make_node("Transpose", "box_rows", "raw", perm=[0, 2, 1]),
        make_node("Split", "raw two", "offsets extents", axis=2),
        make_node("Tanh", "offsets", "shifts"),
        make_node("Mul", "shifts small", "small_shifts"),
        make_node("Add", "grid small_shifts", "centres"),
        make_node("Sigmoid", "extents", "shares"),
        make_node("Mul", "shares small", "halves"),
        make_node("Sub", "centres halves", "low"),
        make_node("Add", "centres halves", "high"),
        make_node("Concat", "low high", "boxes", axis=2),
        make_node("Conv", "r2 s", "score_map"),
        make_node("Reshape", "score_map flat_scores", "score_rows"),
        make_node("Sigmoid", "score_rows", "scores"),
        make_node("NonMaxSuppression", "boxes scores most overlap least", "selected"),
        make_node("Gather", "selected last", "box_places", axis=1),
        make_node("Squeeze", "box_places mid", "places"),
        make_node("Reshape", "boxes box_shape", "all_boxes"),
        make_node("Gather", "all_boxes places", "kept_boxes"),
        make_node("GatherND", "scores selected", "kept_scores"),
    ]
    inputs = [tensor("x", FLOAT, [1, 3, size, size])]
    outputs = [tensor("selected", INT, None), tensor("kept_boxes", FLOAT, None), tensor("kept_scores", FLOAT, None)]
    return make_model(nodes, inputs, outputs, w.arrays), {"x": w.rng.normal(size=(1, 3, size, size)).astype(np.float32)}
