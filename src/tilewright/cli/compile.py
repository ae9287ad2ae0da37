"""`tilewright compile`: compiles a model into one file for `run`, `tilewright.load` and `InferenceSession`."""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.cli.common import (
    Progress,
    Result,
    Verbs,
    add_build_options,
    add_compile_options,
    build_options,
    build_text,
    compile_options,
    reject_compiled,
    size_text,
    with_progress,
)
from tilewright.cli.output_files import check_writable
from tilewright.errors import pluralize
from tilewright.runtime import Artifact, save_artifact
from tilewright.runtime.manifest import FallbackStep, all_steps

if TYPE_CHECKING:
    from tilewright.driver.compilation import Compilation


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser("compile", help="compile an ONNX model into one file", description=__doc__)
    parser.add_argument("file", metavar="MODEL", help="an ONNX file")
    parser.add_argument("-o", "--output", metavar="OUT.tw", help="the file to write (default: MODEL with .tw)")
    add_compile_options(parser)
    add_build_options(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Compiles and saves."""
    from tilewright.driver.compile import make_compilation  # here because it imports the compiler

    reject_compiled(options.file, "is compiled already")
    output = options.output or str(Path(options.file).with_suffix(".tw"))
    check_writable(output, "--output", options.file, options.plan, options.machine)
    start = time.monotonic()

    def work(report_progress: Progress) -> "tuple[Compilation, Artifact]":
        compilation = make_compilation(
            options.file, compile_options(options), report_progress, resources=build_options(options)
        )
        report_progress("machine code", 0, 1)
        return compilation, compilation.artifact()

    compilation, artifact = with_progress(options, work)
    size = save_artifact(artifact, output)
    seconds = time.monotonic() - start
    fallbacks = [s.nodes for s in all_steps(artifact.manifest.steps) if isinstance(s, FallbackStep)]
    data = {
        "output": output,
        "bytes": size,
        "code_bytes": len(artifact.code),
        "seconds": round(seconds, 3),
        "functions": len(compilation.kernels),
        "constructed_kernels": compilation.constructions.constructed,
        "reused_kernels": compilation.constructions.reused,
        "cached_kernels": compilation.constructions.cached,
        "recorded_kernels": compilation.constructions.recorded,
        "tuned_kernels": compilation.constructions.tuned,
        "skipped_records": list(compilation.constructions.skipped_records),
        "target": str(compilation.target),
        "build": dataclasses.asdict(compilation.build.spec()),
        "inputs": {s.name: str(s) for s in artifact.manifest.inputs},
        "outputs": {s.name: str(s) for s in artifact.manifest.outputs},
        "fallbacks": [list(nodes) for nodes in fallbacks],
    }
    functions = pluralize(len(compilation.kernels), "function")
    text = f"{output}: {size_text(size)}, {functions}, for {compilation.target}, in {seconds:.1f} s"
    if compilation.build.machine is not None:
        text += f"\n{build_text(compilation.build.spec())}"
    return Result(data, text)
