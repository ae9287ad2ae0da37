"""ONNX Runtime, where it is installed, as the engine to compare with."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tilewright.errors import OptionError

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def onnxruntime_engine(model: str, threads: int) -> Run | None:
    """A function from inputs to outputs by name, None where ONNX Runtime is not installed.

    Raises:
        OptionError: ONNX Runtime rejects the model.
    """
    try:
        ort: Any = import_module("onnxruntime")
    except ImportError:
        return None
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise OptionError(f"onnxruntime rejects the model: {error}", where=f"file '{model}'",
                          hint="leave it out with --no-onnxruntime") from error  # fmt: skip
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


def version() -> str | None:
    """Its version, None where it is not installed."""
    try:
        return str(import_module("onnxruntime").__version__)
    except ImportError:
        return None
