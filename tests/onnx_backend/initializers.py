"""Cases with axes, shapes and scales that the model states: inputs that decide what is computed become initializers."""

import unittest
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import BackendRep
from tests.onnx_backend.cases import Recorded

STRUCTURE = frozenset(
    ("axes", "axis", "shape", "size", "sizes", "scales", "roi", "repeats", "split", "starts", "ends", "steps", "pads",
     "k", "depth", "image_shape", "block_shape", "output_shape", "start", "limit", "delta", "frame_step",
     "frame_length", "dft_length", "num_mel_bins", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
)  # fmt: skip
"""Names of inputs, in the schemas of operators, that hold axes, shapes, scales or the like."""


class _StopError(Exception):
    """Carries a case's model."""


class _Probe(Recorded):
    """A backend that shows the model of a case, and computes nothing."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
        raise _StopError(model)


class WithInitializers(Recorded):
    """The backend for models whose structural inputs have become initializers, which is done when they are fed."""

    probe: ClassVar[type[Recorded]] = _Probe

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
        Recorded.last = None
        return _Waiting(model)


class _Waiting(BackendRep):
    """A model that is compiled when the values of its structural inputs are there."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        names = structural_inputs(self.model)
        stated = {i.name for i in self.model.graph.initializer}
        feeds = dict(zip([i.name for i in self.model.graph.input if i.name not in stated], inputs, strict=False))
        model = with_initializers(self.model, {n: np.asarray(feeds.pop(n)) for n in names if n in feeds})
        return Recorded.prepare(model).run(list(feeds.values()))


def structural_inputs(model: onnx.ModelProto) -> list[str]:
    """Names of the model's inputs that a node takes for one of `STRUCTURE`, or for the shape of a new tensor."""
    stated = {i.name for i in model.graph.initializer}
    names = {i.name for i in model.graph.input} - stated
    opsets = {o.domain: o.version for o in model.opset_import}
    chosen: dict[str, None] = {}
    for node in model.graph.node:
        if node.domain not in opsets or not onnx.defs.has(node.op_type, node.domain):
            continue
        formal = onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain).inputs
        for k, name in enumerate(node.input):
            kind = formal[min(k, len(formal) - 1)].name if formal else ""
            if name in names and (kind in STRUCTURE or node.op_type == "ConstantOfShape"):
                chosen[name] = None
    return list(chosen)


def with_initializers(model: onnx.ModelProto, values: Mapping[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """The model with initializers in place of the inputs that have values here."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [i for i in result.graph.input if i.name not in values]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in values.items())
    return result


def has_structure(case: Callable[..., Any]) -> bool:
    """Whether the model of a case, which was loaded for the probing backend, has structural inputs."""
    try:
        case(unittest.TestCase())
    except _StopError as stop:
        return bool(structural_inputs(stop.args[0]))
    except Exception:
        return False
    return False
