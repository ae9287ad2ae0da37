"""Overhead of a call: microseconds per call of a compiled model that computes almost nothing.

    python -m benchmarks.call_overhead [--limit 30]

The exit status is 1 where the fastest block of calls takes more than `--limit` microseconds per call. Fast calls
(`runtime/fast_call.py`) take less than 1 us.
"""

import argparse
import sys
import time

import numpy as np
from onnx import TensorProto, helper

import tilewright

BLOCKS, CALLS = 5, 500
"""Blocks of calls, of which the fastest counts, and calls per block."""


def doubling_model() -> tilewright.Executable:
    """y = x + x for x[n, 3], with n up to 64."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return tilewright.compile(model, shapes={"n": "1..64"}, optimizer="rule", threads=1)


def call_microseconds(exe: tilewright.Executable, x: np.ndarray) -> float:
    """Microseconds per call in the fastest block."""
    exe(x)
    times: list[float] = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(CALLS):
            exe(x)
        times.append((time.perf_counter() - start) / CALLS)
    return min(times) * 1e6


def main() -> int:
    """Measures and prints the overhead; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=30.0, metavar="US", help="microseconds per call (default: 30)")
    limit: float = parser.parse_args().limit
    us = call_microseconds(doubling_model(), np.ones((2, 3), np.float32))
    print(f"{us:.2f} us per call")
    return int(us > limit)


if __name__ == "__main__":
    sys.exit(main())
