"""A compiler for deep-learning inference: ONNX models to native code.

    executable = tilewright.compile("model.onnx", shapes={"batch": "1..64"})
    y = executable(x)
    executable.save("model.tw")
    executable = tilewright.load("model.tw")

And a workbench for kernel engineers: a tensor expression, scheduled by hand, is compiled to native code.

    A, B = tilewright.placeholder((512, 256), name="A"), tilewright.placeholder((256, 128), name="B")
    k = tilewright.reduce_axis(256, "k")
    C = tilewright.compute((512, 128), lambda i, j: tilewright.sum(A[i, k] * B[k, j], k), "C")
    s = tilewright.create_schedule(C)
    s.parallel("i")
    c = s.build()(a, b)

Names are imported on first use, so `import tilewright` is cheap and a program that only runs compiled models never
imports the compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.feature_detection import register_detector
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.driver.compile_model import compile_model as compile
    from tilewright.driver.diagnostics.profile import Profile, profile
    from tilewright.driver.interfaces.onnx_backend import OnnxBackend
    from tilewright.driver.interfaces.ort_value import IOBinding, OrtValue
    from tilewright.driver.interfaces.session import (
        ExecutionMode,
        GraphOptimizationLevel,
        InferenceSession,
        NodeArg,
        RunOptions,
        SessionOptions,
        get_available_providers,
        get_device,
    )
    from tilewright.driver.kernel_build.native_kernel import NativeKernel
    from tilewright.driver.register_operator import register_operator
    from tilewright.driver.tune.pipeline import tune
    from tilewright.driver.tune.result import TuningResult
    from tilewright.driver.workbench import Workbench, create_schedule
    from tilewright.errors import (
        ArtifactError,
        DefinitionError,
        EvaluatorError,
        FallbackWarning,
        FeedError,
        InternalError,
        LayoutError,
        LoopError,
        MeasureError,
        MismatchError,
        ModelError,
        ModelFileError,
        OptionError,
        ScheduleError,
        ShapeError,
        ShapeWarning,
        TargetError,
        TaskError,
        TilewrightError,
        TraceError,
        TreeError,
        UnsupportedError,
        VerifyError,
    )
    from tilewright.expr.define import compute, max, min, placeholder, prod, reduce_axis, sum, symbol
    from tilewright.expr.math_functions import (
        abs,
        cast,
        ceil,
        erf,
        exp,
        floor,
        log,
        maximum,
        minimum,
        rsqrt,
        select,
        sigmoid,
        sqrt,
        tanh,
    )
    from tilewright.expr.tensor import Tensor
    from tilewright.layout.layout import Layout
    from tilewright.machine import Target
    from tilewright.runtime import Artifact, Executable, load
    from tilewright.schedule.trace_json import dump as dump_trace
    from tilewright.schedule.trace_json import load as load_trace

_ERRORS = (
    "ArtifactError", "DefinitionError", "EvaluatorError", "FallbackWarning", "FeedError", "InternalError",
    "LayoutError", "LoopError", "MeasureError", "MismatchError", "ModelError", "ModelFileError", "OptionError",
    "ScheduleError", "ShapeError", "ShapeWarning", "TargetError", "TaskError", "TilewrightError", "TraceError",
    "TreeError", "UnsupportedError", "VerifyError",
)  # fmt: skip

_DEFINE = ("compute", "max", "min", "placeholder", "prod", "reduce_axis", "sum", "symbol")

_FUNCTIONS = (
    "abs", "cast", "ceil", "erf", "exp", "floor", "log", "maximum", "minimum", "rsqrt", "select", "sigmoid", "sqrt",
    "tanh",
)  # fmt: skip

_SESSION = (
    "ExecutionMode", "GraphOptimizationLevel", "InferenceSession", "NodeArg", "RunOptions", "SessionOptions",
    "get_available_providers", "get_device",
)  # fmt: skip

_EXPORTS: dict[str, tuple[str, str]] = {
    "compile": ("tilewright.driver.compile_model", "compile_model"),
    "load": ("tilewright.runtime", "load"),
    "profile": ("tilewright.driver.diagnostics.profile", "profile"),
    "register_operator": ("tilewright.driver.register_operator", "register_operator"),
    "tune": ("tilewright.driver.tune.pipeline", "tune"),
    "create_schedule": ("tilewright.driver.workbench", "create_schedule"),
    "dump_trace": ("tilewright.schedule.trace_json", "dump"),
    "load_trace": ("tilewright.schedule.trace_json", "load"),
    "Artifact": ("tilewright.runtime", "Artifact"),
    "Executable": ("tilewright.runtime", "Executable"),
    "IOBinding": ("tilewright.driver.interfaces.ort_value", "IOBinding"),
    "OrtValue": ("tilewright.driver.interfaces.ort_value", "OrtValue"),
    "Profile": ("tilewright.driver.diagnostics.profile", "Profile"),
    "Layout": ("tilewright.layout.layout", "Layout"),
    "NativeKernel": ("tilewright.driver.kernel_build.native_kernel", "NativeKernel"),
    "OnnxBackend": ("tilewright.driver.interfaces.onnx_backend", "OnnxBackend"),
    "Target": ("tilewright.machine", "Target"),
    "Tensor": ("tilewright.expr.tensor", "Tensor"),
    "TuningResult": ("tilewright.driver.tune.result", "TuningResult"),
    "Workbench": ("tilewright.driver.workbench", "Workbench"),
    **{name: ("tilewright.driver.interfaces.session", name) for name in _SESSION},
    **{name: ("tilewright.expr.define", name) for name in _DEFINE},
    **{name: ("tilewright.expr.math_functions", name) for name in _FUNCTIONS},
    **{name: ("tilewright.errors", name) for name in _ERRORS},
}
"""Module and attribute of each public name. The name `schedule` is taken by the package, hence `create_schedule`."""

__all__ = [
    "Artifact", "ArtifactError", "DefinitionError", "EvaluatorError", "Executable", "ExecutionMode",
    "FallbackWarning", "FeedError", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "InternalError",
    "Layout", "LayoutError", "LoopError", "MeasureError", "MismatchError", "ModelError", "ModelFileError",
    "NativeKernel", "NodeArg", "OnnxBackend", "OptionError", "OrtValue", "Profile", "RunOptions", "ScheduleError",
    "SessionOptions", "ShapeError", "ShapeWarning", "Target", "TargetError", "TaskError", "Tensor", "TilewrightError",
    "TraceError", "TreeError", "TuningResult", "UnsupportedError", "VerifyError", "Workbench", "__version__", "abs",
    "cast", "ceil", "compile", "compute", "create_schedule", "dump_trace", "erf", "exp", "floor",
    "get_available_providers", "get_device", "load", "load_trace", "log", "max", "maximum", "min", "minimum",
    "placeholder", "prod", "profile", "reduce_axis", "register_operator", "rsqrt", "select", "sigmoid", "sqrt", "sum",
    "symbol", "tanh", "tune",
]  # fmt: skip


def _llvm_host_features() -> frozenset[str]:
    return import_module("tilewright.runtime.host_features").llvm_host_features()


register_detector(_llvm_host_features)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    module, attribute = _EXPORTS[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
