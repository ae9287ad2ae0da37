"""LSTMs of random sizes, next to ONNX Runtime.

`python -m benchmarks.lstm_sizes [--count 24] [--seed 0] [--seconds 0.5]` draws 1 to 512 states, 1 to 1,000 steps
and batches of 1 to 32, uniformly in their logarithms, and times models of one LSTM in turns, one thread each. Models
are compiled before anything is timed; `--prepare` ends there, with a full cache.
"""

import argparse

import numpy as np

import tilewright
from benchmarks.common.onnxruntime_peer import time_next_to_onnxruntime
from benchmarks.control_flow import lstm

MAX_SIZES = (512, 1000, 32)
"""The most states, steps and sequences."""


def draw_sizes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """States, steps and batch of so many LSTMs."""
    rng = np.random.default_rng(seed)
    logarithms = rng.uniform(0, np.log(np.array(MAX_SIZES) + 0.99), (count, 3))
    return [(int(h), int(s), int(n)) for h, s, n in np.exp(logarithms)]


def main() -> None:
    """Prints a row per model: states, steps, batch, median microseconds of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.5, help="per model")
    parser.add_argument("--prepare", action="store_true", help="compile only")
    options = parser.parse_args()
    models = {sizes: lstm(*sizes) for sizes in draw_sizes(options.count, options.seed)}
    executables = {sizes: tilewright.compile(model, threads=1) for sizes, (model, _) in models.items()}
    if options.prepare:
        return
    ratios: list[float] = []
    print("| states | steps | batch | Tilewright us | ONNX Runtime us | ratio |\n|---|---|---|---|---|---|")
    for sizes, (model, feeds) in sorted(models.items()):
        ours, theirs = time_next_to_onnxruntime(model, feeds, executables[sizes], options.seconds)
        ratios.append(theirs / ours)
        print(f"| {' | '.join(map(str, sizes))} | {ours:.1f} | {theirs:.1f} | {ratios[-1]:.2f} |", flush=True)
    print(f"\ngeometric mean {np.exp(np.mean(np.log(ratios))):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
