"""`tilewright tune`: measures programs of a model's kernels and records the fastest, which `compile` then finds.

It ends when the budget is spent: after a time (`--budget 5m`), a number of measured programs (`--trials`), or when the
model is predicted to be so many times faster (`--target-speedup`), whichever comes first; after five minutes where
neither a time nor a number is given. Everything measured is kept at once. Ctrl-C ends it and prints the gain; the same
command goes on where it ended. A kernel whose measured programs do not win outside the noise stays as it was.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.cli.arrays import read_npz
from tilewright.cli.common import (
    Progress,
    Result,
    Verbs,
    add_build_options,
    add_compile_options,
    build_options,
    compile_options,
    reject_compiled,
    table,
    with_progress,
)
from tilewright.cli.exit_codes import INTERRUPTED, USER_ERROR
from tilewright.cli.output_files import check_writable, write_text
from tilewright.cli.terminal_line import TerminalLine
from tilewright.errors import OptionError, pluralize

if TYPE_CHECKING:
    from tilewright.driver.tune.pipeline import TuneOptions
    from tilewright.driver.tune.session import SessionStatus

VARIANTS = ("search", "ansor", "evolution", "random")
ORDERS = ("gradient", "eto")

MIN_GAIN = 0.001
"""The least increase of a kernel's speedup that has a line of its own."""


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "tune", help="measure programs of a model's kernels and record the fastest", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("file", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "--budget", metavar="TIME",
        help="wall-clock time of everything: 90s, 5m, 1h30m (default: 5m); a round, a compilation or the shortest"
        " comparison that has begun is completed",
    )  # fmt: skip
    parser.add_argument("--trials", type=int, metavar="N", help="programs to measure at most")
    parser.add_argument("--target-speedup", type=float, metavar="X", help="end when the model is X times faster")
    parser.add_argument(
        "--sizes", default="", metavar="NAME=LOW..HIGH,NAME=SIZE:WEIGHT",
        help="sizes that the model sees, with weights, such as batch=1:8,batch=4:1,seq=16..512; by default, drawn from"
        " the ranges of its dynamic dimensions",
    )  # fmt: skip
    parser.add_argument(
        "--search", default=VARIANTS[0], choices=VARIANTS,
        help="how programs are chosen: by a model learned while measuring, from constructed programs and records"
        " (search, default), the same from nothing (ansor), by the analytical model (evolution), or at random",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the search (default: 0)")
    parser.add_argument(
        "--plan", dest="order", default=ORDERS[0], choices=ORDERS,
        help="the order of kernels: where a second is expected to gain most (gradient, default), or kernels start"
        " from each other's programs first (eto; needs networkx)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", default="local", choices=("local", "ray"),
        help="where programs run: on this machine (local, default), or on the machines of a Ray cluster (ray)",
    )  # fmt: skip
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="of the Ray cluster; by default one of this machine alone is started"
    )
    parser.add_argument("--inputs", metavar="X.npz", help="inputs of the comparison at the end; random by default")
    parser.add_argument("--dry-run", action="store_true", help="show the plan only: kernels, calls, predicted times")
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write a page with pictures")
    add_compile_options(parser)
    add_build_options(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Tunes the model, or shows the plan."""
    from tilewright.driver.tune.pipeline import plan_tuning, tune_with_options  # here: they import the compiler
    from tilewright.driver.tune.reuse_order import ReuseOrder
    from tilewright.driver.tune.session import EndReason
    from tilewright.report import tuning as report

    reject_compiled(options.file, "is compiled already, so its kernels are fixed")
    if options.frozen:
        what = "a tuning writes what it measures, and with --frozen nothing is written"
        raise OptionError(what, where="--frozen", hint="leave it out, and give it to `compile` afterwards")
    if options.report is not None:
        check_writable(options.report, "--report", options.file, options.inputs, options.machine)
    tuning, resources = _tune_options(options), build_options(options)
    if options.dry_run:
        plan = with_progress(
            options,
            lambda progress: plan_tuning(options.file, compile_options(options), tuning.sizes, progress, resources),
        )
        text, data = table(report.PLAN_HEADER, report.plan_rows(plan)), report.plan_data(plan)
        if tuning.plan == "eto":
            reuse = ReuseOrder.of(plan).reuse
            text, data = f"{text}\n\n{reuse.text()}", {**data, "reuse": reuse.data()}
        return Result(data, text, optional=False)
    line = StatusLine(options.quiet)

    def work(progress: Progress) -> "report.TuningResult":
        def tell(status: "SessionStatus") -> None:
            progress.end()
            line.show(status)

        return tune_with_options(options.file, compile_options(options), tuning, progress, resources, tell)

    try:
        result = with_progress(options, work)
    except KeyboardInterrupt:  # before the rounds, which end with a result
        line.end()
        print(f"tilewright tune: {report.kept_text(0, '')}", file=sys.stderr)
        raise
    line.end()
    kernels = report.rows(report.measured(report.by_gain(result)))
    lines = [*report.summary(result), *(("", table(report.HEADER, kernels)) if kernels else ())]
    status = INTERRUPTED if result.session.end is EndReason.INTERRUPTED else 0
    if options.report is not None:
        try:
            write_text(options.report, report.html(result), "--report", options.quiet)
        except OptionError as error:
            # the folder has gone, or the disk is full: what the tuning took its time for is printed all the same
            print(f"tilewright tune: {error}", file=sys.stderr)
            status = status or USER_ERROR
    return Result(report.data(result), "\n".join(lines), status, optional=False)


def _tune_options(options: argparse.Namespace) -> "TuneOptions":
    """The values of the flags."""
    from tilewright.driver.tune.pipeline import TuneOptions, make_budget

    if options.seed < 0:
        raise OptionError(f"expected a number of at least 0, got {options.seed}", where="--seed")
    return TuneOptions(
        budget=make_budget(options.budget, options.trials, options.target_speedup),
        variant=options.search,
        seed=options.seed,
        plan=options.order,
        sizes=options.sizes,
        feeds=None if options.inputs is None else read_npz(options.inputs),
        workers=options.workers,
        address=options.address,
    )


class StatusLine:
    """How far a tuning is, in a `TerminalLine`. A kernel that became faster has a line of its own."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._line = quiet, TerminalLine()
        self._speedups: dict[str, float] = {}

    def show(self, status: "SessionStatus") -> None:
        """Shows a status."""
        if self._quiet:
            return
        if status.label and status.label_speedup > self._speedups.get(status.label, 1.0) + MIN_GAIN:
            self._speedups[status.label] = status.label_speedup
            self.end()
            gain = f"{status.label}: {status.label_speedup:.3f} times faster"
            print(f"{status.seconds:.0f} s: {gain}", file=sys.stderr, flush=True)
        self._line.show(status_text(status))

    def end(self) -> None:
        """Clears the line."""
        self._line.clear()


def status_text(status: "SessionStatus") -> str:
    """A status in a line."""
    left = "" if status.seconds_left is None else f", {status.seconds_left:.0f} s left"
    kernel = f"; {status.label}: {status.label_speedup:.3f}" if status.label else ""
    return (
        f"{status.seconds:.0f} s{left}, {pluralize(status.trials, 'trial')}; sum of the kernels"
        f" {status.untuned / 1e6:.3f} -> {status.tuned / 1e6:.3f} ms ({status.speedup:.3f} times faster){kernel}"
    )
