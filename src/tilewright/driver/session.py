"""The common interface of ONNX Runtime's session, on compiled models.

A program written for `onnxruntime.InferenceSession` runs after a change of one import. Options without a meaning here
(arenas, graph optimisation levels, providers of other devices) are accepted and have no effect; unknown options are
errors.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

from tilewright.driver.build_resources import build_resources
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.runtime import Executable, is_artifact, load
from tilewright.runtime.artifact import MAGIC, path_text
from tilewright.runtime.manifest import TensorSpec

PROVIDER = "CPUExecutionProvider"
_log = logging.getLogger("tilewright.session")

_IGNORED_KEYWORDS = frozenset(["disabled_optimizers", "enable_fallback", "read_config_from_model"])
"""Keyword arguments of ONNX Runtime's class that have no meaning here."""

_OPTION_KEYWORDS = tuple(f.name for f in fields(CompileOptions))
_COMPILE_KEYWORDS = (*_OPTION_KEYWORDS, "jobs", "cache")
"""Keyword arguments of `tilewright.compile`."""

_ONNX_TYPES = {"float32": "float", "float64": "double", "any": "unknown"}


class GraphOptimizationLevel(IntEnum):
    """Accepted and without effect: every model is compiled in full."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted and without effect: operators run one after the other, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class SessionOptions:
    """Options of a session: `intra_op_num_threads` sets the threads (0: the environment's), the rest has no effect.

    Raises:
        AttributeError: an option that does not exist is set.
    """

    __slots__ = (
        "_config",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "free_dimension_overrides",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "use_deterministic_compute",
        "use_per_session_threads",
    )

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self.free_dimension_overrides: dict[str, int] = {}
        self._config: dict[str, str] = {}

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Compile for one size of a symbolic dimension."""
        self.free_dimension_overrides[name] = size

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a configuration entry, which has no effect."""
        self._config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """A configuration entry that was added before.

        Raises:
            OptionError: it was not.
        """
        if key not in self._config:
            raise OptionError("no such configuration entry", where=f"key {key!r}")
        return self._config[key]


class RunOptions:
    """Options of one run. Accepted and without effect."""

    __slots__ = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches", "terminate")

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False


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
            sess_options: `SessionOptions`, ONNX Runtime's own or ours; only the number of threads counts.
            providers: names or (name, options) pairs; the CPU computes whatever they say.
            provider_options: accepted and without effect.
            kwargs: `shapes`, `target`, `optimizer`, `machine`, `layouts`, `exact`, `winograd`, `fusion`, `variants`,
                `jobs` and `cache` go to `tilewright.compile`, and so does `progress`, which a model that is compiled
                already never calls; those of ONNX Runtime have no effect.

        Raises:
            TilewrightError: see `tilewright.compile` and `tilewright.load`; OptionError for an unknown keyword, and for
                one of a compilation where the model is compiled already.
        """
        _check_keywords(kwargs)
        self._options = SessionOptions() if sess_options is None else sess_options
        _warn_other_providers(providers or ())
        threads = int(getattr(self._options, "intra_op_num_threads", 0)) or None
        overrides: Mapping[str, int] = getattr(self._options, "free_dimension_overrides", {})
        self._executable = _make_executable(path_or_bytes, threads, overrides, kwargs)
        self._output_names = [spec.name for spec in self._executable.outputs]

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
        values = self._executable.run(input_feed, output_names or None)
        return [values[name] for name in output_names or self._output_names]

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return [_node_arg(spec) for spec in self._executable.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return [_node_arg(spec) for spec in self._executable.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a feed could replace: none, they are compiled in."""
        return []

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


def _check_keywords(kwargs: Mapping[str, Any]) -> None:
    accepted = (*_COMPILE_KEYWORDS, "progress", *sorted(_IGNORED_KEYWORDS))
    for name in kwargs:
        if name not in accepted:
            hint = f"those that exist are {', '.join(accepted)}"
            raise OptionError("no such keyword argument", where=f"argument '{name}'", hint=hint)


def _make_executable(
    source: str | os.PathLike[str] | bytes, threads: int | None, overrides: Mapping[str, int], kwargs: Mapping[str, Any]
) -> Executable:
    options = {name: kwargs[name] for name in _COMPILE_KEYWORDS if kwargs.get(name) is not None}
    if _is_artifact_source(source):
        for name, value in options.items():
            if value is not False:
                what = f"{value!r} has no effect on a model that is compiled already"
                raise OptionError(what, where=f"argument '{name}'", hint="leave it out or give the ONNX model")
        return load(source, threads=threads)
    # here, so that an artifact loads without the compiler
    from tilewright.driver.compile import compile_with_options

    shapes = options.get("shapes")
    if overrides and (shapes is None or isinstance(shapes, Mapping)):
        options["shapes"] = {**overrides, **(shapes or {})}
    resources = build_resources(options.pop("jobs", None), options.pop("cache", None))
    return compile_with_options(source, CompileOptions(**options), threads, kwargs.get("progress"), resources)


def _is_artifact_source(source: str | os.PathLike[str] | bytes) -> bool:
    if isinstance(source, bytes):
        return is_artifact(source)
    try:
        with Path(path_text(source)).open("rb") as file:
            return is_artifact(file.read(len(MAGIC)))
    except (OSError, ValueError):
        return False  # the front end says what is wrong with the path


def _warn_other_providers(providers: Iterable[Any]) -> None:
    for entry in providers:
        name = entry if isinstance(entry, str) else entry[0]
        if name != PROVIDER:
            _log.warning("provider %s is not available, the model runs on %s", name, PROVIDER)


def _node_arg(spec: TensorSpec) -> NodeArg:
    return NodeArg(spec.name, list(spec.dims), f"tensor({_ONNX_TYPES.get(spec.dtype, spec.dtype)})")
