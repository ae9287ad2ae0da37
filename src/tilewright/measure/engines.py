"""Peer engines that run ONNX models, as functions from inputs to outputs by name."""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tilewright.errors import OptionError

Feeds = Mapping[str, Any]
Run = Callable[[Feeds], dict[str, Any]]
Model = str | os.PathLike[str] | bytes
"""A path, or the bytes of a file."""


def onnxruntime_engine(model: Model, threads: int) -> Run:
    """ONNX Runtime's CPU provider with all graph optimisations.

    Raises:
        OptionError: it is not installed, or rejects the model.
    """
    ort = _import_package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(_model_argument(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _rejection_error("onnxruntime", model, error) from error
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


def openvino_engine(model: Model, threads: int) -> Run:
    """OpenVINO's CPU plugin, optimised for latency, in float32. The next call overwrites the outputs.

    Raises:
        OptionError: it is not installed, or rejects the model.
    """
    ov = _import_package("openvino")
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    try:
        core = ov.Core()
        compiled = core.compile_model(core.read_model(model=_model_argument(model)), "CPU", hints)
    except Exception as error:
        raise _rejection_error("openvino", model, error) from error
    request, names = compiled.create_infer_request(), [o.get_any_name() for o in compiled.outputs]

    def run(feeds: Feeds) -> dict[str, Any]:
        outputs = request.infer(dict(feeds), share_inputs=True, share_outputs=True)
        return {name: outputs[k] for k, name in enumerate(names)}

    return run


PEERS: Mapping[str, Callable[[Model, int], Run]] = {
    "onnxruntime": onnxruntime_engine, "openvino": openvino_engine,
}  # fmt: skip
"""Engines by name, which is also the name of their package."""


def is_installed(name: str) -> bool:
    """Whether an engine's package is installed; does not import it."""
    return find_spec(name) is not None


def check_installed(name: str) -> None:
    """Checks that an engine can be used.

    Raises:
        OptionError: it is unknown or not installed.
    """
    if name not in PEERS:
        raise OptionError(f"there is no engine {name!r}; there are {', '.join(PEERS)}", where="engines")
    if not is_installed(name):
        raise OptionError(f"{name} is not installed", where="engines", hint=f"pip install {name}")


def version(name: str) -> str | None:
    """An engine's version; None if it is not installed."""
    try:
        return str(import_module(name).__version__)
    except ImportError:
        return None


def _import_package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise OptionError(f"{name} is not installed", where="engines", hint=f"pip install {name}") from error


def _model_argument(model: Model) -> str | bytes:
    return model if isinstance(model, bytes) else os.fspath(model)


def _rejection_error(name: str, model: Model, error: Exception) -> OptionError:
    where = "model" if isinstance(model, bytes) else f"file '{os.fspath(model)}'"
    lines = str(error).strip() or type(error).__name__
    return OptionError(f"{name} rejects the model: {lines}", where=where, hint=f"leave {name} out")
