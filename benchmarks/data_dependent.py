"""Operators whose results depend on data, next to ONNX Runtime.

`python -m benchmarks.data_dependent [--seconds 1] [--only TopK]` times models of one node in turns, one thread each:
TopK, NonMaxSuppression, NonZero, CumSum, DFT, STFT, Det, Unique and ScatterND at sizes of detectors and decoders.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tilewright
from benchmarks.common.onnxruntime_peer import time_next_to_onnxruntime

RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    """Numbers of type float32."""
    return RNG.normal(size=shape).astype(np.float32)


def boxes(count: int) -> Array:
    """Corners of boxes in an image of size 1: float32 [1, count, 4]."""
    corner = RNG.random((1, count, 2)).astype(np.float32)
    return np.concatenate([corner, corner + np.float32(0.1)], 2)


def cases() -> Iterator[tuple[str, list[Array], list[Array], int]]:
    """Operator, fed inputs, constant inputs that follow, and number of outputs."""
    for rows, size, k in ((1, 1000, 5), (64, 1000, 5), (1, 32000, 50), (8400, 80, 1), (1, 20000, 20000)):
        yield "TopK", [normal(rows, size)], [np.array([k])], 2
    for count, classes in ((300, 1), (1000, 20), (8400, 80)):
        scores = RNG.random((1, classes, count)).astype(np.float32) ** 4
        limits = [np.array([100]), np.array([0.5], np.float32), np.array([0.5], np.float32)]
        yield "NonMaxSuppression", [boxes(count), scores], limits, 1
    for size in (100, 100_000, 1_000_000):
        yield "NonZero", [RNG.random(size) < 0.1], [], 1
    for shape, axis in (((1, 512), 1), ((64, 4096), 1), ((256, 256), 0), ((4, 1000, 80), 1)):
        yield "CumSum", [normal(*shape)], [np.array(axis)], 1
    for count, size in ((1, 64), (64, 64), (1, 512), (1, 1000), (64, 512), (1, 1009), (1, 4096), (64, 4096)):
        # small, as the absolute error of ONNX Runtime for 1,000 points is 1e-4 of the results
        yield "DFT", [normal(count, size, 1) / 100], [], 1
    yield "STFT", [normal(1, 16000, 1)], [np.array(160), np.hanning(400).astype(np.float32)], 1
    for count, size in ((64, 4), (1, 32), (1, 128)):
        yield "Det", [normal(count, size, size)], [], 1
    yield "Unique", [RNG.integers(0, 1000, 10_000).astype(np.float32)], [], 4
    yield "ScatterND", [normal(1000, 64), RNG.integers(0, 1000, (100, 1)), normal(100, 64)], [], 1


def one_node(op: str, fed: list[Array], constants: list[Array], outputs: int) -> onnx.ModelProto:
    """A model of one node, whose inputs are called x0, x1, ..."""
    names = [f"x{k}" for k in range(len(fed) + len(constants))]
    node = helper.make_node(op, names, [f"y{k}" for k in range(outputs)])
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in zip(names, fed, strict=False)]  # fmt: skip
    data = [numpy_helper.from_array(a, n) for n, a in zip(names[len(fed) :], constants, strict=True)]
    results = [helper.make_empty_tensor_value_info(o) for o in node.output]
    graph = helper.make_graph([node], "g", inputs, results, data)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def main() -> None:
    """Prints a row per case: median microseconds of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    ratios: list[float] = []
    for op, fed, constants, outputs in cases():
        if options.only not in op:
            continue
        model = one_node(op, fed, constants, outputs)
        executable = tilewright.compile(model, threads=1)
        feeds = {f"x{k}": a for k, a in enumerate(fed)}
        ours, theirs = time_next_to_onnxruntime(model, feeds, executable, options.seconds, rtol=1e-4)
        ratios.append(theirs / ours)
        sizes = " ".join("x".join(map(str, a.shape)) for a in fed)
        print(f"{op:18} {sizes:28} {ours:10.1f} {theirs:10.1f} {theirs / ours:6.2f}", flush=True)
    print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
