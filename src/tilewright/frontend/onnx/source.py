"""Reading a model: from a path, bytes or a ModelProto to a parsed ModelProto and the folder of its external data."""

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tilewright.errors import ModelFileError, OptionError

_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed model.

    Attributes:
        model: not to be changed.
        where: what errors call it ("file 'a.onnx'").
        folders: external data must lie in one of them; empty for a model that has no place.
    """

    model: onnx.ModelProto
    where: str
    folders: tuple[str, ...]


def read(model: "str | os.PathLike[str] | bytes | onnx.ModelProto", folder: str | None) -> Source:
    """Reads and parses a model.

    Raises:
        ModelFileError: the file is missing, can't be read, is truncated or is not an ONNX model.
        OptionError: `model` has another type.
    """
    folders = () if folder is None else (os.path.realpath(folder),)
    if isinstance(model, onnx.ModelProto):
        return Source(_checked(model, "model", 0), "model", folders)
    if isinstance(model, bytes | bytearray | memoryview):
        return Source(_parsed(bytes(model), "model"), "model", folders)
    if not isinstance(model, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are untyped
        raise OptionError(f"expected a path, bytes or a ModelProto, got {type(model).__name__}", where="argument model")
    path = Path(model)
    where = f"file '{path}'"
    content = _content(path, where)
    # The file may be a link into a store that holds its external data too, as caches of downloads are laid out.
    beside = dict.fromkeys((os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))))
    return Source(_parsed(content, where), where, folders or tuple(beside))


def _content(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise ModelFileError("is a folder", where=where, hint="name the .onnx file inside it") from error
    except FileNotFoundError as error:
        raise ModelFileError("does not exist", where=where) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"can't be read ({reason})", where=where) from error


def _parsed(content: bytes, where: str) -> onnx.ModelProto:
    if content.startswith(_LFS):
        raise ModelFileError("is a Git LFS pointer, not the model itself", where=where, hint="run `git lfs pull`")
    if not content:
        raise ModelFileError("is empty", where=where)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise _broken(where, len(content)) from error
    return _checked(model, where, len(content))


def _checked(model: onnx.ModelProto, where: str, size: int) -> onnx.ModelProto:
    # A file cut between two fields still parses; what an ONNX model must have is missing then.
    if not model.HasField("graph") or not model.opset_import or not _is_text(model):
        raise _broken(where, size)
    return model


def _is_text(message: Message) -> bool:
    """Whether all text fields are UTF-8; protobuf gives those that are not as bytes, where everyone expects str."""
    for field, value in message.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        for part in (value,) if isinstance(value, str | bytes | Message) else value:
            if isinstance(part, bytes) or (isinstance(part, Message) and not _is_text(part)):
                return False
    return True


def _broken(where: str, size: int) -> ModelFileError:
    count = f" ({size} bytes)" if size else ""
    either = "neither a compiled model nor" if where.rstrip("'").endswith(".tw") else "not"
    what = f"is {either} an ONNX model or is truncated{count}"
    return ModelFileError(what, where=where, hint="compare its size with the original's")
