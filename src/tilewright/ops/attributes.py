"""A node's attributes: which of them a definition asked for, and which have their default value."""

from collections.abc import Iterator, Mapping
from typing import Any


class TrackedAttributes(Mapping[str, Any]):
    """A node's attributes by name, which remember which of them were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def unread(self) -> Mapping[str, Any]:
        """The attributes that nobody has asked for."""
        return {name: value for name, value in self._values.items() if name not in self._read}


def is_default(domain: str, op_type: str, version: int, name: str, value: Any) -> bool:
    """Whether an attribute's value is the one that it has where a node leaves it out.

    Args:
        domain: of the operator.
        op_type: its name.
        version: of the operator set.
        name: of the attribute.
        value: as graph nodes hold it; lists are tuples.
    """
    import onnx.defs  # here because hardly a node has attributes that its definition does not ask for
    from onnx.helper import get_attribute_value

    if not onnx.defs.has(op_type, version, domain):
        return False
    formal = onnx.defs.get_schema(op_type, version, domain).attributes.get(name)
    if formal is None or not formal.default_value.name:
        return False
    default = get_attribute_value(formal.default_value)
    if isinstance(default, list):
        return isinstance(value, tuple) and value == tuple(default)
    if isinstance(default, bytes):
        return value in (default, default.decode())
    return type(value) is type(default) and value == default
