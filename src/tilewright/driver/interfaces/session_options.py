"""Options of sessions and runs, as programs written for ONNX Runtime set them."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from tilewright.errors import OptionError


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
    """Options of a session. Those with a meaning here:

    - `intra_op_num_threads`: threads of a call (0: the environment's);
    - `free_dimension_overrides`, with its two methods: sizes of symbolic dimensions;
    - `optimized_model_filepath`: where the compiled model is written, as a file that a session loads;
    - `enable_profiling`, `profile_file_prefix`: see `InferenceSession.end_profiling`;
    - initializers that replace those of the model.

    All others are accepted and have no effect.

    Raises:
        AttributeError: an option that does not exist is set.
    """

    __slots__ = (
        "_config",
        "_denotations",
        "_initializers",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
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
        self.execution_order = 0
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
        self._denotations: dict[str, int] = {}
        self._initializers: dict[str, Any] = {}

    @property
    def initializers(self) -> dict[str, Any]:
        """Values that replace initializers of the model, by name."""
        return self._initializers

    @property
    def denotation_overrides(self) -> dict[str, int]:
        """Sizes of dimensions by what they denote."""
        return self._denotations

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Compile for one size of a symbolic dimension."""
        self.free_dimension_overrides[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Compile for one size of the dimensions that the model marks with a denotation, such as DATA_BATCH."""
        self._denotations[denotation] = size

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace the data of an initializer by an `OrtValue` or an array."""
        self._initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Replace the data of several initializers.

        Raises:
            OptionError: there are more names than values, or less.
        """
        if len(names) != len(values):
            what = f"expected a value per name, got {len(values)} for {len(names)}"
            raise OptionError(what, where="argument 'values'")
        self._initializers.update(zip(names, values, strict=True))

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

    def register_custom_ops_library(self, path: str) -> None:
        """Always raises.

        Raises:
            OptionError: libraries of ONNX Runtime's operators can't be loaded.
        """
        hint = "register the operators with tilewright.register_operator"
        raise OptionError("libraries of ONNX Runtime's operators can't be loaded", where=f"file '{path}'", hint=hint)


class RunOptions:
    """Options of one run. Accepted and without effect."""

    __slots__ = (
        "_config",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
        "terminate",
    )

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False
        self._config: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a configuration entry, which has no effect."""
        self._config[key] = value
