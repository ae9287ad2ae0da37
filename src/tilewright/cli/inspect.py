"""`tilewright inspect`: a model on every level of the compiler, from the graph to assembly and the memory plan.

Without a level it prints a summary. For a compiled file the manifest is shown. Levels that show how programs are chosen
by estimates (alternatives, fusion, construction, cost, variants) use no records; the others show what `compile`
generates, with the programs that `tune` has recorded.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli.common import (
    Result,
    Verbs,
    add_build_options,
    add_compile_options,
    build_options,
    build_text,
    compile_options,
    is_compiled,
    reject_compiled,
    shapes_of,
    size_text,
    with_progress,
)
from tilewright.cli.output_files import check_writable, write_text
from tilewright.driver.kernel_build.build_resources import IN_PROCESS
from tilewright.errors import OptionError, pluralize
from tilewright.runtime.manifest import (
    ControlFlowStep,
    FallbackStep,
    IfStep,
    LoopStep,
    ManifestStep,
    NativeStep,
    SizesStep,
)

if TYPE_CHECKING:
    from tilewright.driver.compilation import Compilation

LEVELS = (
    "graph",
    "layouts",
    "alternatives",
    "fusion",
    "expressions",
    "loops",
    "schedule",
    "lowered",
    "construction",
    "cost",
    "variants",
    "llvm",
    "asm",
    "memory",
)

ESTIMATE_LEVELS = frozenset({"alternatives", "fusion", "construction", "cost", "variants"})
"""Levels that show how programs are chosen by estimates, without records; the others show what `compile` generates."""


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "inspect", help="show a model on any level of the compiler", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("file", metavar="ARTIFACT|MODEL", help="an ONNX file, or a compiled model")
    levels = parser.add_argument_group("levels")
    levels.add_argument("--graph", action="store_true", help="operators after the graph passes")
    levels.add_argument(
        "--layout-plan", dest="layouts", action="store_true",
        help="how tensors are stored, and conversions between them; with --json also the plan, for --layouts",
    )  # fmt: skip
    levels.add_argument(
        "--alternatives", action="store_true",
        help="equivalent algorithms that were considered (Winograd, dense copies): estimated times, choice and reason",
    )  # fmt: skip
    levels.add_argument(
        "--fusion", action="store_true",
        help="chains of contractions (products, attention, convolutions) that were considered for one kernel:"
        " estimated times with and without, choice and reason, what pruning left of the space, loops",
    )  # fmt: skip
    levels.add_argument("--expressions", action="store_true", help="tensor expressions")
    levels.add_argument("--loops", action="store_true", help="the untransformed loops of every function")
    levels.add_argument("--schedule", action="store_true", help="what the optimizer did, and the loops afterwards")
    levels.add_argument(
        "--construction",
        action="store_true",
        help="how gensor or roller constructed its programs: sketches, trajectory, ranking",
    )
    levels.add_argument(
        "--cost",
        action="store_true",
        help="what every level and resource takes, by the cost model of gensor and roller",
    )
    levels.add_argument(
        "--variants",
        action="store_true",
        help="the programs of kernels whose sizes are dynamic, and which sizes get which",
    )
    levels.add_argument("--lowered", action="store_true", help="the loops that code is generated from")
    levels.add_argument("--llvm", action="store_true", help="LLVM IR")
    levels.add_argument("--asm", action="store_true", help="machine code as assembly")
    levels.add_argument("--memory", action="store_true", help="the memory plan")
    levels.add_argument("--kernel", metavar="NAME", help="only this function (loops to cost)")
    levels.add_argument("--node", metavar="NAME", help="only kernels that compute this node (construction, cost)")
    levels.add_argument(
        "--svg", type=Path, metavar="FILE",
        help="draw the states of one kernel's construction, or the trees of loops of fused chains",
    )  # fmt: skip
    add_compile_options(parser)
    add_build_options(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Prints the chosen levels."""
    chosen = [level for level in LEVELS if getattr(options, level)]
    _check_levels(options)
    if is_compiled(options.file):
        if chosen:
            flag = "layout-plan" if chosen[0] == "layouts" else chosen[0]
            reject_compiled(options.file, f"a compiled file has no --{flag} any more")
        return _inspect_artifact(options.file)
    from tilewright.driver.compile import make_compilation
    from tilewright.driver.diagnostics import show  # here because it imports the compiler
    from tilewright.frontend.onnx import load_onnx
    from tilewright.report import construction, cost, fusion, variants

    if options.node is not None:
        # before the work of compiling
        construction.check_node(load_onnx(options.file, shapes_of(options)), options.node)
    resources = replace(build_options(options), with_code=False)
    if ESTIMATE_LEVELS & set(chosen):
        resources = IN_PROCESS  # other processes and records tell what was chosen, not how
    compilation = with_progress(
        options, lambda report: make_compilation(options.file, compile_options(options), report, resources=resources)
    )
    _check_kernel(compilation, options.kernel)
    constructions = (
        construction.constructions(compilation, options.node, options.kernel)
        if options.construction or options.cost or options.variants
        else ()
    )
    costs = tuple(cost.kernel_cost(c) for c in constructions) if options.cost else ()
    if options.svg is not None:
        drawing = fusion.picture(compilation) if options.fusion else construction.picture(constructions)
        write_text(options.svg, drawing, "--svg", options.quiet)
    printers: dict[str, Callable[[], str]] = {
        "graph": lambda: show.graph(compilation),
        "layouts": lambda: show.layouts(compilation),
        "alternatives": lambda: show.alternatives(compilation),
        "fusion": lambda: fusion.text(compilation),
        "expressions": lambda: show.expressions(compilation),
        "loops": lambda: show.loops(compilation, options.kernel),
        "schedule": lambda: show.schedules(compilation, options.kernel),
        "lowered": lambda: show.lowered_loops(compilation, options.kernel),
        "construction": lambda: construction.text(constructions),
        "cost": lambda: cost.text(costs),
        "variants": lambda: variants.text(constructions),
        "llvm": compilation.llvm,
        "asm": compilation.assembly,
        "memory": lambda: show.memory(compilation),
        "summary": lambda: show.summary(compilation),
    }
    texts = {level: printers[level]() for level in chosen or ["summary"]}
    parts = [f"=== {level}\n{text}" if len(texts) > 1 else text for level, text in texts.items()]
    data = {level: _level_data(compilation, level, text, options.kernel) for level, text in texts.items()}
    reports: dict[str, Callable[[], list[Any]]] = {
        "construction": lambda: [construction.data(c) for c in constructions],
        "cost": lambda: [cost.data(c) for c in costs],
        "variants": lambda: [variants.data(c) for c in constructions],
    }
    data |= {level: make() for level, make in reports.items() if level in data}
    return Result(data, "\n".join(parts).rstrip("\n"), optional=False)


