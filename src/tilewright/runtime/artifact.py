"""Artifact files: a compiled model as one file of header, manifest, object code and weights.

    offset 0    magic "TILEWRT\\0", format version (u32), zero (u32), manifest length (u64), file length (u64),
                SHA-256 of the manifest: 64 bytes, little-endian
    64          manifest, JSON
    aligned 64  object code, an archive of relocatable ELF files
    aligned 64  weights, a section in the safetensors format

The manifest holds length and SHA-256 of the code, and the SHA-256 of every 16 MiB of the weights. The hashes detect
damage, not malice: whoever can write the file can run code in the process that loads it (SECURITY.md).
"""

import hashlib
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.errors import ArtifactError, OptionError
from tilewright.machine.alignment import BUFFER_ALIGNMENT
from tilewright.runtime import schema
from tilewright.runtime.atomic_write import replace_file
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.manifest_json import dump_json, manifest_from_json, manifest_to_json
from tilewright.runtime.schema import DAMAGED, Json
from tilewright.runtime.weights import WeightSection, make_weight_section, read_weights

MAGIC = b"TILEWRT\0"
FORMAT_VERSION = 3
"""Since version 2 code is an archive of object files, and there are steps with blocks; since version 3 there are steps
that bind sizes, and native steps have failures. Older versions are read, too."""

_HEADER = struct.Struct("<8sIIQQ32s")
_HASH_BLOCK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """A compiled model as data: its manifest, its object code, and its weights by name (C-contiguous arrays)."""

    manifest: Manifest
    code: bytes
    weights: Mapping[str, np.ndarray]


def is_artifact(data: bytes) -> bool:
    """Whether the data begins with an artifact's magic."""
    return data[: len(MAGIC)] == MAGIC


def is_artifact_file(path: Path) -> bool:
    """Whether a file begins with an artifact's magic.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        return is_artifact(file.read(len(MAGIC)))


def describe_source(source: str | os.PathLike[str] | bytes) -> str:
    """An artifact's source in the wording of errors.

    Raises:
        OptionError: it is neither bytes nor a path.
    """
    return "artifact in memory" if isinstance(source, bytes) else f"file '{path_text(source)}'"


def path_text(path: object) -> str:
    """A path as text.

    Raises:
        OptionError: it is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"expected a path, got {type(path).__name__}", where="argument 'path'")
    return os.fsdecode(path)  # pyright: ignore[reportUnknownArgumentType]


def save_artifact(artifact: Artifact, path: str | os.PathLike[str]) -> int:
    """Writes an artifact, replacing an existing file atomically. Pipes and devices are written to.

    Returns:
        The number of bytes written.

    Raises:
        ArtifactError: the manifest is inconsistent, a weight cannot be stored, or the file cannot be written.
        OptionError: the argument is not a path.
    """
    where = f"file '{path_text(path)}'"
    artifact.manifest.check(where)
    missing = sorted(artifact.manifest.weight_names() - artifact.weights.keys())
    if missing:
        raise ArtifactError(f"weight '{missing[0]}' is missing", where=where)
    section = make_weight_section(artifact.weights, where)
    try:
        return replace_file(Path(os.path.realpath(path)), _file_pieces(artifact, section))
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtifactError(f"can't be written: {reason}", where=where, hint="choose another output path") from error


def _file_pieces(artifact: Artifact, section: WeightSection) -> Iterator[bytes | memoryview]:
    """The content of the file, in pieces."""
    manifest = _manifest_bytes(artifact, section)
    data_start = _align_up(_HEADER.size + len(manifest))
    weights_start = data_start + _align_up(len(artifact.code))
    length = weights_start + section.length
    digest = hashlib.sha256(manifest).digest()
    yield _HEADER.pack(MAGIC, FORMAT_VERSION, 0, len(manifest), length, digest)
    yield manifest
    yield bytes(data_start - _HEADER.size - len(manifest))
    yield artifact.code
    yield bytes(weights_start - data_start - len(artifact.code))
    yield from section.pieces()


def _manifest_bytes(artifact: Artifact, section: WeightSection) -> bytes:
    obj = manifest_to_json(artifact.manifest)
    obj["code"] = {"length": len(artifact.code), "sha256": hashlib.sha256(artifact.code).hexdigest()}
    obj["weights"] = {"length": section.length, "sha256": _section_hashes(section)}
    return dump_json(obj)


def _section_hashes(section: WeightSection) -> list[str]:
    """SHA-256 of every 16 MiB of a section that is not in memory as a whole."""
    digests: list[str] = []
    current, remaining = hashlib.sha256(), _HASH_BLOCK_BYTES
    for piece in section.pieces():
        rest = memoryview(piece)
        while len(rest):
            block, rest = rest[:remaining], rest[remaining:]
            current.update(block)
            remaining -= len(block)
            if not remaining:
                digests.append(current.hexdigest())
                current, remaining = hashlib.sha256(), _HASH_BLOCK_BYTES
    return digests if remaining == _HASH_BLOCK_BYTES else [*digests, current.hexdigest()]


