"""`tilewright.compile`: an ONNX model in, an executable out.

What an earlier compilation of the same model became is taken from the cache of models; the compiler is imported only
where there is none.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.driver.kernel_build.build_resources import BuildResources, build_resources
from tilewright.driver.model_cache.model_cache import NewModel, look_up
from tilewright.driver.options import CompileOptions
from tilewright.gc_policy import raised_gc_threshold
from tilewright.machine import Target
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.executable import Executable
from tilewright.runtime.manifest import FallbackStep, Manifest, all_steps
from tilewright.user_warnings import noted_warnings

if TYPE_CHECKING:
    import onnx

    from tilewright.driver.compilation import Compilation
    from tilewright.driver.compile import Progress
    from tilewright.frontend.onnx import ShapeOption
    from tilewright.graph.ir import Graph
    from tilewright.graph.layouts.plan import Choice, Plan
    from tilewright.machine.model import Machine


def compile_model(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    shapes: "Mapping[str, ShapeOption] | None" = None,
    target: "Target | str | None" = None,
    threads: int | None = None,
    optimizer: str | None = None,
    progress: "Progress | None" = None,
    layouts: "Plan | Mapping[str, Choice] | None" = None,
    machine: "Machine | str | os.PathLike[str] | None" = None,
    exact: bool = False,
    winograd: str | None = None,
    fusion: str | None = None,
    variants: int | None = None,
    jobs: int | None = None,
    cache: bool | None = None,
    records: "str | os.PathLike[str] | bool | None" = None,
    frozen: bool = False,
) -> Executable:
    """Compiles a model.

    Args:
        model: a path, the bytes of a file, or a ModelProto.
        shapes: ranges or sizes of dynamic dimensions, such as {"batch": "1..64"}.
        target: the target of the generated code, by default this machine; a name such as "x86-64-v3", or a `Target`.
        threads: threads per call; None asks the environment and the system. It does not change the code.
        optimizer: how loops are scheduled: "gensor" (default), "roller" and "vortex" construct tile programs for a
            machine, "rule" applies one fixed rule, which also schedules the kernels that the others cannot construct.
        progress: called as the compilation proceeds; not at all where the cache has what the model becomes.
        layouts: storage layouts of tensors of convolutions and products, by node or value (`graph.layouts.plan`).
        machine: the machine that `gensor` and `roller` construct programs for: a `Machine`, the name of one in the
            package ("zen5"), or a JSON file; by default this machine's, or a typical one of another target.
        exact: compute convolutions directly. Otherwise they use Winograd (minimal filtering) where the estimate is
            faster: rounding errors are larger, and outputs near infinite elements may be NaN.
        winograd: "safe" (default): tiles whose errors are about those of the direct sum; "fast": larger ones as well.
        fusion: how chains of products, attention and convolutions become single kernels where the estimate is faster:
            "mcfuser" (default) searches nestings and sequences of loops, "chimera" nestings, "unfused" does not fuse.
        variants: programs of a kernel whose sizes are dynamic, at most (8): the sizes of a call decide which one runs.
        jobs: processes that compile, this one included; None asks TILEWRIGHT_JOBS, then it is one per core.
        cache: whether to keep machine code in the user's cache folder and to use what is there; None asks
            TILEWRIGHT_CACHE ("on" or "off"), then it is used. Neither this nor `jobs` changes the code.
        records: a store or an export of records of programs, which are used and kept; False for none; None asks
            TILEWRIGHT_RECORDS, then it is the user's store.
        frozen: use records alone: nothing is constructed, and equal records give equal code.

    Returns:
        An executable; calling it needs a machine with the target's features, on which it is ready for its first call.

    Raises:
        ModelFileError, ModelError: the file is no ONNX model, or the model is not valid; lists all of its problems.
        OptionError, TargetError: an argument does not fit the model, or names something that does not exist.
        LayoutError: a layout is for no operator of the model, or does not fit its tensor.
        ShapeError: a tensor is larger than any memory.
        MachineError: the machine does not exist, is not possible, or is of another architecture than the target.
        StoreError: the records can't be used, or lack kernels while `frozen`; names them.
    """
    options = CompileOptions(
        shapes=shapes, target=target, optimizer=optimizer, machine=machine, layouts=layouts, exact=exact,
        winograd=winograd, fusion=fusion, variants=variants,
    )  # fmt: skip
    return compile_with_options(model, options, threads, progress, build_resources(jobs, cache, None, records, frozen))


def compile_with_options(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    options: CompileOptions,
    threads: int | None = None,
    progress: "Progress | None" = None,
    resources: BuildResources | None = None,
    check_signature: Callable[[Manifest], object] | None = None,
) -> Executable:
    """Compiles a model; arguments and errors as for `compile_model`.

    Args:
        model, options, threads, progress: as for `compile_model`.
        resources: what it may use; by default what `compile_model` uses.
        check_signature: as for `make_compilation`; not called for a model that the cache has.
    """
    resources = resources or build_resources()
    known, new_model = look_up(model, options, resources)
    artifact = known or _new_artifact(model, options, progress, resources, new_model, check_signature)
    executable = Executable(artifact, threads)
    # fallback steps make their evaluators at the first call, which reports what they can't run
    is_native = not any(isinstance(step, FallbackStep) for step in all_steps(artifact.manifest.steps))
    return executable.prepare() if is_native and Target.of(options.target).runs_here else executable


@raised_gc_threshold()
def _new_artifact(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    options: CompileOptions,
    progress: "Progress | None",
    resources: BuildResources,
    new_model: NewModel | None,
    check_signature: Callable[[Manifest], object] | None,
) -> Artifact:
    """Compiles a model, and keeps what it became where that is possible; imports the compiler."""
    from tilewright.driver.kernel_build.early_workers import early_workers  # here because known models need none

    tensors = 0 if new_model is None else len(new_model.positions)
    with early_workers(resources, tensors) as used:
        compilation, warned = _made_compilation(model, options, progress, used, new_model, check_signature)
    if progress is not None:
        progress("machine code", 0, 1)
    artifact = compilation.artifact()
    if new_model is not None:
        new_model.keep(artifact, compilation.weight_sources, warned)
    return artifact


def _made_compilation(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    options: CompileOptions,
    progress: "Progress | None",
    resources: BuildResources,
    new_model: NewModel | None,
    check_signature: Callable[[Manifest], object] | None,
) -> "tuple[Compilation, bool]":
    """The compilation of a model, and whether it issued warnings."""
    from tilewright.driver.compile import make_compilation  # here because they import the compiler
    from tilewright.frontend.onnx import ReadFile

    source = model
    if new_model is not None and isinstance(new_model.files.source, Path):
        # what is kept must be of the bytes that its key has the hash of
        source = ReadFile(new_model.files.source, new_model.files.folders, new_model.content)

    def note(graph: "Graph") -> None:
        if new_model is not None:
            new_model.note_initializers(graph.constants)
        if isinstance(source, ReadFile):
            source.content = None

    with noted_warnings() as warnings:
        compilation = make_compilation(
            source, options, progress, resources=resources, loaded=note, check_signature=check_signature
        )
    return compilation, bool(warnings)
