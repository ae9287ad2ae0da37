"""The pipeline of a compilation: an ONNX model in, every form of it out, up to scheduled loops and memory plans."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.cost.caches import caches
from tilewright.driver.artifact.bodies import CompiledBody
from tilewright.driver.artifact.definition_errors import definitions_checked_on_failure
from tilewright.driver.artifact.make_step_tree import with_step_tree
from tilewright.driver.artifact.steps import StepPlanner, all_symbols
from tilewright.driver.artifact.variant_specs import variant_specs
from tilewright.driver.artifact.weight_pool import WeightPool
from tilewright.driver.artifact_names import ArtifactNames, dim_specs, make_names, unused_name
from tilewright.driver.build import Build, make_build
from tilewright.driver.compilation import Compilation
from tilewright.driver.considered_chain import ConsideredChain
from tilewright.driver.kernel_build.build_resources import IN_PROCESS, BuildResources
from tilewright.driver.kernel_build.kernel_builds import KernelBuilds
from tilewright.driver.kernel_build.kernels import BoundUnit, KernelSource, compile_kernels
from tilewright.driver.kernel_build.literal_parameters import with_literal_parameters
from tilewright.driver.options import CompileOptions
from tilewright.driver.size_limits import check_input_sizes, check_tensor_sizes
from tilewright.errors import ModelError, ModelFileError, OptionError
from tilewright.frontend.onnx import ReadFile, ShapeOption, load_onnx
from tilewright.gc_policy import raised_gc_threshold
from tilewright.graph.alternatives import Evaluation, choose
from tilewright.graph.canonicalize.attention import canonicalize_attention
from tilewright.graph.chains.choose import ChainEvaluation, choose_chains
from tilewright.graph.ir import Graph
from tilewright.graph.kernel import Kernel
from tilewright.graph.layouts.plan import Choice, Plan
from tilewright.graph.layouts.propagate import propagate
from tilewright.graph.lower import lower_graph
from tilewright.graph.partition import Partition, Unit, partition
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import Program, nested_programs
from tilewright.graph.rewrites import REWRITES
from tilewright.graph.slice_kernels import slice_kernels
from tilewright.lower.abstract_sizes import implied_ranges
from tilewright.machine import Target
from tilewright.optimize.chains.optimizer import ChainConstruction
from tilewright.optimize.cost_oracle import CostOracle
from tilewright.optimize.kernel_task import TaskContext
from tilewright.runtime.artifact import is_artifact_file
from tilewright.runtime.manifest import (
    Manifest,
    ManifestStep,
    NativeStep,
    SymbolSpec,
    TensorSpec,
)
from tilewright.runtime.manifest_meta import ModelMeta, TargetSpec

if TYPE_CHECKING:
    import onnx

SLICE_CACHE_FRACTION = 0.25
"""Fraction of the last-level cache for the intermediates of a slice; operands and other processes need the rest.
Attention of 8 heads of 754 x 873 scores (2.6 MB per head, two intermediates) on two cores of a Zen 4 with 32 MB takes
0.60, 0.65, 0.76 and 0.92 ms per head with 1, 2, 4 and 8 heads at once."""

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, the number of its finished parts, and the number of all its parts. The stage of kernels
says whose turn it is: "kernels: conv1 (Conv) + relu1 (Relu)"."""


_DEFAULTS = CompileOptions()


@raised_gc_threshold()
def make_compilation(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto | ReadFile",
    options: CompileOptions = _DEFAULTS,
    progress: Progress | None = None,
    expose_intermediates: bool = False,
    resources: BuildResources = IN_PROCESS,
    loaded: Callable[[Graph], object] | None = None,
    check_signature: Callable[[Manifest], object] | None = None,
) -> Compilation:
    """Compiles a model up to scheduled loops and memory plans and returns every intermediate form; errors as for
    `compile_model`.

    Args:
        model: a path, the bytes of a file, a ModelProto, or a file that was read before.
        options: which code to generate.
        progress: called as the compilation proceeds.
        expose_intermediates: make the result of every kernel an output of the model; the kernels stay the same.
        resources: what it may use; by default this process only, which generates no code before it is asked for.
        loaded: called with the graph as it was loaded.
        check_signature: called with the inputs, outputs and symbols of the model, in a manifest without steps, before
            its kernels are estimated and built, which takes most of the time. What it raises ends the compilation.
    """
    report = progress or _ignore_progress
    shapes, target = _checked_shapes(options.shapes), Target.of(options.target)
    plan = _checked_layout_plan(options.layouts)
    build = make_build(options, target, bool(plan.choices))
    graph, lowered = _lower_model(model, shapes, report, loaded)
    if check_signature is not None:
        check_signature(_manifest(lowered, make_names(lowered), (), target, build))
    laid_out = propagate(lowered, plan.choices, plan.variant) if plan.choices else None
    builds = KernelBuilds(build, target, resources, partial(report, "estimates"))
    with definitions_checked_on_failure(graph, lowered), builds:
        if laid_out is None:
            canonical = canonicalize_attention(lowered)
            chosen, evaluations = _choose_alternatives(canonical, build, _task_context(canonical, target), builds)
        else:
            # a plan names values that alternatives replace
            chosen, evaluations = laid_out.program, ()
        fused, chains = _fuse_chains(partition(chosen), build, _task_context(chosen, target), builds)
        exposed = _expose_intermediates(fused) if expose_intermediates else fused.program
        fused = _final_kernels(replace(fused, program=exposed), build, target)
        inner = [_optimize_body(b, build, target, builds) for b in nested_programs(fused.program)]
        programs = [(fused.program, fused.units), *((b.partition.program, b.partition.units) for b in inner)]
        units, *body_units = _compile_units(programs, build, target, builds, report)
    bodies = {b.lowered: replace(b, units=own) for b, own in zip(inner, body_units, strict=True)}
    names, planner = make_names(fused.program), StepPlanner(bodies, WeightPool())
    report("weights and memory", 0, 1)
    steps, constants = planner.plan_model(fused.program, units, names)
    manifest = _manifest(fused.program, names, steps, target, build)
    manifest = with_step_tree(replace(manifest, constants=constants, variants=variant_specs(units, names)))
    own = {step.prefix for step in steps if isinstance(step, NativeStep)}
    segments, inside = ([s for s in planner.segments if (s.step.prefix in own) is x] for x in (True, False))
    return Compilation(
        graph, lowered, plan, laid_out, evaluations, chains, fused.program, fused, target, build, units, bodies,
        builds.counts(), tuple(segments), tuple(inside), manifest, planner.pool.arrays,
        planner.pool.sources,
    )  # fmt: skip


