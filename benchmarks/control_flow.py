"""Models with control flow, next to ONNX Runtime.

`python -m benchmarks.control_flow [--seconds 3] [--only decoder]` times in turns, one thread each:

- `if`: a small network whose data select one of two branches;
- `decoder`: greedy decoding, a Loop whose body is a one-layer transformer with key and value caches that grow;
- `loop`: 1,000 iterations of one small element-wise body, which shows what an iteration costs;
- `scan`: a recurrent layer written as a Scan;
- `beams`, `tagger` and `detector`: the models of `sequence_models.py`;
- `lstm64` and `lstm256`: an LSTM of so many states, 100 steps of batch 1.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import helper

import tilewright
from benchmarks import sequence_models
from benchmarks.common.model_builders import BOOL, FLOAT, INT, Model, make_model, make_node, tensor
from benchmarks.common.onnxruntime_peer import time_next_to_onnxruntime

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def conditional() -> Model:
    """Energy of a frame decides which of two encoders runs, as in voice activity detection."""
    branches: dict[str, Any] = {}
    for name, op in (("then", "Relu"), ("else", "Tanh")):
        nodes = [make_node("MatMul", f"h {name}1", f"{name}a"), make_node(op, f"{name}a", f"{name}b"),
                 make_node("MatMul", f"{name}b {name}2", f"{name}c")]  # fmt: skip
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [tensor(f"{name}c", FLOAT, [1, 64])])
    weights = {
        f"{n}{k}": _normal(128 if k == 1 else 256, 256 if k == 1 else 64) for n in ("then", "else") for k in (1, 2)
    }
    nodes = [make_node("MatMul", "x w", "p"), make_node("Relu", "p", "h"), make_node("Mul", "x x", "sq"),
             make_node("ReduceMean", "sq", "e", keepdims=0), make_node("Greater", "e one", "c"),
             make_node("If", "c", "z", **branches), make_node("Sigmoid", "z", "y")]  # fmt: skip
    constants = {"w": _normal(512, 128), "one": np.array(1, np.float32), **weights}
    model = make_model(nodes, [tensor("x", FLOAT, [1, 512])], [tensor("y", FLOAT, [1, 64])], constants)
    return model, {"x": RNG.normal(size=(1, 512)).astype(np.float32)}


def decoder(width: int = 128, vocabulary: int = 512, steps: int = 32) -> Model:
    """Greedy decoding: each iteration embeds the last token, attends to the caches, and takes the likeliest token."""
    body = [
        make_node("Gather", "table token", "x", axis=0),
        *(make_node("MatMul", f"x w{k}", k) for k in "qkv"),
        make_node("Concat", "keys k", "keys2", axis=0),
        make_node("Concat", "values v", "values2", axis=0),
        make_node("Transpose", "keys2", "kt", perm=[1, 0]),
        make_node("MatMul", "q kt", "s"),
        make_node("Mul", "s scale", "ss"),
        make_node("Softmax", "ss", "p", axis=-1),
        make_node("MatMul", "p values2", "a"),
        make_node("Add", "x a", "h"),
        make_node("MatMul", "h w1", "f"),
        make_node("Relu", "f", "g"),
        make_node("MatMul", "g w2", "o"),
        make_node("Add", "h o", "r"),
        make_node("MatMul", "r head", "logits"),
        make_node("ArgMax", "logits", "next", axis=1, keepdims=0),
        make_node("Squeeze", "next zero", "flat"),
        make_node("Equal", "flat stop", "is_end"),
        make_node("Not", "is_end", "more"),
        make_node("Identity", "next", "out"),
    ]
    cache = [None, width]
    graph = helper.make_graph(
        body, "body",
        [tensor("i", INT, []), tensor("go", BOOL, []), tensor("token", INT, [1]), tensor("keys", FLOAT, cache),
         tensor("values", FLOAT, cache)],
        [tensor("more", BOOL, []), tensor("next", INT, [1]), tensor("keys2", FLOAT, cache),
         tensor("values2", FLOAT, cache), tensor("out", INT, [1])],
    )  # fmt: skip
    constants = {
        "table": _normal(vocabulary, width) * 20, "head": _normal(width, vocabulary), "zero": np.array([0]),
        "stop": np.array(-1), "scale": np.array(width**-0.5, np.float32), "w1": _normal(width, 4 * width),
        "w2": _normal(4 * width, width), **{f"w{k}": _normal(width, width) for k in "qkv"},
    }  # fmt: skip
    loop = make_node("Loop", "n - first k0 v0", "last ka va tokens", body=graph)
    inputs = [tensor("n", INT, []), tensor("first", INT, [1]), tensor("k0", FLOAT, ["P", width]),
              tensor("v0", FLOAT, ["P", width])]  # fmt: skip
    model = make_model([loop], inputs, [tensor("tokens", INT, [None, 1])], constants)
    prompt = RNG.normal(size=(2, 8, width)).astype(np.float32)
    return model, {"n": np.array(steps), "first": np.array([3]), "k0": prompt[0], "v0": prompt[1]}


def loop(count: int = 1000) -> Model:
    """A body of one addition of 16 numbers."""
    graph = helper.make_graph(
        [make_node("Add", "v x", "w")], "body",
        [tensor("i", INT, []), tensor("go", BOOL, []), tensor("v", FLOAT, [16])],
        [tensor("go", BOOL, []), tensor("w", FLOAT, [16])],
    )  # fmt: skip
    nodes = [make_node("Loop", "n - x", "y", body=graph)]
    model = make_model(nodes, [tensor("n", INT, []), tensor("x", FLOAT, [16])], [tensor("y", FLOAT, [16])], {})
    return model, {"n": np.array(count), "x": np.ones(16, np.float32)}


def scan(steps: int = 100, hidden: int = 64) -> Model:
    """A plain recurrent layer of batch 1."""
    graph = helper.make_graph(
        [make_node("MatMul", "now w", "a"), make_node("MatMul", "h r", "b"), make_node("Add", "a b", "c"),
         make_node("Tanh", "c", "new"), make_node("Identity", "new", "out")], "body",
        [tensor("h", FLOAT, [1, hidden]), tensor("now", FLOAT, [1, 32])],
        [tensor("new", FLOAT, [1, hidden]), tensor("out", FLOAT, [1, hidden])],
    )  # fmt: skip
    nodes = [make_node("Scan", "h0 x", "last all", body=graph, num_scan_inputs=1)]
    inputs = [tensor("h0", FLOAT, [1, hidden]), tensor("x", FLOAT, ["S", 1, 32])]
    outputs = [tensor("last", FLOAT, [1, hidden]), tensor("all", FLOAT, ["S", 1, hidden])]
    model = make_model(nodes, inputs, outputs, {"w": _normal(32, hidden), "r": _normal(hidden, hidden)})
    return model, {"h0": np.zeros((1, hidden), np.float32), "x": _normal(steps, 1, 32)}


def lstm(hidden: int, steps: int = 100, batch: int = 1) -> Model:
    """An LSTM whose inputs are as wide as its states."""
    weights = {"w": _normal(1, 4 * hidden, hidden) * 0.1, "r": _normal(1, 4 * hidden, hidden) * 0.1}
    node = make_node("LSTM", "x w r", "y h", hidden_size=hidden)
    outputs = [tensor("y", FLOAT, None), tensor("h", FLOAT, None)]
    model = make_model([node], [tensor("x", FLOAT, [steps, batch, hidden])], outputs, weights)
    return model, {"x": RNG.normal(size=(steps, batch, hidden)).astype(np.float32)}


MODELS: Mapping[str, Callable[[], Model]] = {
    "if": conditional,
    "decoder": decoder,
    "loop": loop,
    "scan": scan,
    "beams": sequence_models.beam_search,
    "tagger": sequence_models.tagger,
    "detector": sequence_models.detector,
    "lstm64": lambda: lstm(64),
    "lstm256": lambda: lstm(256),
}


def compare(name: str, seconds: float) -> None:
    """Prints the median times of both engines, in turns, once their results agree."""
    model, feeds = MODELS[name]()
    ours, theirs = time_next_to_onnxruntime(model, feeds, tilewright.compile(model, threads=1), seconds, turn=4)
    print(f"{name:8s}  tilewright {ours:9.1f} us  onnxruntime {theirs:9.1f} us  ratio {theirs / ours:.2f}", flush=True)


def main() -> None:
    """Parses the arguments and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="per model")
    parser.add_argument("--only", choices=sorted(MODELS), nargs="*", help="models")
    arguments = parser.parse_args()
    for name in arguments.only or MODELS:
        compare(name, arguments.seconds)


if __name__ == "__main__":
    main()
