"""Artifact files that are taken apart, altered and put together again."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

from tilewright.runtime.artifact import FORMAT_VERSION, MAGIC
from tilewright.runtime.manifest_json import dump_json
from tilewright.runtime.schema import Json

HEADER = struct.Struct("<8sIIQQ32s")


def sections(data: bytes) -> tuple[int, int, int]:
    """Start of manifest, code and weights."""
    length = HEADER.unpack(data[:64])[3]
    code = -(-(64 + length) // 64) * 64
    size = json.loads(data[64 : 64 + length])["code"]["length"]
    return 64, code, code + -(-size // 64) * 64


def rewrite(file: Path, change: Callable[[Json], None], section: bytes | None = None) -> None:
    """Changes the manifest (and the weights) and recomputes all hashes and lengths."""
    data = file.read_bytes()
    manifest, code, weights = sections(data)
    obj = json.loads(data[manifest : manifest + HEADER.unpack(data[:64])[3]])
    section = data[weights:] if section is None else section
    obj["weights"] = {"length": len(section), "sha256": [hashlib.sha256(section).hexdigest()] if section else []}
    change(obj)
    text = dump_json(obj)
    body = text + bytes(-(64 + len(text)) % 64) + data[code:weights] + section
    head = HEADER.pack(MAGIC, FORMAT_VERSION, 0, len(text), 64 + len(body), hashlib.sha256(text).digest())
    file.write_bytes(head + body)


def assign(path: str, value: object) -> Callable[[Json], None]:
    """Assignment to a path such as "steps/0/weights"."""

    def change(obj: Json) -> None:
        *folders, last = path.split("/")
        place: object = obj
        for name in folders:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if value is KeyError:
            del place[last]
        else:
            place[int(last) if isinstance(place, list) else last] = value

    return change
