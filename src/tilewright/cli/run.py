"""`tilewright run`: one inference on inputs from a file or on random ones."""

import argparse
import time
from typing import Any

import numpy as np

from tilewright.cli.arrays import add_input_options, input_choice, write_npz
from tilewright.cli.common import (
    Result,
    Verbs,
    add_build_options,
    add_compile_options,
    add_threads_option,
    executable_of,
)
from tilewright.cli.output_files import check_writable, report_written
from tilewright.errors import pluralize


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser("run", help="run a model once", description=__doc__)
    parser.add_argument("file", metavar="ARTIFACT|MODEL", help="a compiled model, or an ONNX file to compile first")
    parser.add_argument("--outputs", metavar="Y.npz", help="write the outputs into this file")
    parser.add_argument(
        "--explain-shape", action="store_true",
        help="which program of each kernel of dynamic sizes these inputs take, and its predicted time",
    )  # fmt: skip
    add_input_options(parser, random_default=False)
    add_compile_options(parser)
    add_build_options(parser)
    add_threads_option(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Runs the model and describes the outputs."""
    if options.outputs is not None:
        check_writable(options.outputs, "--outputs", options.file, options.inputs, options.plan, options.machine)
    inputs = input_choice(options, random_default=False)
    executable = executable_of(options, inputs.check)
    feeds = inputs.feeds(executable.manifest)
    executable.prepare()
    start = time.perf_counter()
    outputs = executable.run(feeds)
    seconds = time.perf_counter() - start
    if options.outputs is not None:
        write_npz(options.outputs, outputs)
        report_written(options.outputs, options.quiet)
    described = {name: describe(value) for name, value in outputs.items()}
    lines = [f"{name}: {_output_line(d)}" for name, d in described.items()]
    data = {"outputs": described, "seconds": seconds, "threads": executable.threads, "file": options.outputs}
    lines.append(f"{seconds * 1e3:.2f} ms for the first call, with {pluralize(executable.threads, 'thread')}")
    if options.explain_shape:
        from tilewright.report import shape_choice  # here because it imports the compiler's expressions

        choices = shape_choice.shape_choices(executable.manifest.variants, executable.sizes_of(feeds))
        others = shape_choice.nodes_with_one_program(executable.manifest)
        data |= {"shape_choices": [shape_choice.data(c) for c in choices], "one_program": list(others)}
        lines.append(shape_choice.text(choices, others))
    return Result(data, "\n".join(lines))


def describe(value: Any) -> dict[str, Any]:
    """Type, shape and range of an output."""
    array = np.asarray(value)
    description: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiu":
        finite = array[np.isfinite(array)]
        if finite.size:
            description |= {
                "min": float(finite.min()),
                "max": float(finite.max()),
                "mean": float(finite.mean(dtype=np.float64)),
            }
        description["not_finite"] = int(array.size - finite.size)
    return description


def _output_line(d: dict[str, Any]) -> str:
    text = f"{d['dtype']} {d['shape']}"
    if "min" in d:
        text += f"  min {d['min']:.6g}  max {d['max']:.6g}  mean {d['mean']:.6g}"
    return text + (f"  {d['not_finite']} not finite" if d.get("not_finite") else "")
