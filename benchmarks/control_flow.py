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
import onnx
import onnxruntime
from onnx import TensorProto, helper

import tilewright
from benchmarks import sequence_models
from tilewright.measure.timing import time_calls

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Model = tuple[onnx.ModelProto, Mapping[str, Any]]
RNG = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def _value(name: str, kind: int, shape: list[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Mapping[str, np.ndarray]) -> Any:
    tensors = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node of space-separated names; "-" omits an input."""
    return helper.make_node(op, [x if x != "-" else "" for x in inputs.split()], outputs.split(), **attributes)


def conditional() -> Model:
    """Energy of a frame decides which of two encoders runs, as in voice activity detection."""
    branches: dict[str, Any] = {}
    for name, op in (("then", "Relu"), ("else", "Tanh")):
        nodes = [_node("MatMul", f"h {name}1", f"{name}a"), _node(op, f"{name}a", f"{name}b"),
                 _node("MatMul", f"{name}b {name}2", f"{name}c")]  # fmt: skip
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [_value(f"{name}c", FLOAT, [1, 64])])
    weights = {
        f"{n}{k}": _normal(128 if k == 1 else 256, 256 if k == 1 else 64) for n in ("then", "else") for k in (1, 2)
    }
    nodes = [_node("MatMul", "x w", "p"), _node("Relu", "p", "h"), _node("Mul", "x x", "sq"),
             _node("ReduceMean", "sq", "e", keepdims=0), _node("Greater", "e one", "c"),
             _node("If", "c", "z", name="choice", **branches), _node("Sigmoid", "z", "y")]  # fmt: skip
    constants = {"w": _normal(512, 128), "one": np.float32(1), **weights}
    model = _model(nodes, [_value("x", FLOAT, [1, 512])], [_value("y", FLOAT, [1, 64])], constants)
    return model, {"x": RNG.normal(size=(1, 512)).astype(np.float32)}


def decoder(width: int = 128, vocabulary: int = 512, steps: int = 32) -> Model:
    """Greedy decoding: each iteration embeds the last token, attends to the caches, and takes the likeliest token."""
    body = [
        _node("Gather", "table token", "x", axis=0),
        *(_node("MatMul", f"x w{k}", k) for k in "qkv"),
        _node("Concat", "keys k", "keys2", axis=0),
        _node("Concat", "values v", "values2", axis=0),
        _node("Transpose", "keys2", "kt", perm=[1, 0]),
        _node("MatMul", "q kt", "s"),
        _node("Mul", "s scale", "ss"),
        _node("Softmax", "ss", "p", axis=-1),
        _node("MatMul", "p values2", "a"),
        _node("Add", "x a", "h"),
        _node("MatMul", "h w1", "f"),
        _node("Relu", "f", "g"),
        _node("MatMul", "g w2", "o"),
        _node("Add", "h o", "r"),
        _node("MatMul", "r head", "logits"),
        _node("ArgMax", "logits", "next", axis=1, keepdims=0),
        _node("Squeeze", "next zero", "flat"),
        _node("Equal", "flat stop", "is_end"),
        _node("Not", "is_end", "more"),
        _node("Identity", "next", "out"),
    ]
    cache = [None, width]
    graph = helper.make_graph(
        body, "body",
        [_value("i", INT, []), _value("go", BOOL, []), _value("token", INT, [1]), _value("keys", FLOAT, cache),
         _value("values", FLOAT, cache)],
        [_value("more", BOOL, []), _value("next", INT, [1]), _value("keys2", FLOAT, cache),
         _value("values2", FLOAT, cache), _value("out", INT, [1])],
    )  # fmt: skip
    constants = {
        "table": _normal(vocabulary, width) * 20, "head": _normal(width, vocabulary), "zero": np.array([0]),
        "stop": np.array(-1), "scale": np.float32(width**-0.5), "w1": _normal(width, 4 * width),
        "w2": _normal(4 * width, width), **{f"w{k}": _normal(width, width) for k in "qkv"},
    }  # fmt: skip
    loop = _node("Loop", "n - first k0 v0", "last ka va tokens", name="decode", body=graph)
    inputs = [_value("n", INT, []), _value("first", INT, [1]), _value("k0", FLOAT, ["P", width]),
              _value("v0", FLOAT, ["P", width])]  # fmt: skip
    model = _model([loop], inputs, [_value("tokens", INT, [None, 1])], constants)
    prompt = RNG.normal(size=(2, 8, width)).astype(np.float32)
    return model, {"n": np.array(steps), "first": np.array([3]), "k0": prompt[0], "v0": prompt[1]}


def loop(count: int = 1000) -> Model:
    """A body of one addition of 16 numbers."""
    graph = helper.make_graph(
        [_node("Add", "v x", "w")], "body", [_value("i", INT, []), _value("go", BOOL, []), _value("v", FLOAT, [16])],
        [_value("go", BOOL, []), _value("w", FLOAT, [16])],
    )  # fmt: skip
    nodes = [_node("Loop", "n - x", "y", name="loop", body=graph)]
    model = _model(nodes, [_value("n", INT, []), _value("x", FLOAT, [16])], [_value("y", FLOAT, [16])], {})
    return model, {"n": np.array(count), "x": np.ones(16, np.float32)}


def scan(steps: int = 100, hidden: int = 64) -> Model:
    """A plain recurrent layer of batch 1."""
    graph = helper.make_graph(
        [_node("MatMul", "now w", "a"), _node("MatMul", "h r", "b"), _node("Add", "a b", "c"),
         _node("Tanh", "c", "new"), _node("Identity", "new", "out")], "body",
        [_value("h", FLOAT, [1, hidden]), _value("now", FLOAT, [1, 32])],
        [_value("new", FLOAT, [1, hidden]), _value("out", FLOAT, [1, hidden])],
    )  # fmt: skip
    nodes = [_node("Scan", "h0 x", "last all", name="scan", body=graph, num_scan_inputs=1)]
    inputs = [_value("h0", FLOAT, [1, hidden]), _value("x", FLOAT, ["S", 1, 32])]
    outputs = [_value("last", FLOAT, [1, hidden]), _value("all", FLOAT, ["S", 1, hidden])]
    model = _model(nodes, inputs, outputs, {"w": _normal(32, hidden), "r": _normal(hidden, hidden)})
    return model, {"h0": np.zeros((1, hidden), np.float32), "x": _normal(steps, 1, 32)}


def lstm(hidden: int, steps: int = 100, batch: int = 1) -> Model:
    """An LSTM whose inputs are as wide as its states."""
    weights = {"w": _normal(1, 4 * hidden, hidden) * 0.1, "r": _normal(1, 4 * hidden, hidden) * 0.1}
    node = _node("LSTM", "x w r", "y h", hidden_size=hidden, name="lstm")
    outputs = [_value("y", FLOAT, None), _value("h", FLOAT, None)]
    model = _model([node], [_value("x", FLOAT, [steps, batch, hidden])], outputs, weights)
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


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compare(name: str, seconds: float) -> None:
    """Prints the median times of both engines, in turns, once their results agree."""
    import time

    model, feeds = MODELS[name]()
    exe, session = tilewright.compile(model, threads=1), _session(model)
    names = [o.name for o in session.get_outputs()]
    for output, expected in zip(names, session.run(None, dict(feeds)), strict=True):
        np.testing.assert_allclose(exe.run(feeds)[output], expected, rtol=1e-3, atol=1e-3)
    runs: Mapping[str, Callable[[], object]] = {
        "tilewright": lambda: exe.run(feeds),
        "onnxruntime": lambda: session.run(None, dict(feeds)),
    }
    times: dict[str, list[float]] = {engine: [] for engine in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for engine, run in runs.items():
            run()
            times[engine] += time_calls(run, 3)
    ours, theirs = (float(np.median(times[engine])) * 1e6 for engine in runs)
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
