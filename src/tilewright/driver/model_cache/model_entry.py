"""Files of kept compilations.

65 bytes    SHA-256 of the head, as hexadecimal digits, a newline
17 bytes    length of the head, 16 hexadecimal digits, a newline
head        JSON: the key, the manifest, where every weight comes from, the model's other files, the state of the
            records, the body's size in bytes, and the SHA-256 of every 8 MiB of it
aligned 64  body: the code, then the weights that are no views of the model's bytes, each aligned to 64 bytes
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from tilewright.driver.model_cache.hashed_files import block_hashes, read_blocks
from tilewright.driver.model_cache.record_state import RecordState
from tilewright.driver.model_cache.weight_sources import FileView, weight_of
from tilewright.errors import ArtifactError
from tilewright.machine.alignment import BUFFER_ALIGNMENT, aligned_empty
from tilewright.machine.map_in_threads import map_in_threads
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.manifest_json import manifest_from_json, manifest_to_json
from tilewright.runtime.weights import numpy_dtype

Array = np.ndarray[Any, Any]

_PREFIX_BYTES = 65 + 17
_MAX_HEAD_BYTES = 1 << 28
_ERROR_LOCATION = "the cache of models"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with data of a model: its path relative to the model's folder, its size in bytes, and its hash."""

    location: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class EntryHead:
    """What an entry says before its body.

    Attributes:
        files: with data of the model, other than the model's own.
        records: state of the store of records.
        fields: all of the head.
        body_start: where the body begins in the file.
    """

    files: tuple[DataFile, ...]
    records: RecordState | None
    fields: Mapping[str, Any]
    body_start: int


def inline_bytes(artifact: Artifact, views: Mapping[str, FileView]) -> int:
    """Bytes of the weights that an entry would hold."""
    return sum(w.nbytes for name, w in artifact.weights.items() if name not in views)


def entry_pieces(
    key: str,
    artifact: Artifact,
    views: Mapping[str, FileView],
    files: Sequence[DataFile],
    records: RecordState | None,
) -> list[bytes | memoryview]:
    """The content of an entry's file.

    Args:
        key: of the compilation.
        artifact: of the compilation.
        views: where weights lie in the model's files, by name; the others are part of the entry.
        files: of the model, besides its own.
        records: state of the store of records.

    Raises:
        MemoryError: there is no memory for it beside the artifact.
    """
    weights: list[list[Any]] = []
    offset = _aligned(len(artifact.code))
    inline: list[tuple[int, Array]] = []
    for name, array in artifact.weights.items():
        view = views.get(name)
        if view is None:
            inline.append((offset, array))
            source: list[Any] = [offset]
            offset += _aligned(array.nbytes)
        else:
            source = [view.location, view.offset, list(view.strides)]
        weights.append([name, array.dtype.name, list(array.shape), source])
    body = aligned_empty((offset,), np.uint8)
    body.fill(0)
    body[: len(artifact.code)] = np.frombuffer(artifact.code, np.uint8)
    for start, array in inline:
        body[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    head = {
        "key": key,
        "manifest": manifest_to_json(artifact.manifest),
        "code": len(artifact.code),
        "weights": weights,
        "files": [[f.location, f.size, f.digest] for f in files],
        "records": None if records is None else [list(records.measured), list(records.newest)],
        "size": body.size,
        "body": block_hashes(body),
    }
    text = json.dumps(head).encode()
    padding = bytes(-(_PREFIX_BYTES + len(text)) % BUFFER_ALIGNMENT)
    prefix = f"{sha256(text).hexdigest()}\n{len(text):016x}\n".encode()
    return [prefix, text, padding, body.data]


def _aligned(size: int) -> int:
    return -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


def read_head(handle: int, key: str) -> EntryHead | None:
    """The head of an entry's file; None where it is damaged, or of another key."""
    try:
        prefix = os.pread(handle, _PREFIX_BYTES, 0)
        digest, length_text = prefix[:64], prefix[65:81]
        length = int(length_text, 16)
        if len(prefix) != _PREFIX_BYTES or length > _MAX_HEAD_BYTES:
            return None
        text = os.pread(handle, length, _PREFIX_BYTES)
        if sha256(text).hexdigest().encode() != digest:
            return None
        fields: dict[str, Any] = json.loads(text)
        files = tuple(DataFile(location, size, content) for location, size, content in fields["files"])
        start = _aligned(_PREFIX_BYTES + length)
        if fields["key"] != key or os.fstat(handle).st_size != start + fields["size"]:
            return None
        return EntryHead(files, _records_of(fields["records"]), fields, start)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        return None


def _records_of(field: Any) -> RecordState | None:
    if field is None:
        return None
    (count, digests), (number, digest) = field
    return RecordState((count, digests), (number, digest))


def read_artifact(handle: int, head: EntryHead, content_of: Callable[[str], Array]) -> Artifact | None:
    """The artifact of an entry; None where the entry is damaged.

    Args:
        handle: of its file.
        head: of it.
        content_of: the bytes of a file of the model by its location, "" for the model's own.
    """
    try:
        body, hashes = read_blocks(handle, head.body_start)
        if hashes != head.fields["body"]:
            return None
        code = body[: head.fields["code"]].tobytes()
        weights = dict(map_in_threads(lambda w: _entry_weight(w, body, content_of), head.fields["weights"]))
        return Artifact(manifest_from_json(head.fields["manifest"], _ERROR_LOCATION), code, weights)
    except (OSError, ValueError, KeyError, TypeError, IndexError, ArtifactError, MemoryError):
        return None


def _entry_weight(described: Sequence[Any], body: Array, content_of: Callable[[str], Array]) -> tuple[str, Array]:
    name, type_name, dims, source = described
    dtype, shape = numpy_dtype(type_name), tuple(dims)
    if len(source) == 3:
        location, offset, strides = source
        return name, weight_of(FileView(location, offset, tuple(strides)), dtype, shape, content_of(location))
    return name, np.ndarray(shape, dtype, body, source[0])
