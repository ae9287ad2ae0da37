"""Model sources: reading and parsing of a path, bytes or a ModelProto."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tilewright.errors import Defect, ModelError, ModelFileError, OptionError
from tilewright.frontend.onnx.read_file import ReadFile

MAX_NESTING = 24
"""Levels of nested sub-graphs. Protobuf parses about 30, and the models of fallback steps must be parsed again."""

_LFS_PREFIX = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed model.

    Attributes:
        model: must not be changed unless it is `owned`.
        where: its name in errors ("file 'a.onnx'").
        folders: external data must be in one of them; empty for a model without a place.
        owned: whether the model was parsed here, rather than passed by the caller.
    """

    model: onnx.ModelProto
    where: str
    folders: tuple[str, ...]
    owned: bool


def read_model(model: "str | os.PathLike[str] | bytes | onnx.ModelProto | ReadFile", folder: str | None) -> Source:
    """Reads and parses a model, or parses one that was read.

    Raises:
        ModelFileError: the file is missing, cannot be read, is truncated or is not an ONNX model.
        OptionError: `model` has another type.
    """
    folders = () if folder is None else (os.path.realpath(folder),)
    if isinstance(model, onnx.ModelProto):
        return Source(_check_model(model, "model", 0), "model", folders, owned=False)
    if isinstance(model, bytes | bytearray | memoryview):
        return Source(_parse(bytes(model), "model"), "model", folders, owned=True)
    if isinstance(model, ReadFile):
        where = f"file '{model.path}'"
        content = b"" if model.content is None else model.content.data
        return Source(_parse(content, where), where, folders or model.folders, owned=True)
    if not isinstance(model, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are untyped
        raise OptionError(
            f"expected a path, bytes or a ModelProto, got {type(model).__name__}", where="argument 'model'"
        )
    path = Path(model)
    where = f"file '{path}'"
    content = _read_file(path, where)
    # The file may be a link into a store that also has its external data, as download caches do.
    parents = dict.fromkeys((os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))))
    return Source(_parse(content, where), where, folders or tuple(parents), owned=True)


def _read_file(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise ModelFileError("is a folder", where=where, hint="name the .onnx file inside it") from error
    except FileNotFoundError as error:
        raise ModelFileError("does not exist", where=where) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"can't be read ({reason})", where=where) from error


def _parse(content: bytes | memoryview, where: str) -> onnx.ModelProto:
    if bytes(content[: len(_LFS_PREFIX)]) == _LFS_PREFIX:
        raise ModelFileError("is a Git LFS pointer, not the model itself", where=where, hint="run `git lfs pull`")
    if not content:
        raise ModelFileError("is empty", where=where)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)  # pyright: ignore[reportArgumentType] - the stubs lack memoryview
    except DecodeError as error:
        if "depth" in str(error).lower():
            what = "nests deeper than protobuf reads (100 messages, about 30 sub-graphs inside each other)"
            raise ModelFileError(what, where=where) from error
        raise _truncation_error(where, len(content)) from error
    return _check_model(model, where, len(content))


def _check_model(model: onnx.ModelProto, where: str, size: int) -> onnx.ModelProto:
    _check_nesting(model, where)
    # A file truncated between two fields still parses, but lacks mandatory fields.
    if not model.HasField("graph") or not model.opset_import or not _has_valid_text(model):
        raise _truncation_error(where, size)
    return model


def _check_nesting(model: onnx.ModelProto, where: str) -> None:
    """Raises ModelError where sub-graphs nest too deep: later walks over them are recursive."""
    level: list[tuple[str, onnx.GraphProto]] = []
    nodes: Iterable[onnx.NodeProto] = (*model.graph.node, *(n for f in model.functions for n in f.node))
    for _ in range(MAX_NESTING):
        level = [(n.name or n.op_type, g) for n in nodes for a in n.attribute for g in _graphs(a)]
        if not level:
            return
        nodes = [n for _, g in level for n in g.node]
    what = f"expected sub-graphs in at most {MAX_NESTING - 1} levels, got more"
    raise ModelError([Defect("nested", f"node {level[0][0]}", what)], where=where)


def _graphs(attribute: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    return (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs)


def _has_valid_text(message: Message) -> bool:
    """Whether all text fields are UTF-8; protobuf returns others as bytes, where all code expects str."""
    for field, value in message.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        for part in (value,) if isinstance(value, str | bytes | Message) else value:
            if isinstance(part, bytes) or (isinstance(part, Message) and not _has_valid_text(part)):
                return False
    return True


def _truncation_error(where: str, size: int) -> ModelFileError:
    count = f" ({size} bytes)" if size else ""
    either = "neither a compiled model nor" if where.rstrip("'").endswith(".tw") else "not"
    what = f"is {either} an ONNX model or is truncated{count}"
    return ModelFileError(what, where=where, hint="compare its size with the original's")
