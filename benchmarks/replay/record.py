"""What one case gave: an error, or every level of the compiled model that a replay compares."""

import gzip
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.replay.normalise import llvm_lines, trace_lines

PARTS = ("error", "kernels", "llvm", "manifest", "weights", "object")
"""What is compared, in this order."""


@dataclass(frozen=True)
class Kernel:
    """A function: its name, the optimizer that answered, and its trace."""

    name: str
    optimizer: str
    steps: list[str]


@dataclass(frozen=True)
class Record:
    """A compiled model with the names that it had.

    Attributes:
        error: the class of the error that came instead; "" where it compiled.
        message: its text, which is shown but not compared.
        kernels: its functions, in order.
        llvm: the text of its module.
        manifest: lines of the manifest, neutral to names.
        weights: type, shape and hash of every weight, in the order of use.
        object: lines about the sections of the object code, neutral to names.
        seconds: that it took.
    """

    error: str = ""
    message: str = ""
    kernels: tuple[Kernel, ...] = ()
    llvm: str = ""
    manifest: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    object: tuple[str, ...] = ()
    seconds: float = 0.0

    def digests(self) -> dict[str, str]:
        """A hash of every part without its names."""
        kernels = [[k.optimizer, *trace_lines(k.steps)] for k in self.kernels]
        content = {
            "error": self.error, "kernels": kernels, "llvm": llvm_lines(self.llvm), "manifest": self.manifest,
            "weights": self.weights, "object": self.object,
        }  # fmt: skip
        return {part: digest(content[part]) for part in PARTS}


def digest(value: object) -> str:
    """A hash of plain data."""
    return sha256(json.dumps(value).encode()).hexdigest()


def write(record: Record, path: Path) -> None:
    """Keeps a record, compressed, and in a file beside it the hashes of its parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(asdict(record)).encode()
    _replace(path, gzip.compress(content, compresslevel=3))
    _replace(path.with_suffix(".json"), json.dumps(record.digests()).encode())


def _replace(path: Path, content: bytes) -> None:
    """Writes a file that others may read or write at the same time."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def read(path: Path) -> Record:
    """A record that was kept."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        data = json.load(file)
    data["kernels"] = [Kernel(**k) for k in data["kernels"]]
    found: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Record(**found)


def read_digests(path: Path) -> dict[str, str] | None:
    """The hashes of a record's parts; None where the case was not run."""
    place = path.with_suffix(".json")
    if not place.exists():
        return None
    return dict(json.loads(place.read_text()))
