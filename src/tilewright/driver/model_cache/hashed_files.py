"""The files of a model in memory, with hashes of their content.

A hash is that of the hashes of every 8 MiB, which threads compute at once.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.machine.alignment import aligned_empty
from tilewright.machine.map_in_threads import map_in_threads

Array = np.ndarray[Any, Any]

BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class HashedBytes:
    """Content with its hash.

    Attributes:
        content: bytes, at a multiple of 64 bytes where it was read from a file.
        digest: 64 hexadecimal digits.
    """

    content: Array
    digest: str


def hashed(content: Array) -> HashedBytes:
    """Content with its hash; an array of bytes."""
    return HashedBytes(content, tree_hash(block_hashes(content), content.size))


def tree_hash(blocks: list[str], size: int) -> str:
    """The hash of content by the hashes of its blocks, and its size in bytes."""
    return sha256(f"{size} {' '.join(blocks)}".encode()).hexdigest()


def block_hashes(content: Array) -> list[str]:
    """SHA-256 of every 8 MiB of an array of bytes, as hexadecimal digits."""
    starts = range(0, content.size, BLOCK_BYTES)
    return map_in_threads(lambda start: sha256(content[start : start + BLOCK_BYTES].data).hexdigest(), starts)


def read_blocks(handle: int, start: int = 0) -> tuple[Array, list[str]]:
    """The content of an open file from a position on, with the hashes of its blocks.

    Raises:
        OSError: it can't be read, or becomes shorter meanwhile.
        MemoryError: it does not fit into memory.
    """
    size = max(0, os.fstat(handle).st_size - start)
    content = aligned_empty((size,), np.uint8)

    def read(first: int) -> str:
        block = content[first : first + BLOCK_BYTES]
        done = 0
        while done < block.size:
            count = os.preadv(handle, [block.data[done:]], start + first + done)
            if not count:
                raise OSError("the file became shorter while it was read")
            done += count
        return sha256(block.data).hexdigest()

    return content, map_in_threads(read, range(0, size, BLOCK_BYTES))


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        source: its path, or its bytes.
        folders: real paths of those that its other files may be in; the first one is that which names are relative to.
    """

    source: Path | bytes
    folders: tuple[str, ...]

    @staticmethod
    def of(model: object) -> "ModelFiles | None":
        """The files of a model that is a path or bytes; None for another one."""
        if isinstance(model, bytes):
            return ModelFiles(model, ())
        if not isinstance(model, str | Path):
            return None
        path = Path(model)
        try:
            # the file may be a link into a store that also has its data, as download caches do
            folders = (os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path)))
        except (OSError, ValueError):
            return None
        return ModelFiles(path, tuple(dict.fromkeys(folders)))

    def read(self, location: str = "", max_bytes: int | None = None) -> HashedBytes | None:
        """A file by its location, "" for the model's own; None where it can't be read, or is larger than that."""
        if not location and isinstance(self.source, bytes):
            if max_bytes is not None and len(self.source) > max_bytes:
                return None
            return hashed(np.frombuffer(self.source, np.uint8))
        with self._opened(location) as handle:
            if handle is None:
                return None
            try:
                if max_bytes is not None and os.fstat(handle).st_size > max_bytes:
                    return None
                content, blocks = read_blocks(handle)
            except (OSError, MemoryError):
                return None
            return HashedBytes(content, tree_hash(blocks, content.size))

    @contextmanager
    def _opened(self, location: str) -> Generator[int | None]:
        path = self._path(location)
        handle = None if path is None else _open_regular(path)
        try:
            yield handle
        finally:
            if handle is not None:
                os.close(handle)

    def _path(self, location: str) -> str | None:
        """The real path of a file inside of the model's folders; None where it is none."""
        if not location:
            return None if isinstance(self.source, bytes) else str(self.source)
        if not self.folders or "\0" in location:
            return None
        target = os.path.realpath(os.path.join(self.folders[0], location))
        return target if any(os.path.commonpath((f, target)) == f != target for f in self.folders) else None


def _open_regular(path: str) -> int | None:
    try:
        # opening a named pipe and closing it would take it from its writer; it may be one just now: O_NONBLOCK
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None
