"""The common interface of ONNX Runtime's session, on compiled models.

A program written for `onnxruntime.InferenceSession` runs after a change of one import. Options without a meaning here
(arenas, graph optimisation levels, providers of other devices) are accepted and have no effect; unknown options are
errors. Initializers that are inputs, too, are constants of the compiled model; a feed that replaces one is served by a
second compilation, which is kept.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.driver.interfaces.ort_value import ONNX_TYPE_NAMES, IOBinding, OrtValue, array_of
from tilewright.driver.interfaces.session_model import (
    load_model,
    overridable_initializers,
    remove_initializers,
    replace_initializers,
    sizes_by_denotation,
)
from tilewright.driver.interfaces.session_options import ExecutionMode as ExecutionMode
from tilewright.driver.interfaces.session_options import GraphOptimizationLevel as GraphOptimizationLevel
from tilewright.driver.interfaces.session_options import RunOptions as RunOptions
from tilewright.driver.interfaces.session_options import SessionOptions as SessionOptions
from tilewright.driver.kernel_build.build_resources import build_resources
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.runtime import Executable, is_artifact, load
from tilewright.runtime.artifact import is_artifact_file, path_text
from tilewright.runtime.manifest import TensorSpec

if TYPE_CHECKING:
    import onnx

    from tilewright.measure.call_trace import CallTrace

PROVIDER = "CPUExecutionProvider"
_log = logging.getLogger("tilewright.session")

_IGNORED_KEYWORDS = frozenset(["disabled_optimizers", "enable_fallback", "read_config_from_model"])
"""Keyword arguments of ONNX Runtime's class that have no meaning here."""

_OPTION_KEYWORDS = tuple(f.name for f in fields(CompileOptions))
_COMPILE_KEYWORDS = (*_OPTION_KEYWORDS, "jobs", "cache", "records", "frozen")
"""Keyword arguments of `tilewright.compile`."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its sizes (a number, a name, or None), and its type such as "tensor(float)"."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What the model's file says about itself."""

    custom_metadata_map: dict[str, str]
    description: str
    domain: str
    graph_description: str
    graph_name: str
    producer_name: str
    version: int


