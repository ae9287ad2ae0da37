"""Executables: compiled models that can be called, saved and shared between threads.

A typical call checks the inputs' types, looks up the plan for their shapes, and makes one native call. Models with
several steps pass named values from step to step instead.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from tilewright.errors import Defect, FeedError, InternalError, pluralize
from tilewright.machine import team_size, thread_count
from tilewright.machine.target import check_host
from tilewright.runtime.artifact import Artifact, describe_source, load_artifact, save_artifact
from tilewright.runtime.block_calls import BlockCalls, CallMaker, Resources, RuntimeCall, may_alias
from tilewright.runtime.call_frame import CallPlan
from tilewright.runtime.control_flow_call import IfCall, LoopCall
from tilewright.runtime.fallback_call import FallbackCall
from tilewright.runtime.fast_call import REQUIRED_FLAGS, has_fast_calls
from tilewright.runtime.feeds import (
    InputSignature,
    make_contiguous,
    make_picker,
    raise_problems,
)
from tilewright.runtime.link_lock import hold_link_lock
from tilewright.runtime.linker import Library, link
from tilewright.runtime.manifest import (
    FallbackStep,
    IfStep,
    LoopStep,
    Manifest,
    NativeStep,
    RuntimeManifestStep,
    SizesStep,
    SymbolSpec,
    TensorSpec,
    all_steps,
)
from tilewright.runtime.native_call import NativeCall, cache_plan
from tilewright.runtime.openmp import find_openmp
from tilewright.runtime.shape_binder import ShapeBinder, make_binder
from tilewright.runtime.sizes_call import SizesCall
from tilewright.runtime.step_tree_call import StepTreeCall, callable_tree
from tilewright.runtime.weights import align_array, numpy_dtype
from tilewright.runtime.workspace import WorkspacePool

_Shapes = tuple[tuple[int, ...], ...]


class _Process:
    """Facts about this process that a fork changes."""

    forked = False


def _after_fork() -> None:
    # the threads of an OpenMP runtime do not survive a fork, and waiting for them would not end
    _Process.forked = True


os.register_at_fork(after_in_child=_after_fork)


class Executable:
    """A compiled model.

    Call it with arrays in the order of `inputs` or by name; it returns one array, or a tuple when the model has several
    outputs. Several threads may call one executable at once. In a child made by `fork`, calls use one thread.
    """

    def __init__(
        self,
        artifact: Artifact,
        threads: int | None = None,
        where: str = "",
        observe: Callable[[RuntimeCall], RuntimeCall] | None = None,
    ) -> None:
        """Args: the compiled model, the number of threads (`machine.thread_count` explains None), the place in errors,
        and what replaces the calls of the model's own fallbacks, conditionals and loops, to observe them.

        Raises:
            OptionError: the number of threads is invalid.
            ArtifactError: the manifest is inconsistent.
        """
        manifest = artifact.manifest
        self._observe = observe
        self._where = where or f"model '{manifest.meta.graph_name}'"
        manifest.check(self._where)
        self._threads = thread_count(threads)
        self._team_size = team_size(self._threads)
        self._artifact = Artifact(manifest, artifact.code, {k: align_array(v) for k, v in artifact.weights.items()})
        self._signature = InputSignature(manifest.inputs, manifest.symbols)
        self._dtypes = [numpy_dtype(spec.dtype) for spec in manifest.inputs]
        self._names = [spec.name for spec in manifest.inputs]
        self._pick_feeds = make_picker(self._names)
        self._output_names = [spec.name for spec in manifest.outputs]
        self._pool = WorkspacePool()
        self._library: Library | None = None
        self._single_call: NativeCall | None = None
        self._bind_shapes: ShapeBinder | None = None
        self._block: BlockCalls | None = None
        self._tree: StepTreeCall | None = None
        self._aliased = may_alias(manifest)
        self._plans: dict[_Shapes, CallPlan] = {}
        # one tuple, so that another thread never sees a plan with other shapes
        self._last_plan: tuple[_Shapes, CallPlan | None] = ((),) * len(self._names), None

    @property
    def artifact(self) -> Artifact:
        """The compiled model as data."""
        return self._artifact

    @property
    def manifest(self) -> Manifest:
        """The model's manifest."""
        return self._artifact.manifest

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs: name, type and sizes, in the order of the arguments of a call."""
        return self._artifact.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The model's outputs: name, type and sizes, in the order of the results of a call."""
        return self._artifact.manifest.outputs

    @property
    def threads(self) -> int:
        """Threads that a call may use; at most as many as logical CPUs run at a time."""
        return 1 if _Process.forked else self._threads

    def _worker_count(self) -> int:
        return 1 if _Process.forked else self._team_size

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the compiled model to one file, which `tilewright.load` reads.

        Raises:
            ArtifactError: the file cannot be written; an existing one is unchanged.
        """
        save_artifact(self._artifact, path)

    def prepare(self) -> "Executable":
        """Does the one-time work of the first call now: links the code, starts threads, maps memory. Returns itself.

        Raises:
            TargetError: the code is for another machine.
            ArtifactError: the code cannot be linked.
        """
        if self._library is None:
            with hold_link_lock():
                if self._library is None:
                    self._link()
        return self

    def _link(self) -> None:
        manifest, weights = self._artifact.manifest, self._artifact.weights
        check_host(manifest.target.arch, manifest.target.required, self._where)
        native = [step.prefix for step in all_steps(manifest.steps) if isinstance(step, NativeStep)]
        tree = callable_tree(manifest) if native and has_fast_calls() and self._observe is None else None
        others = () if tree is None else (tree,)
        library = link(self._artifact.code, native, self._where, others) if native else Library({}, find_openmp(), ())
        if not library.omp.is_parallel:
            self._team_size = self._threads = 1
        maker = CallMaker(library, weights, self._team_size, self._make_runtime_call)
        block = BlockCalls(manifest.block, maker, None, reuse_outputs=len(manifest.steps) == 1)
        if self._observe is not None:
            block.calls = tuple(c if isinstance(c, NativeCall) else self._observe(c) for c in block.calls)
        only = block.calls[0] if len(block.calls) == 1 else None
        if isinstance(only, NativeCall) and _covers_model(only.step, manifest):
            self._single_call = only
            self._bind_shapes = make_binder(manifest.inputs, manifest.symbols, only.step.symbols)
        largest = {s.name: s.hi for s in manifest.symbols if s.hi is not None}
        for call in block.native_calls():
            call.warm_up(self._pool, largest)
        if tree is not None:
            self._tree = StepTreeCall(manifest, tree, library, weights, self._team_size, self._pool)
        if native and not _Process.forked:
            library.omp.start_threads(self._team_size)
        self._block = block
        self._library = library

    def _make_runtime_call(
        self, step: RuntimeManifestStep, maker: CallMaker, symbols: Mapping[str, SymbolSpec]
    ) -> RuntimeCall:
        match step:
            case FallbackStep():
                return FallbackCall(step, maker.weights[step.model], self._where)
            case SizesStep():
                return SizesCall(step, symbols)
            case IfStep():
                return IfCall(step, maker, symbols)
            case LoopStep():
                return LoopCall(step, maker, symbols)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Runs the model on arrays by position, by name, or both.

        Returns:
            The output, or a tuple of the outputs.

        Raises:
            FeedError: an input is missing, unknown, given twice, or of the wrong type or shape.
            EvaluatorError: a node fails in the reference evaluator.
            ShapeError: a size is outside its declared range, contradicts the other inputs, or needs too much memory.
        """
        if not named and len(arrays) == len(self._names):
            ordered = arrays
        else:
            ordered = None if arrays else self._ordered_arrays(named)
        outputs = self._run(self._merge_feeds(arrays, named)) if ordered is None else self._run_fast(ordered)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Runs the model on named arrays.

        Args:
            feeds: arrays by input name.
            outputs: names of the outputs to return, all by default.

        Returns:
            Arrays by output name, in the requested order.

        Raises:
            FeedError, EvaluatorError, ShapeError: as for a call; the first also when an output does not exist.
        """
        if outputs is not None:
            self._check_names(outputs)
        arrays = self._ordered_arrays(feeds)
        results = self._run(feeds) if arrays is None else self._run_fast(arrays)
        if len(results) == 1 and outputs is None:
            return {self._output_names[0]: results[0]}
        values = dict(zip(self._output_names, results))  # noqa: B905 - one per output, always
        return values if outputs is None else {name: values[name] for name in outputs}

    def _ordered_arrays(self, feeds: Mapping[str, Any]) -> Sequence[Any] | None:
        """The arrays in the order of the inputs; None where these are not what is fed."""
        try:
            return self._pick_feeds(feeds) if len(feeds) == len(self._names) else None
        except (KeyError, TypeError, IndexError):  # no such name, or not a mapping
            return None

    def _check_names(self, outputs: Sequence[str]) -> None:
        """Raises FeedError where an output does not exist."""
        hint = f"pass [{outputs!r}]" if isinstance(outputs, str) else ""
        if isinstance(outputs, Mapping):
            hint = "inputs come first: run(inputs, outputs)"
        if hint or not isinstance(outputs, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            what = f"expected a list of output names, got {type(outputs).__name__}"
            raise FeedError(what, where="argument 'outputs'", hint=hint)
        available = ", ".join(f"'{name}'" for name in self._output_names)
        unknown = [name for name in outputs if name not in self._output_names]
        raise_problems(
            [
                Defect("feed", f"output '{name}'", "the model has no such output", f"its outputs are {available}")
                for name in unknown
            ]
        )

    def _run_fast(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays in order: straight to native code if they need no conversion and have shapes seen before."""
        call = self._single_call
        if call is None:
            tree = self._tree
            outputs = None if tree is None or _Process.forked else tree.try_call(arrays)
            return outputs or self._run(dict(zip(self._names, arrays, strict=True)), use_tree=outputs is None)
        threads = self._worker_count()
        outputs = call.try_fast_call(arrays, self._pool, threads)
        if outputs is not None:
            return outputs
        shapes, plan = self._last_plan
        for array, dtype, shape in zip(arrays, self._dtypes, shapes):  # noqa: B905 - the caller checked the lengths
            if (
                type(array) is not np.ndarray
                or array.dtype is not dtype
                or array.flags.num & REQUIRED_FLAGS != REQUIRED_FLAGS
            ):
                return self._run(dict(zip(self._names, arrays, strict=True)))
            if array.shape != shape:
                plan = None
        if plan is None:
            shapes = tuple([array.shape for array in arrays])
            plan = self._plans.get(shapes)
            if plan is None:
                sizes = None if self._bind_shapes is None else self._bind_shapes(shapes)
                if sizes is None:  # what is wrong is told there
                    return self._run(dict(zip(self._names, arrays, strict=True)))
                plan = call.plan_of(sizes)
                cache_plan(self._plans, shapes, plan)
            self._last_plan = shapes, plan
        return call.run(arrays, plan, self._pool, threads)

    def sizes_of(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """The sizes of the symbolic dimensions that feeds have, by name.

        Raises:
            FeedError: a feed is missing, unknown, or of another type.
            ShapeError: a shape is not possible.
        """
        return self._signature.collect(feeds)[1]

    def _run(self, feeds: Mapping[str, Any], use_tree: bool = True) -> list[Any]:
        """Any feeds: converts and checks them, binds the symbols, and runs the steps, in one native call or walked."""
        self.prepare()
        arrays, sizes = self._signature.collect(feeds)
        arrays = {name: make_contiguous(name, value) for name, value in arrays.items()}
        if self._single_call is None:
            return self._run_steps(arrays, sizes, use_tree)
        inputs = list(arrays.values())
        plan = self._single_call.plan(sizes)
        cache_plan(self._plans, tuple(array.shape for array in inputs), plan)
        return self._single_call.run(inputs, plan, self._pool, self._worker_count())

    def _run_steps(self, values: dict[str, Any], sizes: dict[str, int], use_tree: bool) -> list[Any]:
        block = self._block
        if block is None:
            raise InternalError("a model is called before it is linked")
        feeds = list(values.values())
        tree = self._tree if use_tree and not _Process.forked else None
        # where something is wrong, the same steps, one by one, tell what
        if tree is not None and (results := tree.call(feeds, sizes)) is not None:
            return results
        block.run_steps(values, sizes, Resources(self._pool, self._worker_count()))
        # the caller may write to outputs, so those that alias inputs, constants or each other are copied
        taken = {id(value) for value in (*feeds, *block.constants.values())}
        outputs: list[Any] = []
        for name in self._output_names:
            value = values[name]
            outputs.append(_copy(value) if id(value) in taken or name in self._aliased else value)
            taken.add(id(value))
        return outputs

    def _merge_feeds(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        if len(arrays) > len(self._names):
            raise FeedError(f"expected {pluralize(len(self._names), 'input')}, got {len(arrays)}", where="call")
        feeds = dict(zip(self._names, arrays))  # noqa: B905 - fewer arrays than names are completed by name
        for name in named:
            if name in feeds:
                raise FeedError("given both by position and by name", where=f"input '{name}'")
        return {**feeds, **named}

    def __repr__(self) -> str:
        inputs = ", ".join(f"{spec.name}: {spec}" for spec in self.inputs)
        outputs = ", ".join(f"{spec.name}: {spec}" for spec in self.outputs)
        return f"<Executable ({inputs}) -> ({outputs}), {pluralize(self.threads, 'thread')}>"


def _copy(value: Any) -> Any:
    """An array or a sequence of arrays that shares no memory with the given one."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return [_copy(v) for v in cast("list[Any]", value)] if isinstance(value, list) else value


def _covers_model(step: NativeStep, manifest: Manifest) -> bool:
    """Whether the step reads exactly the model's inputs and writes exactly its outputs, in order."""
    return [spec.name for spec in step.inputs] == [spec.name for spec in manifest.inputs] and [
        spec.name for spec in step.outputs
    ] == [spec.name for spec in manifest.outputs]


def load(source: str | os.PathLike[str] | bytes, threads: int | None = None, verify: bool = True) -> Executable:
    """Loads a compiled model from its file and links it; the weights are memory-mapped.

    Only load files that you trust: the file contains machine code.

    Args:
        source: a file written by `Executable.save` or `tilewright compile`, or its content.
        threads: threads per call; None asks the environment and the system.
        verify: whether to compare the weights with their hashes; manifest and code always are.

    Raises:
        ArtifactError: not an artifact, truncated, altered, or of a newer format.
        TargetError: the code needs CPU features that this machine lacks; names them.
        OptionError: the number of threads is invalid.
    """
    return Executable(load_artifact(source, verify), threads, describe_source(source)).prepare()