def _lower_model(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto | ReadFile",
    shapes: Mapping[str, ShapeOption] | None,
    report: Progress,
    loaded: Callable[[Graph], object] | None,
) -> tuple[Graph, Program]:
    """The graph after the graph passes, and its tensor expressions."""
    report("model", 0, 4)
    graph = _load_graph(model, shapes)
    if loaded is not None:
        loaded(graph)
    check_input_sizes(graph)
    report("model", 1, 4)
    try:
        graph = simplify_graph(graph)
        report("model", 2, 4)
        lowered = lower_graph(graph)
    except ModelError as error:
        path = _model_path(model)
        raise ModelError(error.problems, where=error.where if path is None else f"file '{path}'") from error
    check_tensor_sizes(lowered)
    report("model", 3, 4)
    return graph, lowered


def _load_graph(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto | ReadFile", shapes: Mapping[str, ShapeOption] | None
) -> Graph:
    try:
        return load_onnx(model, shapes)
    except ModelFileError as error:
        path = _model_path(model)
        if path is None or not _is_compiled(path):
            raise
        hint = "load it with `tilewright.load`, or give the ONNX model"
        raise ModelFileError("is compiled already", where=error.where, hint=hint) from error


def _model_path(model: "str | os.PathLike[str] | bytes | onnx.ModelProto | ReadFile") -> Path | None:
    if isinstance(model, ReadFile):
        return model.path
    return Path(model) if isinstance(model, str | os.PathLike) else None


def _is_compiled(path: Path) -> bool:
    with suppress(OSError):
        return is_artifact_file(path)
    return False


def _optimize_body(lowered: Program, build: Build, target: Target, builds: KernelBuilds) -> CompiledBody:
    """A branch or a loop's body with its kernels, which have no functions yet."""
    canonical = canonicalize_attention(lowered)
    chosen, evaluations = _choose_alternatives(canonical, build, _task_context(canonical, target), builds)
    fused, chains = _fuse_chains(partition(chosen), build, _task_context(chosen, target), builds)
    fused = replace(fused, units=_slice_units(fused.units, fused.program, build, target))
    return CompiledBody(lowered, evaluations, chains, fused, ())


def _task_context(program: Program, target: Target) -> TaskContext:
    return TaskContext(all_symbols(program), target, implied_ranges(program))


def _compile_units(
    programs: Sequence[tuple[Program, Sequence[Unit]]],
    build: Build,
    target: Target,
    builds: KernelBuilds,
    report: Progress,
) -> list[tuple[BoundUnit, ...]]:
    """The units of every program bound to functions, which equal kernels of all of them share."""
    sources = [KernelSource(frozenset(p.constants), _task_context(p, target)) for p, _ in programs]
    bound = iter(compile_kernels(
        [u for _, units in programs for u in units],
        [s for s, (_, units) in zip(sources, programs, strict=True) for _ in units],
        build.machine_for(target),
        builds,
        lambda done, total, label: report(f"kernels: {label}" if label else "kernels", done, total),
    ))  # fmt: skip
    return [tuple(islice(bound, len(units))) for _, units in programs]


def _choose_alternatives(
    program: Program, build: Build, context: TaskContext, builds: KernelBuilds
) -> tuple[Program, tuple[Evaluation, ...]]:
    """The program with the alternatives that are estimated to be faster, and all that were considered; none without
    a machine, as nothing estimates times then."""
    if build.machine is None:
        return program, ()
    oracle = CostOracle(build.machine_for(context.target), context, builds.constructions, builds.estimate)
    return choose(program, REWRITES, oracle, build.max_error_growth, oracle.prepare if builds.is_shared else None)


