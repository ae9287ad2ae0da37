"""`tilewright bench`: time per call, next to other engines where the file is an ONNX model.

Every engine has its own process; engines take turns in blocks of calls with a pause before each. With every block a
canary runs, a fixed matrix product: blocks where it does not take its typical time do not count, as another load
disturbed the machine. A figure is the median over the counted blocks of the median of their calls; the ratio is this
compiler's time over that of the fastest other engine.
"""

import argparse
import math
import os
from typing import Any

from tilewright.cli.arrays import add_input_options, input_choice
from tilewright.cli.common import (
    Progress,
    Result,
    Verbs,
    add_build_options,
    add_compile_options,
    add_threads_option,
    executable_of,
    is_compiled,
    table,
    with_progress,
)
from tilewright.errors import OptionError, pluralize
from tilewright.machine.host import host
from tilewright.measure import engine_comparison, interleaved_blocks
from tilewright.measure.engines import PEERS, check_installed, is_installed, version
from tilewright.measure.system_load import governor
from tilewright.version import __version__


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "bench", help="time per call, next to other engines'", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("file", metavar="ARTIFACT|MODEL", help="a compiled model, or an ONNX file to compile first")
    listed = ",".join(PEERS)
    parser.add_argument(
        "--engines", metavar="LIST", help=f"what to compare with, of {listed} (default: onnxruntime where installed)"
    )
    parser.add_argument("--no-onnxruntime", action="store_true", help="compare with nothing unless --engines says so")
    parser.add_argument(
        "--rounds", "--blocks", type=int, default=5, metavar="N", help="blocks per engine that count (default: 5)"
    )
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="length of a block (default: 0.3)")
    parser.add_argument("--pause", type=float, default=0.2, metavar="S", help="pause before each block (default: 0.2)")
    add_input_options(parser, random_default=True)
    add_compile_options(parser)
    add_build_options(parser)
    add_threads_option(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Times the engines."""
    if options.rounds < 1:
        raise OptionError(f"expected at least 1, got {options.rounds}", where="--rounds")
    for name in ("seconds", "pause"):
        value = getattr(options, name)
        if not math.isfinite(value) or value < 0:
            raise OptionError(f"expected a finite number of seconds of at least 0, got {value}", where=f"--{name}")
    peers = _peers(options)
    inputs = input_choice(options, random_default=True)
    executable = executable_of(options, inputs.check).prepare()
    feeds = inputs.feeds(executable.manifest)
    executable.run(feeds)  # what does not fit is an error of this process
    plan = interleaved_blocks.RunPlan(options.rounds, options.seconds, options.pause)

    def timed(report_progress: Progress) -> engine_comparison.ComparisonResult:
        return engine_comparison.compare_engines(
            executable, None if is_compiled(options.file) else options.file, peers, feeds, plan, report_progress
        )

    result = with_progress(options, timed)
    data = {
        "file": options.file,
        "threads": executable.threads,
        "rounds": options.rounds,
        "inputs": {name: list(array.shape) for name, array in feeds.items()},
        **comparison_data(result),
    }
    return Result(data, comparison_text(data), optional=False)


def _peers(options: argparse.Namespace) -> tuple[str, ...]:
    """The engines to compare with; raises where one is not installed."""
    compiled = is_compiled(options.file)
    if options.engines is None:
        default = "onnxruntime"
        return () if options.no_onnxruntime or compiled or not is_installed(default) else (default,)
    names = tuple(dict.fromkeys(name.strip() for name in options.engines.split(",") if name.strip()))
    for name in names:
        check_installed(name)
    if names and compiled:
        what = "other engines can't run a model that is compiled already"
        raise OptionError(what, where=f"file '{options.file}'", hint="give the ONNX model, or leave out --engines")
    return names


def comparison_data(result: engine_comparison.ComparisonResult) -> dict[str, Any]:
    """The result of a comparison and its circumstances, for `--json`."""
    versions = {name: __version__ if name == "tilewright" else version(name) for name in result.engines}
    data: dict[str, Any] = {
        "engines": {
            name: {"median_s": s.median, "spread": s.spread, "min_s": s.fastest, "calls": s.calls,
                   "quiet_blocks": s.undisturbed, "blocks": s.blocks, "version": versions[name]}
            for name, s in result.engines.items()
        },
        "canary": {"best_s": result.canary_best, "typical_s": result.canary_typical, "worst_s": result.canary_worst,
                   "limit": interleaved_blocks.CANARY_TOLERANCE},
        "machine": {"processor": host().model, "cpus": os.cpu_count(), "governor": governor(), "others": result.others},
    }  # fmt: skip
    best = result.best_peer()
    if best is not None:
        data["best_peer"] = best
        data["ratio"] = result.engines["tilewright"].median / result.engines[best].median
    if "onnxruntime" in versions:
        data["onnxruntime_version"] = versions["onnxruntime"]
    return data


def comparison_text(data: dict[str, Any]) -> str:
    """The report of a comparison.

    Args:
        data: what `comparison_data` gives, with `rounds` and `threads`.
    """
    rows = [_row(name, engine) for name, engine in data["engines"].items()]
    lines = [table(("engine", "median ms", "spread", "min ms", "calls", "quiet blocks"), rows)]
    if "ratio" in data:
        lines.append(f"ratio {data['ratio']:.2f} of {data['best_peer']}'s time")
    if any(e["quiet_blocks"] < data["rounds"] for e in data["engines"].values()):
        lines.append(f"the machine was disturbed: fewer than {data['rounds']} blocks of an engine were quiet")
    machine, canary = data["machine"], data["canary"]
    if canary["typical_s"] > canary["limit"] * canary["best_s"]:
        lines.append("the machine was slower than at its best for most of the time; all engines were measured so")
    clock = f", governor {machine['governor']}" if machine["governor"] else ""
    lines += [
        f"{pluralize(data['threads'], 'thread')}; {machine['processor']},"
        f" {pluralize(machine['cpus'], 'logical CPU')}{clock}",
        f"others took {machine['others']:.0%} of the CPUs; canary {canary['typical_s'] * 1e3:.3f} ms,"
        f" {canary['best_s'] * 1e3:.3f} to {canary['worst_s'] * 1e3:.3f}",
    ]
    return "\n".join(lines)


def _row(name: str, e: dict[str, Any]) -> tuple[str, ...]:
    number = str(e["version"]).partition("-")[0]
    times = (f"{e['median_s'] * 1e3:.3f}", f"{e['spread']:.1%}", f"{e['min_s'] * 1e3:.3f}")
    return (f"{name} {number}", *times, str(e["calls"]), f"{e['quiet_blocks']}/{e['blocks']}")
