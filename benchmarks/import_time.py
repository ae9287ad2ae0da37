"""Import time of the package in a fresh process.

    python -m benchmarks.import_time [--limit 500]

The exit status is 1 if the fastest of several imports takes more than `--limit` milliseconds. The package imports its
names on first use, so neither the compiler nor NumPy is loaded.
"""

import argparse
import subprocess
import sys

RUNS = 5

SCRIPT = "import time; t = time.perf_counter(); import tilewright; print(time.perf_counter() - t)"


def import_milliseconds() -> float:
    """Milliseconds of the fastest import, each in a process of its own."""
    command = [sys.executable, "-c", SCRIPT]
    outputs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(RUNS)]
    return min(map(float, outputs)) * 1e3


def main() -> int:
    """Measures and prints the import time; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=500.0, metavar="MS", help="milliseconds (default: 500)")
    limit: float = parser.parse_args().limit
    milliseconds = import_milliseconds()
    print(f"{milliseconds:.1f} ms to import tilewright")
    return int(milliseconds > limit)


if __name__ == "__main__":
    sys.exit(main())
