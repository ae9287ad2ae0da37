"""`tilewright bench`: time per call, next to ONNX Runtime's where it is installed and the file is an ONNX model.

Both engines take turns in blocks of calls with a pause in between, because worker threads of either spin for a
while after a call and would take the other's cores. Figures are medians over all calls.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from tilewright.cli.arrays import add_input_options, feeds_of
from tilewright.cli.common import (
    Result,
    Verbs,
    add_compile_options,
    add_threads_option,
    executable_of,
    is_compiled,
    table,
)
from tilewright.cli.ort import onnxruntime_engine, version
from tilewright.errors import OptionError


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "bench", help="time per call, next to ONNX Runtime's", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("file", metavar="ARTIFACT|MODEL", help="a compiled model, or an ONNX file to compile first")
    parser.add_argument("--blocks", type=int, default=5, metavar="N", help="blocks per engine (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="length of a block (default: 0.3)")
    parser.add_argument("--pause", type=float, default=0.2, metavar="S", help="pause between blocks (default: 0.2)")
    parser.add_argument("--no-onnxruntime", action="store_true", help="do not run ONNX Runtime")
    add_input_options(parser, random_default=True)
    add_compile_options(parser)
    add_threads_option(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Times both engines."""
    if options.blocks < 1:
        raise OptionError(f"expected at least 1, got {options.blocks}", where="--blocks")
    for name in ("seconds", "pause"):
        value = getattr(options, name)
        if not math.isfinite(value) or value < 0:
            raise OptionError(f"expected a finite number of seconds of at least 0, got {value}", where=f"--{name}")
    executable = executable_of(options).prepare()
    feeds = feeds_of(options, executable.manifest, random_default=True)
    engines: dict[str, Callable[[], Any]] = {"tilewright": lambda: executable.run(feeds)}
    if not options.no_onnxruntime and not is_compiled(options.file):
        other = onnxruntime_engine(options.file, executable.threads)
        if other is not None:
            engines["onnxruntime"] = lambda: other(feeds)
    times = timed(engines, options.blocks, options.seconds, options.pause)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    data: dict[str, Any] = {
        "file": options.file,
        "threads": executable.threads,
        "inputs": {name: list(array.shape) for name, array in feeds.items()},
        "engines": {
            name: {"median_s": medians[name], "min_s": min(seconds), "calls": len(seconds)}
            for name, seconds in times.items()
        },
    }
    if "onnxruntime" in medians:
        data["ratio"] = medians["tilewright"] / medians["onnxruntime"]
        data["onnxruntime_version"] = version()
    return Result(data, _text(times, data), optional=False)


def timed(engines: dict[str, Callable[[], Any]], blocks: int, seconds: float, pause: float) -> dict[str, list[float]]:
    """Seconds of every counted call of every engine, measured in alternating blocks.

    The first call of a block warms caches and threads and is not counted, unless it fills the block alone.
    """
    times: dict[str, list[float]] = {name: [] for name in engines}
    for call in engines.values():
        call()
    for _ in range(blocks):
        for name, call in engines.items():
            time.sleep(pause)
            times[name] += _block(call, seconds)
    return times


def _block(call: Callable[[], Any], seconds: float) -> list[float]:
    found: list[float] = []
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    if first >= seconds:
        return [first]
    while not found or sum(found) < seconds:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def _text(times: dict[str, list[float]], data: dict[str, Any]) -> str:
    rows = [
        (name, f"{statistics.median(t) * 1e3:.3f}", f"{min(t) * 1e3:.3f}", str(len(t))) for name, t in times.items()
    ]
    text = table(("engine", "median ms", "min ms", "calls"), rows)
    if "ratio" in data:
        text += f"\nratio {data['ratio']:.2f}"
    return f"{text}\n{data['threads']} threads"
