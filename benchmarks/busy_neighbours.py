"""What a call takes beside busy processes, and with more threads than CPUs: this compiler, ONNX Runtime and OpenVINO.

    python -m benchmarks.busy_neighbours [--models resnet50,mobilenetv2] [--neighbours 2] [--threads 2] [--rounds 7]

Every engine runs a model of the zoo in a process of its own, in blocks of calls, in turns with a pause before each.
A round has one block per engine on the quiet machine, one beside `--neighbours` endless loops of equal priority, and
one with four times the threads on the quiet machine. Figures are medians over the rounds of the blocks' medians; the
slowest tenth of the calls beside busy processes begins at `p90`.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import tilewright
from benchmarks.common.environment import describe
from benchmarks.zoo.model import Model, build_model
from benchmarks.zoo.models import MODELS
from tilewright.measure.engine_comparison import EngineProcess, start_engine
from tilewright.measure.engine_process import OWN, write_feeds
from tilewright.measure.engines import PEERS

BLOCK_SECONDS, BUSY_BLOCK_SECONDS, PAUSE_SECONDS = 0.5, 1.5, 0.3
"""Length of a block of calls, of one beside busy processes, and the pause before each."""

OVERSUBSCRIPTION = 4
"""Threads of the blocks with too many threads, as a multiple of `--threads`."""

_LOOP = "while True: pass"


@dataclass(frozen=True, slots=True)
class Row:
    """An engine's times per call of a model, in seconds.

    Attributes:
        quiet: on the quiet machine.
        busy: beside busy processes.
        busy_p90: the ninth decile of the calls beside busy processes.
        many: with `OVERSUBSCRIPTION` times the threads on the quiet machine.
    """

    quiet: float
    busy: float
    busy_p90: float
    many: float

    def text(self, model: str, engine: str) -> str:
        """A line of the table."""
        times = f"{1e3 * self.quiet:.2f} | {1e3 * self.busy:.2f} | {1e3 * self.busy_p90:.2f}"
        return (
            f"| {model} | {engine} | {times} | {self.busy / self.quiet:.2f} | "
            f"{1e3 * self.many:.2f} | {self.many / self.quiet:.2f} |"
        )


@contextmanager
def busy_processes(count: int) -> Generator[None]:
    """Endless loops, each in a process of its own, with the priority of this one; killed when the context is left."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", _LOOP]) for _ in range(count)]
    try:
        time.sleep(PAUSE_SECONDS)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure_model(model: Model, threads: int, neighbours: int, rounds: int) -> dict[str, Row]:
    """Times of every engine for the first sizes of a model, by the engine's name."""
    feeds = model.inputs(model.shapes[0])
    with TemporaryDirectory() as name, ExitStack() as started:
        folder = Path(name)
        executable = tilewright.compile(model.path, shapes=dict(model.ranges) or None, threads=threads)
        executable.save(folder / "model.tw")
        described = write_feeds(folder / "feeds.npz", dict(feeds), {s.name: s.dtype for s in executable.inputs})
        files = {OWN: str(folder / "model.tw")} | dict.fromkeys(PEERS, str(model.path))
        engines: dict[tuple[str, int], EngineProcess] = {}
        for engine, file in files.items():
            for count in (threads, OVERSUBSCRIPTION * threads):
                job = {"engine": engine, "model": file, "threads": count, "feeds": str(folder / "feeds.npz")}
                engines[engine, count] = started.enter_context(start_engine({**job, "described": described}))
        blocks = [_round(engines, tuple(files), threads, neighbours) for _ in range(rounds)]
    return {engine: row_of([b[engine] for b in blocks]) for engine in files}


Blocks = Mapping[str, Sequence[float]]
"""Seconds of calls by kind of block: quiet, busy, many."""


def _round(
    engines: Mapping[tuple[str, int], EngineProcess], names: Sequence[str], threads: int, neighbours: int
) -> dict[str, Blocks]:
    """One block of each kind per engine."""
    blocks: dict[str, dict[str, Sequence[float]]] = {name: {} for name in names}
    for kind, count in (("quiet", threads), ("many", OVERSUBSCRIPTION * threads)):
        for name in names:
            time.sleep(PAUSE_SECONDS)
            blocks[name][kind] = engines[name, count].block(BLOCK_SECONDS)
    with busy_processes(neighbours):
        for name in names:
            time.sleep(PAUSE_SECONDS)
            blocks[name]["busy"] = engines[name, threads].block(BUSY_BLOCK_SECONDS)
    return dict(blocks)


def row_of(rounds: Sequence[Blocks]) -> Row:
    """The row of an engine from its rounds."""

    def median(kind: str) -> float:
        return float(np.median([np.median(r[kind]) for r in rounds]))

    p90 = float(np.quantile(np.concatenate([r["busy"] for r in rounds]), 0.9))
    return Row(median("quiet"), median("busy"), p90, median("many"))


def main() -> int:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50,mobilenetv2", help="of the zoo, separated by commas")
    parser.add_argument("--neighbours", type=int, default=2, help="busy processes (default: 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads per call (default: 2)")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each kind per engine (default: 7)")
    arguments = parser.parse_args()
    for what, value in describe(" ".join(["python -m benchmarks.busy_neighbours", *sys.argv[1:]])).items():
        print(f"{what}: {value}")
    print()
    print("| model | engine | quiet ms | busy ms | busy p90 ms | busy/quiet | many threads ms | many/quiet |")
    print("|---|---|---|---|---|---|---|---|")
    for name in str(arguments.models).split(","):
        model = MODELS[name]
        build_model(model)
        rows = measure_model(model, arguments.threads, arguments.neighbours, arguments.rounds)
        for engine, row in rows.items():
            print(row.text(name, engine), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