def load_artifact(source: str | os.PathLike[str] | bytes, verify: bool = True) -> Artifact:
    """Reads and checks an artifact. Weights are memory-mapped from the file.

    Args:
        source: the file, or its content.
        verify: whether to compare the weights with their hashes (under 0.1 s per 100 MB); all else is always compared.

    Raises:
        ArtifactError: not an artifact, truncated, altered, of a newer format, or unreadable.
    """
    where = describe_source(source)
    data = memoryview(source) if isinstance(source, bytes) else _map_file(source, where)
    _check_size(len(data), where)
    manifest_length, data_start = _check_header(data, where)
    manifest_json = schema.parse_object(
        bytes(data[_HEADER.size : _HEADER.size + manifest_length]), where, "the manifest"
    )
    code_length, code_hash, weights_length, weights_hashes = _parse_sections(manifest_json, where)
    weights_start = data_start + _align_up(code_length)
    if weights_start + weights_length != len(data):
        mismatch = f"expected {weights_start + weights_length} bytes, got {len(data)}"
        raise ArtifactError(f"the sections do not fill the file: {mismatch}", where=where, hint=DAMAGED)
    code = bytes(data[data_start : data_start + code_length])
    _check_hash(code, code_hash, where, "the code")
    _check_padding(data, _HEADER.size + manifest_length, data_start, where)
    _check_padding(data, data_start + code_length, weights_start, where)
    section = data[weights_start:]
    if verify:
        _check_weights(section, weights_hashes, where)
    artifact = Artifact(manifest_from_json(manifest_json, where), code, read_weights(section, where))
    missing = sorted(artifact.manifest.weight_names() - artifact.weights.keys())
    if missing:
        raise ArtifactError(f"weight '{missing[0]}' is missing", where=where, hint=DAMAGED)
    return artifact


def _map_file(path: str | os.PathLike[str], where: str) -> memoryview:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError("is not a regular file", where=where)
            _check_size(status.st_size, where)  # an empty file cannot be mapped
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtifactError(f"can't be read: {reason}", where=where) from error


def _check_size(size: int, where: str) -> None:
    if size < _HEADER.size:
        what = f"expected an artifact of at least {_HEADER.size} bytes, got {size}"
        raise ArtifactError(what, where=where, hint=DAMAGED)


def _check_header(data: memoryview, where: str) -> tuple[int, int]:
    """Checks the fixed header and the manifest's hash; returns the manifest's length and the start of the sections."""
    magic, version, zero, manifest_length, file_length, digest = _HEADER.unpack(data[: _HEADER.size])
    if magic != MAGIC:
        hint = "give a file written by `tilewright compile`; ONNX models are for `tilewright.compile`"
        raise ArtifactError("is not a tilewright artifact", where=where, hint=hint)
    if version > FORMAT_VERSION:
        raise ArtifactError(
            f"expected format {FORMAT_VERSION} or older, got format {version}",
            where=where,
            hint="update tilewright, or compile the model with this version",
        )
    if version < 1 or zero != 0:
        raise ArtifactError("the header is altered", where=where, hint=DAMAGED)
    if file_length != len(data):
        what = "truncated" if len(data) < file_length else "longer than it should be"
        raise ArtifactError(f"is {what}: expected {file_length} bytes, got {len(data)}", where=where, hint=DAMAGED)
    data_start = _align_up(_HEADER.size + manifest_length)
    if data_start > len(data):
        raise ArtifactError("the manifest lies outside the file", where=where, hint=DAMAGED)
    manifest = data[_HEADER.size : _HEADER.size + manifest_length]
    if hashlib.sha256(manifest).digest() != digest:
        raise ArtifactError("the manifest is altered: its SHA-256 differs", where=where, hint=DAMAGED)
    return manifest_length, data_start


def _parse_sections(obj: Json, where: str) -> tuple[int, str, int, tuple[str, ...]]:
    code = schema.as_object(schema.field(obj, "code", where), where, "manifest field 'code'")
    weights = schema.as_object(schema.field(obj, "weights", where), where, "manifest field 'weights'")
    return (
        schema.integer(code, "length", where),
        schema.text(code, "sha256", where),
        schema.integer(weights, "length", where),
        schema.array(weights, "sha256", where, schema.as_text),
    )


def _check_hash(data: bytes | memoryview, expected: str, where: str, what: str) -> None:
    if hashlib.sha256(data).hexdigest() != expected:
        raise ArtifactError(f"{what}: altered, the SHA-256 differs", where=where, hint=DAMAGED)


def _check_padding(data: memoryview, start: int, end: int, where: str) -> None:
    if any(data[start:end]):
        raise ArtifactError("bytes between the sections are altered", where=where, hint=DAMAGED)


def _check_weights(section: memoryview, hashes: tuple[str, ...], where: str) -> None:
    starts = range(0, len(section), _HASH_BLOCK_BYTES)
    if len(starts) != len(hashes):
        what = f"expected {len(starts)} hashes of the weights, got {len(hashes)}"
        raise ArtifactError(what, where=where, hint=DAMAGED)

    def check(item: tuple[int, str]) -> None:
        _check_hash(section[item[0] : item[0] + _HASH_BLOCK_BYTES], item[1], where, "the weights")

    # hashlib releases the GIL, so a few threads hash at a few times the speed
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(check, zip(starts, hashes, strict=True)))


def _align_up(size: int) -> int:
    return -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
