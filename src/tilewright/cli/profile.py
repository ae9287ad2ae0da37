"""`tilewright profile`: the time of every kernel inside real calls, and its roofline bound.

Every row is a kernel with the model's nodes that it computes: its time inside real calls (all threads, real cache
contents), its share of the call, its rate, its roofline bound on the machine (operations at the peak rate, bytes at the
bandwidth of the memory level that they come from), the limiting resource, the start of the last thread, and the longest
wait at a join. Fallback steps and copies have rows, too.
"""

import argparse
import math
from pathlib import Path

from tilewright.cli.arrays import add_input_options, input_choice
from tilewright.cli.common import (
    Result,
    Verbs,
    add_build_options,
    add_compile_options,
    add_threads_option,
    build_options,
    compile_options,
    reject_compiled,
    table,
    with_progress,
    with_stage,
)
from tilewright.cli.output_files import check_writable, write_text
from tilewright.errors import OptionError


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "profile", help="time per kernel inside real calls", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("file", metavar="MODEL", help="an ONNX file")
    what = "how long to call it, 8 to 20,000 times (default: 1)"
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help=what)
    parser.add_argument("--top", type=int, metavar="N", help="only the N rows that take longest")
    parser.add_argument("--in-order", action="store_true", help="rows in order of execution, not the longest first")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures")
    parser.add_argument("--overhead", action="store_true", help="also measure what the clock readings cost")
    add_input_options(parser, random_default=True)
    add_compile_options(parser)
    add_build_options(parser)
    add_threads_option(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Compiles, calls and profiles the model."""
    from tilewright.driver.compile import make_compilation  # here because it imports the compiler
    from tilewright.driver.diagnostics.profile import profile_compilation
    from tilewright.report import profile as report

    reject_compiled(options.file, "is compiled already, without clock readings")
    if not math.isfinite(options.seconds) or options.seconds <= 0:
        what = f"expected a finite number of seconds of more than 0, got {options.seconds}"
        raise OptionError(what, where="--seconds")
    if options.top is not None and options.top < 1:
        raise OptionError(f"expected at least 1, got {options.top}", where="--top")
    if options.html is not None:
        check_writable(options.html, "--html", options.file, options.inputs, options.plan, options.machine)
    inputs = input_choice(options, random_default=True)
    compilation = with_progress(
        options,
        lambda report_progress: make_compilation(
            options.file,
            compile_options(options),
            report_progress,
            resources=build_options(options),
            check_signature=inputs.check,
        ),
    )
    feeds = inputs.feeds(compilation.manifest)
    profile = with_stage(
        options,
        "timed calls",
        lambda: profile_compilation(
            compilation, feeds, options.threads, options.seconds, options.overhead, options.file
        ),
    )
    if options.html is not None:
        write_text(options.html, report.html(profile), "--html", options.quiet)
    entries = report.slowest(profile)[: options.top]
    if options.in_order:
        entries = [e for e in profile.entries if any(e is c for c in entries)]
    rows = [report.shortened(row) for row in report.rows(entries)]
    text = "\n".join([*report.summary(profile), "", table(report.HEADER, rows)])
    return Result(report.data(profile), text, optional=False)
