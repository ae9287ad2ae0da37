"""Where the tensors of an ONNX file have their bytes, read off the file's encoding alone.

A protobuf message is a sequence of tags with values; nested messages and byte strings have their length in front, so
that those that hold no tensor are passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

_MODEL, _GRAPH, _FUNCTION, _NODE, _ATTRIBUTE, _SPARSE, _TENSOR = range(7)

_CHILDREN = {
    _MODEL: {7: _GRAPH, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
}
"""Fields of messages that hold tensors, by number (onnx.proto)."""

_NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 8, 9, 13, 14
_DEFAULT, _EXTERNAL = 0, 1

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 200

_MAX_FIELDS = 1 << 20
"""Fields of a file, which take about half a second; a model with more of them is not kept."""


class PositionError(Exception):
    """The bytes are no ONNX file of this form."""


@dataclass(frozen=True, slots=True)
class TensorPosition:
    """The bytes of a tensor.

    Attributes:
        name: of the tensor.
        is_initializer: whether the main graph has it as an initializer.
        offset: where its bytes begin in the model's file, or in the file of its data.
        length: how many; None for as many as its type and shape need.
        location: the file of its data, relative to the model's folder; "" for the model's file.
    """

    name: str
    is_initializer: bool
    offset: int
    length: int | None
    location: str = ""


def tensor_positions(data: memoryview) -> Iterator[TensorPosition]:
    """The tensors of a model whose bytes lie in its file as they are, or in another one.

    Args:
        data: the content of an ONNX file.

    Raises:
        PositionError: it is none.
    """
    yield from _walk(_File(data), 0, len(data), _MODEL, 0, depth=0)


def _walk(file: "_File", start: int, end: int, kind: int, parent: int, depth: int) -> Iterator[TensorPosition]:
    if depth > _MAX_DEPTH:
        raise PositionError("it nests too deep")
    if kind == _TENSOR:
        yield from _tensor(file, start, end, is_initializer=parent == _GRAPH and depth == 2)
        return
    for number, first, last in _fields(file, start, end):
        child = _CHILDREN[kind].get(number)
        if child is not None and first is not None:
            yield from _walk(file, first, last, child, kind, depth + 1)


@dataclass(slots=True)
class _File:
    """The content of a file, and how many fields may still be read of it."""

    data: memoryview
    fields_left: int = _MAX_FIELDS


@dataclass(slots=True)
class _Fields:
    """What a tensor's message has said so far."""

    name: str = ""
    raw: tuple[int, int] | None = None
    place: int = _DEFAULT
    external: dict[str, str] = field(default_factory=dict[str, str])


def _tensor(file: _File, start: int, end: int, is_initializer: bool) -> Iterator[TensorPosition]:
    found = _Fields()
    for number, first, last in _fields(file, start, end):
        if number == _DATA_LOCATION and first is None:
            found.place = last
        if first is None:
            continue
        if number == _NAME:
            found.name = _text(file.data, first, last)
        elif number == _RAW_DATA:
            found.raw = first, last - first
        elif number == _EXTERNAL_DATA:
            entry = {n: _text(file.data, a, b) for n, a, b in _fields(file, first, last) if a is not None}
            found.external[entry.get(1, "")] = entry.get(2, "")
    if found.place not in (_DEFAULT, _EXTERNAL) or (found.place == _EXTERNAL and "location" not in found.external):
        # protobuf would merge it with other parts of the tensor, or drop it
        raise PositionError("a tensor has its data nowhere")
    if found.place == _EXTERNAL:
        offset, length = (found.external.get(n, "") for n in ("offset", "length"))
        if not all(t == "" or (t.isascii() and t.isdigit() and len(t) <= 18) for t in (offset, length)):
            raise PositionError("a position is no number")
        number = int(length) if length else None
        yield TensorPosition(found.name, is_initializer, int(offset or 0), number, found.external["location"])
    elif found.raw is not None:
        yield TensorPosition(found.name, is_initializer, *found.raw)


def _fields(file: _File, start: int, end: int) -> Iterator[tuple[int, int | None, int]]:
    """Number, begin and end of the fields of a message; those without a length have the begin None, and integers their
    value in place of the end."""
    data, position = file.data, start
    while position < end:
        file.fields_left -= 1
        if file.fields_left < 0:
            raise PositionError("it has too many fields")
        tag, position = _varint(data, position, end)
        number, form = tag >> 3, tag & 7
        if not number:
            raise PositionError("a field has no number")
        first = value = None
        if form == _VARINT:
            value, position = _varint(data, position, end)
        elif form == _BYTES:
            length, first = _varint(data, position, end)
            position = first + length
        elif form in (_FIXED64, _FIXED32):
            position += 8 if form == _FIXED64 else 4
        else:
            raise PositionError("a field has an unknown form")
        if position > end:
            raise PositionError("a field is cut off")
        yield number, first, position if value is None else value


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise PositionError("a number is cut off")


def _text(data: memoryview, first: int, last: int) -> str:
    try:
        return bytes(data[first:last]).decode()
    except UnicodeDecodeError as error:
        raise PositionError("a text is no UTF-8") from error