class InferenceSession:
    """A model ready to run, with the methods of ONNX Runtime's class of the same name."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Compile a model, or load one that was compiled before.

        Args:
            path_or_bytes: an ONNX model or an artifact of `tilewright compile`, as a path or as bytes.
            sess_options: `SessionOptions`, ONNX Runtime's own or ours.
            providers: names or (name, options) pairs; the CPU computes whatever they say.
            provider_options: accepted and without effect.
            kwargs: `shapes`, `target`, `optimizer`, `machine`, `layouts`, `exact`, `winograd`, `fusion`, `variants`,
                `jobs`, `cache`, `records` and `frozen` go to `tilewright.compile`, and so does `progress`, which a
                model that is compiled already never calls; those of ONNX Runtime have no effect.

        Raises:
            TilewrightError: see `tilewright.compile` and `tilewright.load`; OptionError for an unknown keyword, for
                one of a compilation where the model is compiled already, and for options that are none.
        """
        _check_keywords(kwargs)
        _check_options(sess_options)
        self._options = SessionOptions() if sess_options is None else sess_options
        _warn_other_providers(providers or ())
        self._is_compiled = _is_artifact_source(path_or_bytes)
        # the bytes of a compiled model are not needed again
        self._model_source = b"" if self._is_compiled and isinstance(path_or_bytes, bytes) else path_or_bytes
        self._keywords, self._overridable = kwargs, list[NodeArg]() if self._is_compiled else None
        self._threads = int(getattr(self._options, "intra_op_num_threads", 0)) or None
        self._overridden: dict[frozenset[str], Executable] = {}
        self._executable = self._first_executable(path_or_bytes)
        self._input_names = frozenset(spec.name for spec in self._executable.inputs)
        self._output_names = [spec.name for spec in self._executable.outputs]
        target = getattr(self._options, "optimized_model_filepath", "")
        if target:
            self._executable.save(target)
        self._trace: CallTrace | None = None
        if getattr(self._options, "enable_profiling", False):
            self._trace = import_module("tilewright.measure.call_trace").CallTrace()

    def _first_executable(self, source: str | os.PathLike[str] | bytes) -> Executable:
        changes_model = any(getattr(self._options, name, {}) for name in ("initializers", "denotation_overrides"))
        if self._is_compiled and changes_model:
            what = "initializers and denotations have no effect on a model that is compiled already"
            raise OptionError(what, where="argument 'sess_options'", hint="give the ONNX model")
        if self._is_compiled:
            _refuse_compilation_keywords(self._keywords)
            return load(source, threads=self._threads)
        return self._compile_with_inputs(frozenset()) if changes_model else self._compile(source, {})

    def _compile_with_inputs(self, names: frozenset[str]) -> Executable:
        """The compiled model with the initializers and sizes that the options replace, whose initializers of these
        names are inputs."""
        model = load_model(self._model_source)
        replaced: Mapping[str, Any] = getattr(self._options, "initializers", {})
        replace_initializers(model, {k: v for k, v in replaced.items() if k not in names})
        remove_initializers(model, names)
        return self._compile(model, sizes_by_denotation(model, getattr(self._options, "denotation_overrides", {})))

    def _compile(
        self, source: "str | os.PathLike[str] | bytes | onnx.ModelProto", sizes: Mapping[str, int]
    ) -> Executable:
        """The compiled model with sizes of dimensions beside those that the options state by name."""
        # here, so that an artifact loads without the compiler
        from tilewright.driver.compile_model import compile_with_options

        options = _given_keywords(self._keywords)
        sizes = {**getattr(self._options, "free_dimension_overrides", {}), **sizes}
        shapes = options.get("shapes")
        if sizes and (shapes is None or isinstance(shapes, Mapping)):
            options["shapes"] = {**sizes, **(shapes or {})}
        resources = build_resources(
            options.pop("jobs", None),
            options.pop("cache", None),
            records=options.pop("records", None),
            frozen=options.pop("frozen", False),
        )
        progress = self._keywords.get("progress")
        return compile_with_options(source, CompileOptions(**options), self._threads, progress, resources)

    @property
    def executable(self) -> Executable:
        """The compiled model behind the session."""
        return self._executable

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: which outputs to return, in this order; None or an empty list stands for all.
            input_feed: arrays by input name.
            run_options: accepted and without effect.

        Raises:
            FeedError, ShapeError: an input or output name does not exist, or a feed does not fit.
            OptionError: the names are a single string.
        """
        if isinstance(output_names, str):
            hint = f"pass ['{output_names}']"
            raise OptionError("expected a list of names, got a string", where="argument 'output_names'", hint=hint)
        executable = self._executable
        if isinstance(input_feed, Mapping) and not self._input_names.issuperset(input_feed):  # pyright: ignore[reportUnnecessaryIsInstance]
            executable = self._overriding(frozenset(input_feed) - self._input_names)
        if self._trace is None:
            values = executable.run(input_feed, output_names or None)
        else:
            values = self._trace.timed("model_run", lambda: executable.run(input_feed, output_names or None))
        return [values[name] for name in output_names or self._output_names]

    def _overriding(self, names: frozenset[str]) -> Executable:
        """The compiled model whose initializers of these names are inputs; the usual one, which reports unknown names,
        where they are not overridable."""
        if names not in self._overridden:
            if not names <= {arg.name for arg in self.get_overridable_initializers()}:
                return self._executable
            self._overridden[names] = self._compile_with_inputs(names)
        return self._overridden[names]

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[OrtValue]:
        """Run the model on tensors; arguments and errors otherwise as for `run`."""
        feed = {name: array_of(value) for name, value in input_dict_ort_values.items()}
        return [OrtValue(y) for y in self.run(output_names, feed, run_options)]

    def io_binding(self) -> IOBinding:
        """A new binding of inputs and outputs."""
        names = [arg.name for arg in (*self.get_inputs(), *self.get_overridable_initializers())]
        return IOBinding(names, self._output_names)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the model on what is bound; errors as for `run`, and FeedError where a result does not fit its memory."""
        iobinding.run(self.run)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any = None,
        run_options: Any = None,
    ) -> None:
        """Run the model in a thread of its own, which then calls `callback(results, user_data, error)`; the error is
        an empty text, or what went wrong."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as problem:
                results, error = list[Any](), str(problem)
            callback(results, user_data, error)

        threading.Thread(target=work).start()

    def end_profiling(self) -> str:
        """Write the times of all runs since the session was made to a file `<prefix><date>.json`, which browsers show,
        and return its name; an empty text without `enable_profiling`. `tilewright.profile` has the times of kernels.

        Raises:
            OptionError: the file cannot be written.
        """
        if self._trace is None:
            return ""
        prefix = getattr(self._options, "profile_file_prefix", "profile_")
        path = Path(f"{prefix}{datetime.now():%Y-%m-%d_%H-%M-%S}.json")
        try:
            self._trace.write(path)
        except OSError as error:
            raise OptionError(f"can't be written ({error.strerror})", where=f"file '{path}'") from error
        self._trace = None
        return str(path)

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, on the clock of `time.perf_counter_ns`; 0 without `enable_profiling`."""
        return 0 if self._trace is None else self._trace.start_ns

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return [_node_arg(spec) for spec in self._executable.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return [_node_arg(spec) for spec in self._executable.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a feed may replace: those that are inputs of the model, too; none of a compiled model."""
        if self._overridable is None:
            infos = overridable_initializers(load_model(self._model_source, with_data=False)).values()
            self._overridable = [_node_arg_of(info) for info in infos]
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's file says about itself."""
        meta = self._executable.manifest.meta
        return ModelMetadata(
            custom_metadata_map=dict(meta.custom),
            description=meta.description,
            domain=meta.domain,
            graph_description="",
            graph_name=meta.graph_name,
            producer_name=meta.producer_name,
            version=meta.model_version,
        )

    def get_providers(self) -> list[str]:
        """Names of the providers that compute, as ONNX Runtime calls them."""
        return get_available_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options of each provider: none."""
        return {PROVIDER: {}}

    def get_session_options(self) -> Any:
        """The options that the session was made with."""
        return self._options

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Accepted and without effect."""
        _warn_other_providers(providers or ())


def get_available_providers() -> list[str]:
    """The only provider: this machine's processor."""
    return [PROVIDER]


def get_device() -> str:
    """The kind of device that models run on."""
    return "CPU"


def _check_options(options: object) -> None:
    """Raises for what is neither our options nor ONNX Runtime's, which have the same names."""
    if options is not None and not hasattr(options, "intra_op_num_threads"):
        what = f"expected SessionOptions, got {options!r} of type {type(options).__name__}"
        hint = "pass tilewright.SessionOptions(); providers and options of a compilation have names: optimizer='roller'"
        raise OptionError(what, where="argument 'sess_options'", hint=hint)


def _check_keywords(kwargs: Mapping[str, Any]) -> None:
    accepted = (*_COMPILE_KEYWORDS, "progress", *sorted(_IGNORED_KEYWORDS))
    for name in kwargs:
        if name not in accepted:
            hint = f"those that exist are {', '.join(accepted)}"
            raise OptionError("no such keyword argument", where=f"argument '{name}'", hint=hint)


def _given_keywords(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a compilation."""
    return {name: kwargs[name] for name in _COMPILE_KEYWORDS if kwargs.get(name) is not None}


def _refuse_compilation_keywords(kwargs: Mapping[str, Any]) -> None:
    for name, value in _given_keywords(kwargs).items():
        if value is not False:
            what = f"{value!r} has no effect on a model that is compiled already"
            raise OptionError(what, where=f"argument '{name}'", hint="leave it out or give the ONNX model")


def _is_artifact_source(source: str | os.PathLike[str] | bytes) -> bool:
    if isinstance(source, bytes):
        return is_artifact(source)
    try:
        return is_artifact_file(Path(path_text(source)))
    except (OSError, ValueError):
        return False  # the front end says what is wrong with the path


def _warn_other_providers(providers: Iterable[Any]) -> None:
    for entry in providers:
        name = entry if isinstance(entry, str) else entry[0]
        if name != PROVIDER:
            _log.warning("provider %s is not available, the model runs on %s", name, PROVIDER)


def _node_arg_of(info: "onnx.ValueInfoProto") -> NodeArg:
    from tilewright.frontend.onnx.types import type_text

    dims = info.type.tensor_type.shape.dim
    sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]
    return NodeArg(info.name, sizes, type_text(info.type) or "")


def _node_arg(spec: TensorSpec) -> NodeArg:
    return NodeArg(spec.name, list(spec.dims), f"tensor({ONNX_TYPE_NAMES.get(spec.dtype, spec.dtype)})")
