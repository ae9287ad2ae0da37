"""JSON form of tile trees.

    {"format": "tilewright-tree", "version": 1,
     "staging": [{"kind": "cache_write", "statement": "C", "copy": "C.store"}],
     "body": [{"kind": "loop", "axis": "i", "step": 96, "loop_kind": "parallel", "body": [
         {"kind": "compute", "statement": "C", "scope": "stack"}]}]}

Every node and every staging is an object whose `kind` names its class and whose other fields are the attributes of it;
attributes with their default value may be left out. Reading checks the form only; `check_tree.py` tells whether a tree
fits a kernel.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from tilewright.errors import TreeError
from tilewright.layout.json_document import DocumentReader, abbreviate, load_document
from tilewright.tile.tree import (
    CacheRead,
    CacheWrite,
    Compute,
    Inline,
    Loop,
    Pack,
    Partition,
    RFactor,
    TileTree,
)

FORMAT = "tilewright-tree"
VERSION = 1

MAX_BYTES = 1 << 20
"""Limit of the reader, far beyond any tree."""

MAX_DEPTH = 64
"""Limit of nested loops."""

MAX_SIZE = 1 << 48
"""Limit of steps, widths and other numbers."""

_CLASS_KINDS: Mapping[type[Any], str] = {
    Loop: "loop", Partition: "partition", Compute: "compute", CacheWrite: "cache_write", CacheRead: "cache_read",
    RFactor: "rfactor", Pack: "pack", Inline: "inline",
}  # fmt: skip
"""The `kind` of classes of which an attribute may have several."""

_JSON_NAMES = {"kind": "loop_kind", "source": "copy"}
"""Attributes that have another name in JSON: `kind` names the class there, sources of prefetches were copies once."""


def encode(tree: TileTree) -> dict[str, Any]:
    """A tree as JSON values."""
    return {"format": FORMAT, "version": VERSION, "staging": _encode(tree.staging), "body": _encode(tree.body)}


def dumps(tree: TileTree) -> str:
    """A tree as JSON text of one line; equal for equal trees."""
    return json.dumps(encode(tree))


def _encode(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_encode(x) for x in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    stated = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
    kind = {"kind": _CLASS_KINDS[type(value)]} if type(value) in _CLASS_KINDS else {}
    return {**kind, **{_JSON_NAMES.get(name, name): _encode(x) for name, x in stated.items()}}


def loads(text: str | bytes, where: str = "tile tree") -> TileTree:
    """The tree in JSON text.

    Raises:
        TreeError: the text is no tree; lists every problem.
    """
    return decode(load_document(text, MAX_BYTES, TreeError, where), where)


def decode(data: object, where: str = "tile tree") -> TileTree:
    """The tree in JSON values.

    Raises:
        TreeError: the values are no tree; lists every problem.
    """
    reader = _Reader("tree")
    tree = reader.tree(data)
    if reader.problems or tree is None:
        raise TreeError(reader.problems, where=where)
    return tree


class _Reader(DocumentReader):
    """Reads trees and collects problems."""

    def tree(self, data: Any) -> TileTree | None:
        """The tree, or None and problems."""
        values = self.header(data, ("format", "version", "staging", "body"), VERSION)
        if values is None:
            return None
        types = get_type_hints(TileTree)
        return TileTree(*(self._value(types[x], values.get(x), x, 0) for x in ("body", "staging")))

    def _list(self, data: Any, where: str) -> list[Any]:
        if isinstance(data, list):
            return data
        self.report(where, f"expected a list, got {abbreviate(data)}")
        return []

    def _fields(self, cls: type[Any], data: Any, where: str, depth: int) -> Any:
        """An object of a class from the values of its attributes; None and problems where there is none."""
        if not isinstance(data, dict):
            self.report(where, f"expected an object, got {abbreviate(data)}")
            return None
        values: dict[str, Any] = {**data}
        types = get_type_hints(cls)
        attributes = {_JSON_NAMES.get(f.name, f.name): f for f in fields(cls)}
        for name in sorted(values.keys() - attributes.keys() - {"kind"}):
            self.report(where, f"there is no field {abbreviate(name)}; there are {', '.join(attributes)}")
        read: dict[str, Any] = {}
        count = len(self.problems)
        for name, f in attributes.items():
            if name in values:
                read[f.name] = self._value(types[f.name], values[name], f"{where}, {name}", depth)
            elif f.default is MISSING:
                self.report(where, f"the field `{name}` is missing")
        return cls(**read) if len(self.problems) == count else None

    def _value(self, declared: Any, data: Any, where: str, depth: int) -> Any:
        """A value of a declared type: a tuple, a union of classes, a class, an enumeration, a number or text."""
        if depth > MAX_DEPTH:
            self.report(where, f"more than {MAX_DEPTH} loops are nested")
            return None
        options = get_args(declared)
        if get_origin(declared) is tuple:
            rows = enumerate(self._list(data, where))
            return tuple(self._value(options[0], x, f"{where}, {k}", depth) for k, x in rows)
        if NoneType in options:
            return None if data is None else self._value(options[0], data, where, depth)
        if options:
            return self._object({_CLASS_KINDS[cls]: cls for cls in options}, data, where, depth + 1)
        if isinstance(declared, type) and is_dataclass(declared):
            return self._fields(declared, data, where, depth)
        return self._scalar(declared, data, where)

    def _object(self, kinds: Mapping[str, type[Any]], data: Any, where: str, depth: int) -> Any:
        """An object of one of several classes; None and problems where there is none."""
        kind: Any = data.get("kind") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind in kinds:
            return self._fields(kinds[kind], data, where, depth)
        self.report(where, f"expected an object whose `kind` is one of {', '.join(kinds)}, got {abbreviate(data)}")
        return None

    def _scalar(self, declared: type[Any], data: Any, where: str) -> Any:
        if issubclass(declared, StrEnum):
            if isinstance(data, str) and data in tuple(declared):
                return declared(data)
            self.report(where, f"expected one of {', '.join(declared)}, got {abbreviate(data)}")
        elif type(data) is not declared:
            names = {str: "text", bool: "true or false", int: "a whole number"}
            self.report(where, f"expected {names[declared]}, got {abbreviate(data)}")
        elif declared is int and not 0 <= data <= MAX_SIZE:
            self.report(where, f"expected a number within 0..{MAX_SIZE}, got {data}")
        return data
