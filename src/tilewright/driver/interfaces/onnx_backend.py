"""ONNX's backend interface (`onnx.backend.base`): programs and tests written for it run on compiled models.

`OnnxBackend.prepare(model).run([x])` compiles and runs, `OnnxBackend.run_node` runs one operator.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from tilewright.driver.compile_model import compile_model
from tilewright.errors import FeedError, OptionError, pluralize
from tilewright.runtime import Executable


class OnnxBackendRep(BackendRep):
    """A model that `OnnxBackend.prepare` compiled."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Computes the model's outputs.

        Args:
            inputs: values in the order of the model's inputs, or by name; a single array for a single input.
            kwargs: accepted and without effect.

        Raises:
            FeedError, ShapeError: as for a call of an `Executable`.
        """
        names = [spec.name for spec in self.executable.inputs]
        if isinstance(inputs, Mapping):
            results = self.executable.run(dict(inputs))
        else:
            single = isinstance(inputs, np.ndarray) or not isinstance(inputs, Sequence)
            values: list[Any] = [inputs] if single else list(inputs)
            if len(values) != len(names):
                raise FeedError(f"expected {pluralize(len(names), 'input')}, got {len(values)}", where="call")
            results = self.executable.run(dict(zip(names, values, strict=True)))
        return tuple(results[spec.name] for spec in self.executable.outputs)


class OnnxBackend(Backend):
    """Tilewright behind ONNX's backend interface. Keyword arguments go to `tilewright.compile`."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> OnnxBackendRep:
        """Compiles a model.

        Args:
            model: the model.
            device: "CPU".
            kwargs: `shapes`, `optimizer`, `threads` and the others of `tilewright.compile`.

        Raises:
            OptionError: another device.
            TilewrightError: see `tilewright.compile`.
        """
        if not cls.supports_device(device):
            raise OptionError(f"expected 'CPU', got {device!r}", where="argument 'device'")
        return OnnxBackendRep(compile_model(model, **kwargs))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one operator.

        Args:
            node: the operator with its attributes.
            inputs: one value for every input that the node names, in order, or by name.
            device: "CPU".
            outputs_info: element type and shape of each output, where they are known.
            kwargs: `opset_version` of the operator's domain, ONNX's newest by default; the others as for `prepare`.

        Raises:
            OptionError, TilewrightError: as for `prepare`.
            FeedError: another number of inputs than the node has.
        """
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version() if not node.domain else 1)
        names = list(dict.fromkeys(name for name in node.input if name))
        feeds = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
        if len(feeds) != len(names) or (not isinstance(inputs, Mapping) and len(inputs) != len(names)):
            what = f"expected {pluralize(len(names), 'input')}, got {len(inputs)}"
            raise FeedError(what, where=f"node {node.op_type}")
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        for value, (dtype, shape) in zip(results, outputs_info or (), strict=False):
            value.type.CopyFrom(helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape))
        given = [helper.make_value_info(name, _onnx_type_of(feeds[name])) for name in names]
        graph = helper.make_graph([node], node.name or node.op_type, given, results)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return cls.prepare(model, device, **kwargs).run([feeds[name] for name in names])

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device is this machine's processor ("CPU", "CPU:0")."""
        try:
            return Device(device).type == DeviceType.CPU
        except AttributeError:
            return False


def _onnx_type_of(value: Any) -> onnx.TypeProto:
    """The type of a value that is fed: a list is a sequence, everything else a tensor."""
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray | list):
        return helper.make_sequence_type_proto(_onnx_type_of(value[0]))
    array = np.asarray(value)
    number = onnx.TensorProto.STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_type_proto(number, array.shape)
