"""The pipeline `compile`: an ONNX model in, an executable out."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.cost.caches import caches
from tilewright.driver.artifact_names import ArtifactNames, dim_specs, make_names
from tilewright.driver.compilation import Compilation
from tilewright.driver.conv_algorithm import (
    choose_conv_algorithm,
    make_stage_oracle,
    select_dense_copies,
    select_winograd,
)
from tilewright.driver.fallbacks import fallback_step
from tilewright.driver.gc_policy import raised_gc_threshold
from tilewright.driver.kernels import compile_kernels
from tilewright.driver.options import Build, MachineOption, make_build
from tilewright.driver.segments import NativeRegion, PlannedSegment, make_regions, plan_segment
from tilewright.driver.size_limits import check_input_sizes, check_tensor_sizes
from tilewright.driver.weight_pool import WeightPool
from tilewright.errors import OptionError
from tilewright.expr.nodes import Var
from tilewright.frontend.onnx import ShapeOption, load_onnx
from tilewright.graph.kernel import Kernel
from tilewright.graph.layouts.plan import Choice, Plan
from tilewright.graph.layouts.propagate import propagate
from tilewright.graph.lower import lower_graph
from tilewright.graph.partition import Partition, Unit, partition
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import Fallback, Program
from tilewright.graph.slice_kernels import slice_kernels
from tilewright.lower.abstract_sizes import implied_ranges
from tilewright.machine import Target
from tilewright.runtime import Executable
from tilewright.runtime.manifest import (
    Manifest,
    ManifestStep,
    ModelMeta,
    NativeStep,
    SymbolSpec,
    TargetSpec,
    TensorSpec,
)

if TYPE_CHECKING:
    import onnx

SLICE_CACHE_FRACTION = 0.25
"""Of the last cache, what kernels of a slice hand on: it is shared with all that they read, and often with other
processes. Attention of 8 heads of 754 x 873 scores (2.6 MB a head, handed on twice) on two cores of Zen 4 with 32 MB
takes 0.60, 0.65, 0.76 and 0.92 ms per head with 1, 2, 4 and 8 heads at once."""

Progress = Callable[[str, int, int], None]
"""Told (what is being done, how much of it is done, how much there is)."""


def compile_model(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    shapes: Mapping[str, ShapeOption] | None = None,
    target: "Target | str | None" = None,
    threads: int | None = None,
    optimizer: str | None = None,
    progress: Progress | None = None,
    layouts: Plan | Mapping[str, Choice] | None = None,
    machine: MachineOption | None = None,
    exact: bool = False,
    winograd: str | None = None,
) -> Executable:
    """Compiles a model.

    Args:
        model: a path, the bytes of a file, or a ModelProto.
        shapes: ranges or sizes of dynamic dimensions, such as {"batch": "1..64"}.
        target: what code is generated for, this machine by default; a name such as "x86-64-v3", or a `Target`.
        threads: threads per call; None asks the environment and the system. Does not change the code.
        optimizer: how loops are chosen: "gensor" (default) and "roller" construct them for a machine, "rule" takes
            those of one plain rule; kernels that can't be constructed are the rule's too.
        progress: told how far the compilation is.
        layouts: how tensors of convolutions and matrix products are stored, by node or value (`layout.plan`).
        machine: what the optimizers `gensor` and `roller` construct programs for: a `Machine`, the name of one that
            comes with the package ("zen5"), or a JSON file. By default this machine's calibration or description,
            for another target a typical machine of its instruction set. The artifact records it.
        exact: convolutions are computed as they are defined. Otherwise, where the optimizer constructs for a machine
            and the estimate is that it is faster, by minimal filtering (Winograd): rounding errors are larger, and
            what is computed near infinite elements may be NaN.
        winograd: "safe" (default) uses tiles whose errors are about those of the direct sum, "fast" also larger ones
            with some times the error.

    Returns:
        An executable; calling it needs a machine with the target's features. On such a machine it is ready for its
        first call.

    Raises:
        ModelFileError: the file can't be read or is not an ONNX model.
        ModelError: the model is not valid; lists all of its problems.
        OptionError: an argument does not fit the model, or names something that does not exist.
        TargetError: there is no such target.
        LayoutError: a layout is for no operator of the model, or does not fit its tensor.
        ShapeError: a tensor is larger than any memory.
        MachineError: the machine does not exist, is not possible, or is of another architecture than the target.
    """
    made = make_compilation(model, shapes, target, optimizer, progress, layouts=layouts, machine=machine, exact=exact,
                            winograd=winograd)  # fmt: skip
    if progress is not None:
        progress("machine code", 0, 1)
    executable = Executable(made.artifact(), threads)
    # evaluators of fallback steps are made at the first call, which tells what they can't run
    is_native = all(isinstance(step, NativeStep) for step in made.manifest.steps)
    return executable.prepare() if is_native and made.target.runs_here else executable


@raised_gc_threshold()
def make_compilation(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    shapes: Mapping[str, ShapeOption] | None = None,
    target: "Target | str | None" = None,
    optimizer: str | None = None,
    progress: Progress | None = None,
    expose_intermediates: bool = False,
    layouts: Plan | Mapping[str, Choice] | None = None,
    machine: MachineOption | None = None,
    exact: bool = False,
    winograd: str | None = None,
) -> Compilation:
    """A model on every level down to scheduled loops and memory plans; arguments and errors as for `compile_model`.

    With `probes` the results of all kernels become outputs, and the kernels stay as they are without them.
    """
    tell = progress or _ignore_progress
    if shapes is not None and not isinstance(shapes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = 'pass for example {"batch": "1..64"}'
        raise OptionError(f"expected a mapping, got {type(shapes).__name__}", where="argument 'shapes'", hint=hint)
    made_for = Target.of(target)
    build = make_build(optimizer, machine, made_for)
    plan = _checked_layout_plan(layouts)
    build = replace(build, convolutions=choose_conv_algorithm(exact, winograd, build, bool(plan.choices)))
    tell("model", 0, 4)
    graph = load_onnx(model, shapes)
    check_input_sizes(graph)
    tell("model", 1, 4)
    graph = simplify_graph(graph)
    tell("model", 2, 4)
    lowered = lower_graph(graph)
    check_tensor_sizes(lowered)
    tell("model", 3, 4)
    placed = propagate(lowered, plan.choices, plan.variant) if plan.choices else None
    parts = partition(placed.program if placed else _rewrite_contractions(lowered, build, made_for))
    program = _expose_intermediates(parts) if expose_intermediates else parts.program
    parts = replace(parts, units=_slice_units(parts, program, build, made_for))
    units = compile_kernels(
        parts.units,
        frozenset(program.constants),
        _all_symbols(program),
        made_for,
        build.machine_for(made_for),
        build.optimizer,
        lambda done, total: tell("kernels", done, total),
        implied_ranges(program),
    )
    names, pool = make_names(program), WeightPool()
    runs = make_regions(program, units, names)
    segments: list[PlannedSegment] = []
    steps: list[ManifestStep] = []
    for k, run in enumerate(runs):
        tell("weights and memory", k, len(runs))
        if isinstance(run, NativeRegion):
            segments.append(plan_segment(run, f"tw{len(segments) or ''}", program, names, pool))
            steps.append(segments[-1].step)
        else:
            steps.append(fallback_step(run, k, names, pool))
    manifest = _manifest(program, names, tuple(steps), made_for, build)
    return Compilation(
        graph, lowered, plan, placed, program, parts, made_for, build, units, tuple(segments), manifest, pool.arrays
    )


def _rewrite_contractions(program: Program, build: Build, target: Target) -> Program:
    """The program with other ways to compute its sums, where they are estimated to be faster."""
    times = make_stage_oracle(program, build, target)
    return select_dense_copies(select_winograd(program, build, times), times)


def _slice_units(fused: Partition, program: Program, build: Build, target: Target) -> tuple[Unit, ...]:
    """The units with groups of kernels that run slice by slice, where programs are constructed for a machine."""
    if build.machine is None:
        return fused.units
    last = caches(build.machine_for(target))[-1]
    return slice_kernels(fused.units, program, int(SLICE_CACHE_FRACTION * last.bytes))


def _expose_intermediates(fused: Partition) -> Program:
    """The program whose outputs are the results of all kernels, called like the model's values if they have names."""
    program = fused.program
    names = {b.name: name for name, b in list(program.values.items())[::-1]}
    listed = [(name, b) for name, b in program.outputs if b.name not in program.constants]
    results = [u.arguments[-1] for u in fused.units if isinstance(u, Kernel)]
    known = {b.name for _, b in listed}
    taken = {name for name, _ in listed} | set(program.input_names)
    for b in results:
        if b.name not in known:
            name = names.get(b.name, b.name)
            while name in taken:
                name = f"%{name}"
            listed.append((name, b))
            taken.add(name)
    return replace(program, outputs=tuple(listed))


