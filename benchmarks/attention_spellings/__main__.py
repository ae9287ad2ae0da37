"""Times of one attention in the spellings of different exporters, in turns, with the tasks of its kernels.

    python -m benchmarks.attention_spellings
    python -m benchmarks.attention_spellings --sizes 1x128x12x64,1x512x8x64 --threads 2

The kernels of all spellings are equal, so that times differ by noise only; 5 % is the limit.
"""

import argparse
import sys
import time
from statistics import median

import numpy as np

import tilewright
from benchmarks.attention_spellings.spellings import SPELLINGS, Sizes, attention_model, reference
from tilewright.runtime import Executable

ROUNDS = 15
BLOCK_SECONDS = 0.05
MAX_SPREAD = 1.05
"""Largest ratio of the times of two spellings."""


def main() -> int:
    """Measures every size; 1 where spellings differ by more than the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_spellings", description=__doc__)
    parser.add_argument("--sizes", default="1x128x12x64", help="batch x length x heads x size, comma-separated")
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    sizes = [Sizes(*map(int, text.split("x"))) for text in arguments.sizes.split(",")]
    passed = [measure(s, arguments.threads) for s in sizes]
    return 0 if all(passed) else 1


def measure(sizes: Sizes, threads: int | None) -> bool:
    """Prints the times of all spellings at one size; whether they are within the limit."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((sizes.batch, sizes.length, sizes.hidden)).astype(np.float32)
    keep = np.ones((sizes.batch, sizes.length), np.int64)
    expected = reference(sizes, x, keep)
    compiled = {n: tilewright.compile(attention_model(n, sizes), threads=threads) for n in SPELLINGS}
    errors = {n: float(np.abs(e(x, keep) - expected).max()) for n, e in compiled.items()}
    times: dict[str, list[float]] = {n: [] for n in compiled}
    for _ in range(ROUNDS):
        for name, executable in compiled.items():
            times[name].append(_seconds_per_call(executable, x, keep))
    medians = {n: median(t) for n, t in times.items()}
    fastest = min(medians.values())
    print(f"{sizes.batch} x {sizes.length}, {sizes.heads} heads of {sizes.size}")
    print(f"{'spelling':20} {'us':>9} {'ratio':>6} {'error':>9}")
    for name, seconds in medians.items():
        print(f"{name:20} {seconds * 1e6:9.1f} {seconds / fastest:6.3f} {errors[name]:9.1e}")
    spread = max(medians.values()) / fastest
    print(f"slowest / fastest: {spread:.3f} (limit {MAX_SPREAD})")
    return spread <= MAX_SPREAD


def _seconds_per_call(executable: Executable, *arrays: np.ndarray) -> float:
    start, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < BLOCK_SECONDS or not calls:
        executable(*arrays)
        calls += 1
    return elapsed / calls


if __name__ == "__main__":
    sys.exit(main())
