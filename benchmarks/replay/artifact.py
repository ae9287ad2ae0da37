"""An artifact's file taken apart as its format says, without the package: manifest, object code, weights."""

import json
import struct
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("<8sIIQQ32s")
_ALIGNMENT = 64


@dataclass(frozen=True)
class Parts:
    """The parts of an artifact; weights are lines of type, shape and hash, by name."""

    manifest: dict[str, Any]
    code: bytes
    weights: dict[str, str]


def read(path: Path) -> Parts:
    """The parts of a file written by `tilewright compile`."""
    data = path.read_bytes()
    _, _, _, length, _, _ = _HEADER.unpack_from(data)
    manifest = json.loads(data[_HEADER.size : _HEADER.size + length])
    start = _aligned(_HEADER.size + length)
    size = manifest["code"]["length"]
    return Parts(manifest, data[start : start + size], _weights(data[start + _aligned(size) :]))


def _weights(section: bytes) -> dict[str, str]:
    """A section in the safetensors format."""
    if not section:
        return {}
    length = int.from_bytes(section[:8], "little")
    header = json.loads(section[8 : 8 + length])
    header.pop("__metadata__", None)
    found: dict[str, str] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        digest = sha256(section[8 + length + begin : 8 + length + end]).hexdigest()
        found[name] = f"{entry['dtype']} {entry['shape']} {digest}"
    return found


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