def _fuse_chains(
    fused: Partition, build: Build, context: TaskContext, builds: KernelBuilds
) -> tuple[Partition, tuple[ConsideredChain, ...]]:
    """The partition with the chains of contractions fused that are estimated to be faster, and all that were
    considered; none without an optimizer of chains."""
    constructions = builds.constructions
    if constructions.chains is None:
        return fused, ()
    machine, constants = build.machine_for(context.target), frozenset(fused.program.constants)
    oracle = CostOracle(machine, context, constructions, builds.estimate)

    def slice_units(units: Sequence[Unit]) -> tuple[Unit, ...]:
        return _slice_units(units, fused.program, build, context.target)

    prepare = oracle.prepare if builds.is_shared else None
    result, evaluations = choose_chains(fused, machine, oracle.estimate, slice_units, prepare)

    def considered(x: ChainEvaluation) -> ConsideredChain:
        task = None if x.fused is None else oracle.task(x.fused, constants)
        construction = None if task is None else constructions.known(task)
        return ConsideredChain(x, task, construction if isinstance(construction, ChainConstruction) else None)

    return result, tuple(map(considered, evaluations))


def _final_kernels(fused: Partition, build: Build, target: Target) -> Partition:
    """The kernels as they are compiled: in slices, and with literals in which they differ as parameters."""
    sliced = replace(fused, units=_slice_units(fused.units, fused.program, build, target))
    return with_literal_parameters(sliced, _task_context(fused.program, target))


def _slice_units(units: Sequence[Unit], program: Program, build: Build, target: Target) -> tuple[Unit, ...]:
    """Groups kernels that run slice by slice so that intermediates stay in cache; needs a machine."""
    if build.machine is None:
        return tuple(units)
    last = caches(build.machine_for(target))[-1]
    return slice_kernels(units, program, int(SLICE_CACHE_FRACTION * last.bytes))


def _expose_intermediates(fused: Partition) -> Program:
    """The program with the results of all kernels as outputs, named like the model's values where there are any."""
    program = fused.program
    value_names = {b.name: name for name, b in list(program.values.items())[::-1]}
    outputs = [(name, b) for name, b in program.outputs if b.name not in program.constants]
    results = [b for u in fused.units if isinstance(u, Kernel) for b in u.writes]
    exposed = {b.name for _, b in outputs}
    used_names = {name for name, _ in outputs} | set(program.input_names)
    for b in results:
        if b.name not in exposed:
            name = unused_name(value_names.get(b.name, b.name), used_names)
            outputs.append((name, b))
            used_names.add(name)
    return replace(program, outputs=tuple(outputs))


def _ignore_progress(what: str, done: int, total: int) -> None:
    """Discards progress reports."""


def _checked_shapes(shapes: Mapping[str, ShapeOption] | None) -> Mapping[str, ShapeOption] | None:
    if shapes is not None and not isinstance(shapes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = 'pass for example {"batch": "1..64"}'
        raise OptionError(f"expected a mapping, got {type(shapes).__name__}", where="argument 'shapes'", hint=hint)
    return shapes


def _checked_layout_plan(layouts: Plan | Mapping[str, Choice] | None) -> Plan:
    if layouts is None or isinstance(layouts, Plan):
        return layouts or Plan()
    if not isinstance(layouts, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
        hint = 'pass for example {"conv1": Choice(output=(Split(1, (4, 16)), Reorder((0, 1, 3, 4, 2))))}'
        raise OptionError(f"expected a Plan, got {type(layouts).__name__}", where="argument 'layouts'", hint=hint)
    return Plan(layouts)


def _manifest(
    program: Program, names: ArtifactNames, steps: tuple[ManifestStep, ...], target: Target, build: Build
) -> Manifest:
    inputs = [TensorSpec(names.of(b), b.dtype.name, dim_specs(b.shape, names, printed=False)) for b in program.inputs]
    outputs = [TensorSpec(name, b.dtype.name, dim_specs(b.shape, names, printed=True)) for name, b in program.outputs]
    symbols = [SymbolSpec(names.symbol_name(v), v.lo or 0, v.hi) for v in all_symbols(program)]
    target_spec = TargetSpec.of(target)
    return Manifest(tuple(inputs), tuple(outputs), tuple(symbols), steps, target_spec, _meta(program), build.spec())


def _meta(program: Program) -> ModelMeta:
    metadata = program.metadata
    version = metadata.get("model_version", "")
    custom = [(key.partition(":")[2], value) for key, value in metadata.items() if key.startswith("custom:")]
    return ModelMeta(
        graph_name=program.name,
        producer_name=metadata.get("producer_name", ""),
        producer_version=metadata.get("producer_version", ""),
        domain=metadata.get("domain", ""),
        model_version=int(version) if version.lstrip("-").isdigit() else 0,
        description=metadata.get("description", ""),
        custom=tuple(custom),
    )
