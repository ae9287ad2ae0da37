"""Peak memory and time of attention over long sequences: one fused kernel stores no scores.

    python -m benchmarks.long_attention
    python -m benchmarks.long_attention --lengths 1024,4096,16384 --causal

Every length is compiled here, and run by a process of its own that has the runtime alone: its peak memory during calls,
beyond what it had before inputs and outputs were there, and the time of a call over queries x keys. The exit status is
1 where the peak exceeds inputs and outputs by more than 64 MiB, or the time per query and key of the longest sequence
exceeds that of the shortest by more than a fifth.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

import tilewright

HEADS, SIZE = 8, 64
MAX_EXCESS = 64 << 20
"""Bytes beyond inputs and outputs."""

MAX_GROWTH = 1.2
"""Of the time per query and key, from the shortest to the longest sequence."""

RUN = """
import json, sys, time
import numpy as np
import tilewright

def status(name):
    line = next(x for x in open("/proc/self/status") if x.startswith(name))
    return int(line.split()[1]) << 10

path, heads, length, size, calls = sys.argv[1], *map(int, sys.argv[2:])
attention = tilewright.load(path)
rng = np.random.default_rng(0)
before = status("VmRSS")
feeds = [rng.standard_normal((1, heads, length, size), np.float32) for _ in range(3)]
times = []
for _ in range(calls):
    start = time.perf_counter()
    result = attention(*feeds)
    times.append(time.perf_counter() - start)
data = sum(x.nbytes for x in (*feeds, result))
print(json.dumps({"peak": status("VmHWM") - before, "data": data, "time": min(times)}))
"""
"""The program of the process that runs an artifact."""


@dataclass(frozen=True)
class Measured:
    """What was measured at one length.

    Attributes:
        length: queries and keys.
        peak: bytes beyond those before inputs and outputs were there.
        data: bytes of inputs and outputs.
        seconds: of the fastest call.
    """

    length: int
    peak: int
    data: int
    seconds: float

    @property
    def picoseconds(self) -> float:
        """Of a call, per head, query and key."""
        return self.seconds * 1e12 / (HEADS * self.length**2)


def attention_model(length: int, causal: bool) -> onnx.ModelProto:
    """Attention of 8 heads of 64 over a sequence."""
    shape = (1, HEADS, length, SIZE)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], "attention", is_causal=int(causal))
    q, k, v, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "qkvy")
    graph = helper.make_graph([node], "attention", [q, k, v], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def measure(length: int, causal: bool, threads: int | None, calls: int) -> Measured:
    """The peak memory and the time at one length."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attention.tw"
        tilewright.compile(attention_model(length, causal), threads=threads).save(path)
        command = [sys.executable, "-c", RUN, str(path), *map(str, (HEADS, length, SIZE, calls))]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Measured(length, found["peak"], found["data"], found["time"])


def main() -> int:
    """Measures every length, prints a table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="2048,4096,8192,16384", help="comma-separated (default: %(default)s)")
    parser.add_argument("--causal", action="store_true", help="queries attend to keys up to their own position")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--calls", type=int, default=2, help="per length; the fastest counts")
    arguments = parser.parse_args()
    lengths = [int(x) for x in arguments.lengths.split(",")]
    print(f"{HEADS} heads of {SIZE}")
    print(f"{'length':>7} {'ms':>9} {'ps per pair':>12} {'data MiB':>9} {'peak - data MiB':>16}")
    rows = [measure(n, arguments.causal, arguments.threads, arguments.calls) for n in lengths]
    for x in rows:
        beyond = (x.peak - x.data) / (1 << 20)
        print(f"{x.length:7} {x.seconds * 1e3:9.1f} {x.picoseconds:12.2f} {x.data / (1 << 20):9.1f} {beyond:16.1f}")
    growth = max(rows, key=lambda x: x.length).picoseconds / min(rows, key=lambda x: x.length).picoseconds
    print(f"time per pair, longest over shortest: {growth:.2f} (limit {MAX_GROWTH})")
    return int(growth > MAX_GROWTH or any(x.peak - x.data > MAX_EXCESS for x in rows))


if __name__ == "__main__":
    sys.exit(main())
