"""Upgrade of nodes of early operator sets to version 7, or to the successor of a renamed operator.

Attributes that depend on ranks (`broadcast` and `axis` of arithmetic, PRelu's slope) are left to the definitions.
"""

from collections.abc import Callable, Container, Mapping, MutableMapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from tilewright.graph.ir import Array
from tilewright.names import underscored_name

_RENAMED_OPERATORS = {"Scatter": "ScatterElements"}
"""Standard operators with a successor of another name."""

_IGNORED_ATTRIBUTES = ("consumed_inputs", "is_test")
"""Attributes of versions below 7 without effect here: notes on memory, and a flag for inference."""


def upgrade_node(
    node: onnx.NodeProto, version: int, constants: MutableMapping[str, Array], taken: Container[str]
) -> onnx.NodeProto:
    """A standard node in its modern form: the node itself, or a changed copy.

    Args:
        node: of the standard operator set.
        version: of the operator set that the model imports.
        constants: read; receives inputs that were attributes.
        taken: names that a new constant must not have.
    """
    if version >= 7 and node.op_type not in _RENAMED_OPERATORS:
        return node
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.op_type = _RENAMED_OPERATORS.get(node.op_type, node.op_type)
    if version < 7:
        _set_attributes(result, without=_IGNORED_ATTRIBUTES)
        first_modern, upgrade = _UPGRADES.get(node.op_type, (0, _no_upgrade))
        if version < first_modern:
            new_input = upgrade(result, constants)
            if new_input is not None:
                name = underscored_name(f"{node.output[0]}/{node.op_type}", taken, constants)
                constants[name] = new_input
                result.input.append(name)
    return result


def _no_upgrade(node: onnx.NodeProto, constants: Mapping[str, Array]) -> Array | None:
    return None


def _set_attributes(node: onnx.NodeProto, *, without: Container[str] = (), **values: object) -> None:
    """Sets attributes, and drops some; empty lists are lists of integers."""
    others = [a for a in node.attribute if a.name not in values and a.name not in without]
    types = {name: onnx.AttributeProto.INTS for name, value in values.items() if value in ((), [])}
    changed = [helper.make_attribute(name, value, attr_type=types.get(name)) for name, value in values.items()]
    del node.attribute[:]
    node.attribute.extend((*others, *changed))


def _attribute_value(node: onnx.NodeProto, name: str, default: object = None) -> object:
    """An attribute's value."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _upgrade_cast(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """`to` was the name of a type."""
    name = _attribute_value(node, "to", b"")
    text = name.decode("utf-8", "replace").upper() if isinstance(name, bytes) else ""
    _set_attributes(node, to=TensorProto.DataType.Value(text) if text in TensorProto.DataType.keys() else 0)  # noqa: SIM118


def _upgrade_concat(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    _set_attributes(node, axis=_attribute_value(node, "axis", 1))


def _upgrade_pad(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    _set_attributes(node, without=("paddings",), pads=_attribute_value(node, "paddings", ()))


def _upgrade_reshape(node: onnx.NodeProto, constants: Mapping[str, Array]) -> Array:
    shape = np.array(_attribute_value(node, "shape", ()), np.int64)
    _set_attributes(node, without=("shape",))
    return shape


def _upgrade_selu(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    _set_attributes(node, alpha=_attribute_value(node, "alpha", 1.6732), gamma=_attribute_value(node, "gamma", 1.0507))


def _upgrade_lp_pool(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """`p` of LpPool was a float."""
    p = _attribute_value(node, "p", 2.0)
    if isinstance(p, float) and p.is_integer():
        _set_attributes(node, p=int(p))


def _upgrade_split(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """The sizes could be an input."""
    if len(node.input) > 1 and node.input[1] in constants:
        _set_attributes(node, split=[int(n) for n in constants[node.input[1]].reshape(-1)])
        del node.input[1:]


def _upgrade_upsample(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    scales = [1.0, 1.0, _attribute_value(node, "height_scale", 1.0), _attribute_value(node, "width_scale", 1.0)]
    _set_attributes(node, without=("height_scale", "width_scale"), scales=scales)


_Upgrade = Callable[[onnx.NodeProto, Mapping[str, Array]], "Array | None"]

_UPGRADES: dict[str, tuple[int, _Upgrade]] = {
    "Cast": (6, _upgrade_cast),
    "Concat": (4, _upgrade_concat),
    "GlobalLpPool": (2, _upgrade_lp_pool),
    "LpPool": (2, _upgrade_lp_pool),
    "Pad": (2, _upgrade_pad),
    "Reshape": (5, _upgrade_reshape),
    "Selu": (6, _upgrade_selu),
    "Split": (2, _upgrade_split),
    "Upsample": (7, _upgrade_upsample),
}
"""Upgrades of nodes of versions below a number; a result is a new last input."""
