"""Attributes of a node: a record of those read, and comparison with the schema's defaults."""

from collections.abc import Iterator, Mapping
from typing import Any


class TrackedAttributes(Mapping[str, Any]):
    """A node's attributes by name, with a record of those read."""

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
        """The attributes not read so far."""
        return {name: value for name, value in self._values.items() if name not in self._read}


def is_default(domain: str, op_type: str, version: int, name: str, value: Any) -> bool:
    """Whether an attribute's value is the default of the operator's schema.

    Args:
        domain: of the operator.
        op_type: its name.
        version: of the operator set.
        name: of the attribute.
        value: as in graph nodes, where lists are tuples.
    """
    import onnx.defs  # imported late: few nodes have attributes that their definition does not read
    from onnx.helper import get_attribute_value

    if not onnx.defs.has(op_type, version, domain):
        return False
    schema_attribute = onnx.defs.get_schema(op_type, version, domain).attributes.get(name)
    if schema_attribute is None or not schema_attribute.default_value.name:
        return False
    default = get_attribute_value(schema_attribute.default_value)
    if isinstance(default, list):
        return isinstance(value, tuple) and value == tuple(default)
    if isinstance(default, bytes):
        return value in (default, default.decode())
    return type(value) is type(default) and value == default
