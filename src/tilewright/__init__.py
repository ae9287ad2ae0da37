"""A compiler for deep-learning inference: an ONNX model goes in, native code for the machine at hand comes out.

    executable = tilewright.compile("model.onnx", shapes={"batch": "1..64"})
    y = executable(x)
    executable.save("model.tw")
    executable = tilewright.load("model.tw")

Names are imported on first use, so `import tilewright` costs little and a program that only runs compiled models
never imports the compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.driver.compile import compile_model as compile
    from tilewright.driver.session import (
        InferenceSession,
        NodeArg,
        RunOptions,
        SessionOptions,
    )
    from tilewright.errors import (
        ArtifactError,
        FallbackWarning,
        FeedError,
        InternalError,
        ModelError,
        ModelFileError,
        OptionError,
        ShapeError,
        TargetError,
        TilewrightError,
        UnsupportedError,
    )
    from tilewright.machine import Target
    from tilewright.runtime import Artifact, Executable, load

__version__ = "0.1.0"

_ERRORS = (
    "ArtifactError", "FallbackWarning", "FeedError", "InternalError", "ModelError", "ModelFileError", "OptionError",
    "ShapeError", "TargetError", "TilewrightError", "UnsupportedError",
)  # fmt: skip

_PLACES: dict[str, tuple[str, str]] = {
    "compile": ("tilewright.driver.compile", "compile_model"),
    "load": ("tilewright.runtime", "load"),
    "Artifact": ("tilewright.runtime", "Artifact"),
    "Executable": ("tilewright.runtime", "Executable"),
    "InferenceSession": ("tilewright.driver.session", "InferenceSession"),
    "NodeArg": ("tilewright.driver.session", "NodeArg"),
    "RunOptions": ("tilewright.driver.session", "RunOptions"),
    "SessionOptions": ("tilewright.driver.session", "SessionOptions"),
    "Target": ("tilewright.machine", "Target"),
    **{name: ("tilewright.errors", name) for name in _ERRORS},
}
"""Where the public names live: module and attribute."""

__all__ = [
    "Artifact", "ArtifactError", "Executable", "FallbackWarning", "FeedError", "InferenceSession", "InternalError",
    "ModelError", "ModelFileError", "NodeArg", "OptionError", "RunOptions", "SessionOptions", "ShapeError", "Target",
    "TargetError", "TilewrightError", "UnsupportedError", "__version__", "compile", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
