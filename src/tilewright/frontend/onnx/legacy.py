"""Nodes of early operator sets in the form that definitions know: that of version 7, or of a successor's name.

What depends on ranks (`broadcast` and `axis` of arithmetic, PRelu's slope) is left to the definitions.
"""

from collections.abc import Callable, Container, Mapping, MutableMapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from tilewright.graph.ir import Array

_RENAMED = {"Scatter": "ScatterElements"}
"""Standard operators that live on under another name."""

_WITHOUT_MEANING = ("consumed_inputs", "is_test")
"""Attributes of versions below 7: notes on memory, and a mark of inference, which everything here is."""


def modern(
    node: onnx.NodeProto, version: int, constants: MutableMapping[str, Array], taken: Container[str]
) -> onnx.NodeProto:
    """A standard node in its modern form: the node itself, or a changed copy.

    Args:
        node: of the standard operator set.
        version: of the set that the model imports.
        constants: read; receives inputs that once were attributes.
        taken: names that a new constant may not have.
    """
    if version >= 7 and node.op_type not in _RENAMED:
        return node
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.op_type = _RENAMED.get(node.op_type, node.op_type)
    if version < 7:
        _set(result, without=_WITHOUT_MEANING)
        below, change = _CHANGES.get(node.op_type, (0, _unchanged))
        if version < below:
            added = change(result, constants)
            if added is not None:
                name = f"{node.output[0]}/{node.op_type}"
                while name in taken or name in constants:
                    name += "_"
                constants[name] = added
                result.input.append(name)
    return result


def _unchanged(node: onnx.NodeProto, constants: Mapping[str, Array]) -> Array | None:
    return None


def _set(node: onnx.NodeProto, *, without: Container[str] = (), **values: object) -> None:
    """Sets attributes, and drops some; empty lists are of integers."""
    kept = [a for a in node.attribute if a.name not in values and a.name not in without]
    types = {name: onnx.AttributeProto.INTS for name, value in values.items() if value in ((), [])}
    made = [helper.make_attribute(name, value, attr_type=types.get(name)) for name, value in values.items()]
    del node.attribute[:]
    node.attribute.extend((*kept, *made))


def _given(node: onnx.NodeProto, name: str, default: object = None) -> object:
    """An attribute's value."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _cast(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """`to` is the name of a type."""
    name = _given(node, "to", b"")
    text = name.decode("utf-8", "replace").upper() if isinstance(name, bytes) else ""
    _set(node, to=TensorProto.DataType.Value(text) if text in TensorProto.DataType.keys() else 0)  # noqa: SIM118


def _concat(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    _set(node, axis=_given(node, "axis", 1))


def _pad(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    _set(node, without=("paddings",), pads=_given(node, "paddings", ()))


def _reshape(node: onnx.NodeProto, constants: Mapping[str, Array]) -> Array:
    shape = np.array(_given(node, "shape", ()), np.int64)
    _set(node, without=("shape",))
    return shape


def _selu(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    _set(node, alpha=_given(node, "alpha", 1.6732), gamma=_given(node, "gamma", 1.0507))


def _power_mean(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """`p` of LpPool is a float."""
    p = _given(node, "p", 2.0)
    if isinstance(p, float) and p.is_integer():
        _set(node, p=int(p))


def _split(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """The sizes may be an input."""
    if len(node.input) > 1 and node.input[1] in constants:
        _set(node, split=[int(n) for n in constants[node.input[1]].reshape(-1)])
        del node.input[1:]


def _upsample(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    scales = [1.0, 1.0, _given(node, "height_scale", 1.0), _given(node, "width_scale", 1.0)]
    _set(node, without=("height_scale", "width_scale"), scales=scales)


_Change = Callable[[onnx.NodeProto, Mapping[str, Array]], "Array | None"]

_CHANGES: dict[str, tuple[int, _Change]] = {
    "Cast": (6, _cast),
    "Concat": (4, _concat),
    "GlobalLpPool": (2, _power_mean),
    "LpPool": (2, _power_mean),
    "Pad": (2, _pad),
    "Reshape": (5, _reshape),
    "Selu": (6, _selu),
    "Split": (2, _split),
    "Upsample": (7, _upsample),
}
"""What changes nodes of versions below a number; a result is a new last input."""
