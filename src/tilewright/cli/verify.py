"""`tilewright verify`: errors of the compiled model against a double-precision evaluation, with ONNX Runtime's errors.

An output passes if its error is at most 4 times that of ONNX Runtime, or below 1e-6; without ONNX Runtime if it is
below 1e-4. If one fails, the first tensor inside the model that diverges is named.
"""

import argparse
from collections.abc import Sequence
from typing import Any

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
from tilewright.cli.exit_codes import VERIFICATION_FAILED
from tilewright.errors import OptionError
from tilewright.measure.engines import is_installed, onnxruntime_engine


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "verify",
        help="compare with a double-precision evaluation and ONNX Runtime",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="MODEL", help="an ONNX file")
    parser.add_argument("--tolerance", type=float, metavar="E", help="the largest relative error that passes")
    parser.add_argument("--layers", action="store_true", help="also list the error of every kernel's result")
    parser.add_argument("--no-onnxruntime", action="store_true", help="do not run ONNX Runtime")
    add_input_options(parser, random_default=True)
    add_compile_options(parser)
    add_build_options(parser)
    add_threads_option(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Compiles, runs and compares."""
    from tilewright.driver.compile import make_compilation  # here because it imports the compiler
    from tilewright.driver.diagnostics.verification import DIVERGENCE_THRESHOLD, compare_layers, compare_outputs
    from tilewright.runtime import Executable

    reject_compiled(options.file, "is compiled already, so there is nothing to compare it with")
    if options.tolerance is not None and not options.tolerance >= 0:  # nan is not either
        raise OptionError(f"expected a number of at least 0, got {options.tolerance}", where="--tolerance")

    inputs = input_choice(options, random_default=True)

    def compiled(expose_intermediates: bool) -> Any:
        return with_progress(
            options,
            lambda report_progress: make_compilation(
                options.file,
                compile_options(options),
                report_progress,
                expose_intermediates,
                build_options(options),
                check_signature=inputs.check,
            ),
        )

    compilation = compiled(False)
    executable = Executable(compilation.artifact(), options.threads)
    feeds = inputs.feeds(executable.manifest)
    actual = executable.run(feeds)
    compared = not options.no_onnxruntime and is_installed("onnxruntime")
    engine = onnxruntime_engine(options.file, executable.threads) if compared else None
    other = None if engine is None else with_stage(options, "ONNX Runtime", lambda: engine(feeds))
    outputs = with_stage(
        options,
        "evaluation in double precision",
        lambda: compare_outputs(compilation, feeds, actual, other, options.tolerance),
    )
    passed = all(c.passed for c in outputs)
    layers: Sequence[Any] = ()
    if options.layers or not passed:
        exposed = compiled(True)
        layers = with_stage(options, "results of kernels", lambda: compare_layers(exposed, feeds, options.threads))
    first = next((c.name for c in layers if c.error > DIVERGENCE_THRESHOLD), None)
    data = {
        "passed": passed,
        "outputs": [
            {"name": c.name, "error": c.error, "onnxruntime": c.peer_error, "limit": c.limit, "passed": c.passed}
            for c in outputs
        ],
        "layers": [{"name": c.name, "error": c.error} for c in layers],
        "first_diverging": first,
    }
    shown = layers if options.layers else ()
    text = _text(outputs, shown, None if passed else (first or ""))
    return Result(data, text, 0 if passed else VERIFICATION_FAILED, passed)


def _text(outputs: Sequence[Any], layers: Sequence[Any], diverging: str | None) -> str:
    rows = [
        (c.name, f"{c.error:.2e}", "-" if c.peer_error is None else f"{c.peer_error:.2e}", f"{c.limit:.2e}",
         "pass" if c.passed else "FAIL")
        for c in outputs
    ]  # fmt: skip
    text = table(("output", "error", "onnxruntime", "limit", "result"), rows)
    if layers:
        text += "\n\n" + table(("tensor", "error"), [(c.name, f"{c.error:.2e}") for c in layers])
    if diverging:
        text += f"\n\nfirst tensor that diverges: {diverging}"
    elif diverging is not None:
        text += "\n\nno tensor inside the model diverges much: errors build up"
    return text