def _check_levels(options: argparse.Namespace) -> None:
    """Checks that the levels are chosen to which options belong, and that the picture can be written.

    Raises:
        OptionError: one is not, or it can't.
    """
    if options.svg is not None and options.construction == options.fusion:
        what = "it draws --construction or --fusion" + (", not both" if options.fusion else "")
        raise OptionError(what, where="--svg", hint="choose one of the two")
    if options.svg is not None:
        check_writable(options.svg, "--svg", options.file, options.plan, options.machine)
    if options.node is not None and not (options.construction or options.cost):
        what, hint = "it belongs to --construction and --cost", "add --construction or --cost"
        raise OptionError(what, where="--node", hint=hint)


def _check_kernel(compilation: "Compilation", kernel: str | None) -> None:
    """Checks that there is a function of a name.

    Raises:
        OptionError: there is none.
    """
    function_names = [k.name for k in compilation.kernels]
    if kernel is not None and kernel not in function_names:
        what = f"there is no function {kernel!r}; there are {', '.join(function_names) or 'none'}"
        raise OptionError(what, where="--kernel")


def _level_data(compilation: "Compilation", level: str, text: str, kernel: str | None) -> Any:
    """A level for `--json`: a list of functions, LLVM IR and assembly as text, other levels as lines."""
    from tilewright.driver.diagnostics import show  # here because it imports the compiler
    from tilewright.graph.layouts.plan_json import to_data
    from tilewright.report import fusion

    chosen = [k for k in compilation.kernels if kernel is None or k.name == kernel]
    match level:
        case "loops":
            return [{"name": k.name, "text": show.loops(compilation, k.name)} for k in chosen]
        case "schedule":
            return [
                {
                    "name": k.name,
                    "optimizer": k.optimizer,
                    "steps": [str(step) for program in k.programs for step in program.trace],
                    "text": show.schedules(compilation, k.name),
                }
                for k in chosen
            ]
        case "lowered":
            return [{"name": k.name, "text": show.lowered_loops(compilation, k.name)} for k in chosen]
        case "llvm" | "asm":
            return text
        case "layouts":
            return {"text": text.splitlines(), "plan": to_data(compilation.layout_plan, compilation.lowered)}
        case "alternatives":
            return show.alternatives_data(compilation)
        case "fusion":
            return fusion.data(compilation)
        case _:
            return text.splitlines()


def _inspect_artifact(path: str) -> Result:
    """The manifest of a compiled file."""
    from tilewright.runtime import load_artifact
    from tilewright.runtime.manifest_json import manifest_to_json

    artifact = load_artifact(path)
    manifest = artifact.manifest
    weights = sum(int(w.nbytes) for w in artifact.weights.values())
    data: dict[str, Any] = manifest_to_json(manifest) | {"code_bytes": len(artifact.code), "weight_bytes": weights}
    lines = [
        f"model    {manifest.meta.graph_name}",
        f"target   {manifest.target.cpu} {' '.join(manifest.target.required)}",
    ]
    if manifest.build is not None:
        lines.append(f"build    tilewright {manifest.build.version}, {build_text(manifest.build)}")
    lines += [f"input    {s.name}: {s}" for s in manifest.inputs]
    lines += [f"output   {s.name}: {s}" for s in manifest.outputs]
    lines += [f"symbol   {s.name}: {s.lo}..{'' if s.hi is None else s.hi}" for s in manifest.symbols]
    lines += _step_lines(manifest.steps)
    lines += [
        f"code     {size_text(len(artifact.code))}",
        f"weights  {size_text(weights)} in {pluralize(len(artifact.weights), 'array')}",
    ]
    return Result(data, "\n".join(lines), optional=False)


def _step_lines(steps: Sequence[ManifestStep], indent: str = "") -> Iterator[str]:
    """The steps, those of blocks indented."""
    for step in steps:
        yield f"step     {indent}{_engine_name(step)}: {pluralize(len(step.nodes), 'node')}"
        if isinstance(step, ControlFlowStep):
            for block in step.blocks:
                yield from _step_lines(block.steps, f"{indent}  ")


def _engine_name(step: ManifestStep) -> str:
    """What executes a step."""
    match step:
        case NativeStep():
            return "native code"
        case FallbackStep():
            return "reference evaluator"
        case SizesStep():
            return "data-dependent sizes"
        case IfStep():
            return "conditional"
        case LoopStep():
            return "loop"