def _ignore_progress(what: str, done: int, total: int) -> None:
    """Tells nobody."""


def _checked_layout_plan(layouts: Plan | Mapping[str, Choice] | None) -> Plan:
    if layouts is None or isinstance(layouts, Plan):
        return layouts or Plan()
    if not isinstance(layouts, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
        hint = 'pass for example {"conv1": Choice(output=(Split(1, (4, 16)), Reorder((0, 1, 3, 4, 2))))}'
        raise OptionError(f"expected a Plan, got {type(layouts).__name__}", where="argument 'layouts'", hint=hint)
    return Plan(layouts)


def _all_symbols(program: Program) -> tuple[Var, ...]:
    """The program's symbols and those that fallbacks bring."""
    fresh = [v for s in program.steps if isinstance(s, Fallback) for v in s.data_symbols]
    return tuple(dict.fromkeys((*program.symbols, *fresh)))


def _manifest(
    program: Program, names: ArtifactNames, steps: tuple[ManifestStep, ...], target: Target, build: Build
) -> Manifest:
    inputs = [TensorSpec(names.of(b), b.dtype.name, dim_specs(b.shape, names, printed=False)) for b in program.inputs]
    outputs = [TensorSpec(name, b.dtype.name, dim_specs(b.shape, names, printed=True)) for name, b in program.outputs]
    symbols = [SymbolSpec(names.symbol_name(v), v.lo or 0, v.hi) for v in _all_symbols(program)]
    made_for = TargetSpec.of(target)
    return Manifest(tuple(inputs), tuple(outputs), tuple(symbols), steps, made_for, _meta(program), build.spec())


def _meta(program: Program) -> ModelMeta:
    found = program.metadata
    version = found.get("model_version", "")
    custom = [(key.partition(":")[2], value) for key, value in found.items() if key.startswith("custom:")]
    return ModelMeta(
        graph_name=program.name,
        producer_name=found.get("producer_name", ""),
        producer_version=found.get("producer_version", ""),
        domain=found.get("domain", ""),
        model_version=int(version) if version.lstrip("-").isdigit() else 0,
        description=found.get("description", ""),
        custom=tuple(custom),
    )
