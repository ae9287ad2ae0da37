"""`tilewright profile`: where the time of a model's calls goes, kernel by kernel, beside what the machine allows.

Every row is a kernel with the model's nodes that it computes: its time inside real calls (all threads, caches as they
are there), its share of the call, its rate, the least time that the machine's description allows (operations against
the peak, bytes against the memory level that has to deliver them), which of these it is, when the last thread began,
and how long the first to be done waited for the others. Fallback steps and copies have rows, too.
"""

import argparse
import math
from pathlib import Path

from tilewright.cli.arrays import add_input_options, feeds_of
from tilewright.cli.common import (
    Result,
    Verbs,
    add_compile_options,
    add_threads_option,
    compile_options,
    reject_compiled,
    table,
    with_progress,
    write_text,
)
from tilewright.errors import OptionError


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "profile", help="time per kernel inside real calls", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("file", metavar="MODEL", help="an ONNX file")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="how long to call it (default: 1)")
    parser.add_argument("--top", type=int, metavar="N", help="only the N rows that take longest")
    parser.add_argument("--in-order", action="store_true", help="rows in order of execution, not the longest first")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures")
    parser.add_argument("--overhead", action="store_true", help="also measure what the clock readings cost")
    add_input_options(parser, random_default=True)
    add_compile_options(parser)
    add_threads_option(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Compiles, calls and tells."""
    from tilewright.driver.compile import make_compilation  # here because it imports the compiler
    from tilewright.driver.profile import profile_compilation
    from tilewright.report import profile as report

    reject_compiled(options.file, "is compiled already, without clock readings")
    if not math.isfinite(options.seconds) or options.seconds <= 0:
        what = f"expected a finite number of seconds of more than 0, got {options.seconds}"
        raise OptionError(what, where="--seconds")
    if options.top is not None and options.top < 1:
        raise OptionError(f"expected at least 1, got {options.top}", where="--top")
    made = with_progress(options, lambda tell: make_compilation(options.file, compile_options(options), tell))
    feeds = feeds_of(options, made.manifest, random_default=True)
    found = profile_compilation(made, feeds, options.threads, options.seconds, options.overhead, options.file)
    if options.html is not None:
        write_text(options.html, report.html(found), "--html", options.quiet)
    chosen = report.slowest(found)[: options.top]
    if options.in_order:
        chosen = [e for e in found.entries if any(e is c for c in chosen)]
    rows = [report.shortened(row) for row in report.rows(chosen)]
    text = "\n".join([*report.summary(found), "", table(report.HEADER, rows)])
    return Result(report.data(found), text, optional=False)
