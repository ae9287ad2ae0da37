"""Seconds that compilations take, with the cache empty and full, their peak memory, and another revision's seconds.

    git worktree add /tmp/base 155e3f8
    python -m benchmarks.compile_time --base /tmp/base [--models resnet50,bert_base] [--runs 1]
    python -m benchmarks.compile_time --base /tmp/base --models "" --operators 4

Every compilation runs in a process of its own, with folders of its own for cache and records, on all cores. The seconds
are those of `tilewright.compile`, modules that it imports included (as bytecode); beside them, in brackets, the CPU
seconds of all processes, which a loaded machine disturbs less. Peak memory is the proportional set size (PSS) of the
process and its workers together, with the cache empty, beside what the model's file (with external data) times 3 plus
300 MB allows. `--operators N` compiles every N-th single operator without the cache, one after the other.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.common.report import markdown_table
from benchmarks.zoo.models import MODELS

DEFAULT_MODELS = ("resnet50", "mobilenetv2", "bert_base", "resnet50_dyn", "ppocr_det", "ppocr_rec", "ppocr_cls")
Seconds = tuple[float, float]
"""Of the clock, and of all processors."""

HERE = Path(__file__).resolve().parents[1]
SAMPLE_SECONDS = 0.25

COMPILE = """
import json, os, sys, time
import tilewright
path, shapes = sys.argv[1], json.loads(sys.argv[2])
start = time.perf_counter()
tilewright.compile(path, shapes=shapes)
print(json.dumps([time.perf_counter() - start, sum(os.times()[:4])]))
"""

COMPILE_ALL = """
import json, sys, time
import onnx, tilewright
seconds = []
for path in sys.argv[1:]:
    start = time.perf_counter()
    tilewright.compile(path)
    seconds.append(time.perf_counter() - start)
print(json.dumps(seconds))
"""


def main() -> None:
    """Prints a table of models, then the median of single operators if they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(DEFAULT_MODELS), help="of the zoo, separated by commas")
    parser.add_argument("--base", type=Path, help="a working tree of the revision to compare with")
    parser.add_argument("--runs", type=int, default=1, help="compilations of each kind, of which the fastest counts")
    parser.add_argument("--operators", type=int, metavar="N", help="also every N-th single operator")
    options = parser.parse_args()
    rows = [_row(name, options.base, options.runs) for name in options.models.split(",") if name]
    header = ["model", "base", "cache empty", "cache full", "peak PSS MB", "allowed MB"]
    print(markdown_table(header, rows))
    if options.operators:
        trees = [HERE] if options.base is None else [HERE, options.base]
        medians = [f"{1e3 * _operator_seconds(tree, options.operators):.0f} ms" for tree in trees]
        print(f"\nsingle operators, median: {', the base '.join(medians)}")


def _row(name: str, base: Path | None, runs: int) -> list[str]:
    """Measures one model, each kind of compilation in turn."""
    before: list[Seconds] = []
    empty: list[Seconds] = []
    full: list[Seconds] = []
    peak = 0.0
    for _ in range(runs):
        if base is not None:
            before.append(_compile(name, base, {})[0])
        with tempfile.TemporaryDirectory() as folder:
            # records of earlier compilations would spare constructions
            cache = {"XDG_CACHE_HOME": folder, "XDG_DATA_HOME": folder, "TILEWRIGHT_CACHE": "on"}
            seconds, bytes_ = _compile(name, HERE, cache)
            empty.append(seconds)
            peak = max(peak, bytes_)
            full.append(_compile(name, HERE, cache)[0])
    reference = min(before, default=None)
    size = sum(x.stat().st_size for x in MODELS[name].path.parent.iterdir())
    shown = "-" if reference is None else _text(reference)
    cells = [_cells(min(x), reference) for x in (empty, full)]
    row = [name, shown, *cells, f"{peak / 1e6:.0f}", f"{3 * size / 1e6 + 300:.0f}"]
    print(*row, sep=" | ", file=sys.stderr, flush=True)
    return row


def _text(seconds: Seconds) -> str:
    return f"{seconds[0]:.2f} ({seconds[1]:.2f})"


def _cells(seconds: Seconds, reference: Seconds | None) -> str:
    """Seconds, with their shares of those of the base."""
    if reference is None:
        return _text(seconds)
    wall, cpu = (a / b for a, b in zip(seconds, reference, strict=True))
    return f"{_text(seconds)}: {wall:.2f} ({cpu:.2f})"


def _compile(name: str, tree: Path, variables: Mapping[str, str]) -> tuple[Seconds, float]:
    """The seconds of one compilation of a model by the sources of a tree, and the peak PSS in bytes."""
    model = MODELS[name]
    process = _start(tree, COMPILE, [str(model.path), json.dumps(dict(model.ranges) or None)], variables)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(_pss_bytes, _process_tree(process.pid))))
        time.sleep(SAMPLE_SECONDS)
    wall, cpu = _answer(process)
    return (wall, cpu), float(peak)


def _operator_seconds(tree: Path, step: int) -> float:
    """The median seconds of single operators, compiled by one process without the cache."""
    import onnx

    from benchmarks.operators.cases import all_cases

    with tempfile.TemporaryDirectory() as folder:
        paths: list[str] = []
        for case in all_cases()[::step]:
            paths.append(str(Path(folder) / f"{len(paths)}.onnx"))
            onnx.save(case.model(), paths[-1])
        process = _start(tree, COMPILE_ALL, paths, {"XDG_DATA_HOME": folder, "TILEWRIGHT_CACHE": "off"})
        answer = _answer(process)
    # the first one imports the compiler
    return median(answer[1:])


def _start(tree: Path, code: str, arguments: Sequence[str], variables: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Starts a process with the sources of a tree; its bytecode exists already."""
    cached = Path(tempfile.gettempdir()) / "tilewright-bytecode"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "TILEWRIGHT_JOBS")}
    environment |= {"PYTHONPATH": str(tree / "src"), "PYTHONPYCACHEPREFIX": str(cached), **variables}
    compiled = [sys.executable, "-m", "compileall", "-q", str(tree / "src")]
    subprocess.run(compiled, check=True, env=environment, stdout=subprocess.DEVNULL)
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _answer(process: "subprocess.Popen[str]") -> list[float]:
    """What a process printed last, as JSON; raises RuntimeError if it failed."""
    text, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a compilation ended with status {process.returncode}")
    return json.loads(text.splitlines()[-1])


def _process_tree(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    tree = [root]
    for process in tree:
        tree += children.get(process, [])
    return tree


def _pss_bytes(process: int) -> int:
    """The proportional set size of a process; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
