"""Checked access to untrusted JSON: every getter names the file and the offending field in its error.

Used by the manifest and by the weights' header. An artifact may be damaged or made by another program, so nothing read
from it is used unchecked.
"""

import json
from collections.abc import Callable
from typing import TypeVar, cast

from tilewright.errors import ArtifactError

Json = dict[str, object]
T = TypeVar("T")

DAMAGED = "the file is damaged; compile the model again"


def parse_object(data: bytes, where: str, what: str) -> Json:
    """Parses bytes as one JSON object.

    Raises:
        ArtifactError: not UTF-8, not JSON, nested too deeply, or not an object.
    """
    try:
        value: object = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ArtifactError(f"{what} is not JSON", where=where, hint=DAMAGED) from None
    return as_object(value, where, what)


def as_object(value: object, where: str, what: str) -> Json:
    """The value as an object with string keys."""
    if not isinstance(value, dict):
        raise _type_error(where, what, "an object", value)
    return cast(Json, value)


def field(obj: Json, name: str, where: str) -> object:
    """A required field."""
    if name not in obj:
        raise ArtifactError(f"manifest field '{name}' is missing", where=where, hint=DAMAGED)
    return obj[name]


def text(obj: Json, name: str, where: str) -> str:
    """A string field."""
    value = field(obj, name, where)
    if not isinstance(value, str):
        raise _type_error(where, f"manifest field '{name}'", "a string", value)
    return value


def integer(obj: Json, name: str, where: str, lo: int = 0) -> int:
    """An integer field of at least `lo`."""
    return as_integer(field(obj, name, where), where, f"manifest field '{name}'", lo)


def boolean(obj: Json, name: str, where: str) -> bool:
    """A field that is true or false."""
    value = field(obj, name, where)
    if not isinstance(value, bool):
        raise _type_error(where, f"manifest field '{name}'", "true or false", value)
    return value


def as_integer(value: object, where: str, what: str, lo: int = 0) -> int:
    """The value as an integer in lo..2^63-1."""
    if isinstance(value, bool) or not isinstance(value, int) or not lo <= value < 2**63:
        raise _type_error(where, what, f"an integer >= {lo}", value)
    return value


def as_text(value: object, where: str, what: str) -> str:
    """The value as a string."""
    if not isinstance(value, str):
        raise _type_error(where, what, "a string", value)
    return value


def array(obj: Json, name: str, where: str, item: Callable[[object, str, str], T]) -> tuple[T, ...]:
    """A list field whose items are converted and checked by `item(value, where, what)`."""
    return as_array(field(obj, name, where), where, f"manifest field '{name}'", item)


def as_array(value: object, where: str, what: str, item: Callable[[object, str, str], T]) -> tuple[T, ...]:
    """The value as a list whose items are converted and checked by `item(value, where, what)`."""
    if not isinstance(value, list):
        raise _type_error(where, what, "a list", value)
    values = cast(list[object], value)
    return tuple(item(entry, where, f"{what}[{index}]") for index, entry in enumerate(values))


def _type_error(where: str, what: str, expected: str, value: object) -> ArtifactError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return ArtifactError(f"{what}: expected {expected}, got {shown}", where=where, hint=DAMAGED)
