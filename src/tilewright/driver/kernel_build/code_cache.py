"""Machine code of earlier compilations in the user's cache folder.

    <folder>/code/<two digits>/<key>     64 digits of the content's SHA-256, a newline, the content: JSON

A key is everything that decides the content (`measure.machine_code_key`), so entries are never out of date. Whoever can
write an entry can run code in the processes that read it, so folders and entries that others may write are not read,
and new ones are private to the user. An entry that is damaged counts as missing and is written again. Writers replace
files atomically, so any number of processes may use the cache at once, and killed ones leave no broken entry. Where it
cannot be written, nothing is kept.
"""

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilewright.errors import OptionError
from tilewright.machine.calibration_store import cache_folder
from tilewright.runtime.atomic_write import replace_file

VARIABLE = "TILEWRIGHT_CACHE"
"""Environment variable that turns the cache off ("off") or on ("on", the default)."""

MAX_BYTES = 1 << 30
"""Size that the cache is pruned to after a compilation that has added to it; a kernel takes 10 to 200 KB."""

_USE_SECONDS = 3600.0
"""Uses are recorded this exactly: a hit touches its file, unless that has been touched just before."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a cache holds.

    Attributes:
        entries: number of files.
        bytes: their size.
    """

    entries: int
    bytes: int


@dataclass(slots=True)
class CodeCache:
    """A cache in a folder, which need not exist.

    Attributes:
        folder: of the entries.
        has_added: whether an entry has been written.
    """

    folder: Path
    has_added: bool = False

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The content of an entry; None where there is none that can be trusted."""
        path = self._path(key)
        try:
            if not (is_private(os.stat(self.folder)) and is_private(os.stat(path.parent))):
                return None
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(handle, "rb") as file:
                status = os.fstat(handle)
                if not (is_private(status) and stat.S_ISREG(status.st_mode)):
                    return None
                digest, _, content = file.read().partition(b"\n")
                if digest != sha256(content).hexdigest().encode():
                    return None
                if time.time() - status.st_mtime > _USE_SECONDS:
                    with contextlib.suppress(OSError):
                        os.utime(path)
            value = json.loads(content)
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Keeps JSON values where that is possible."""
        path, content = self._path(key), json.dumps(value).encode()
        with contextlib.suppress(OSError):
            for folder in (self.folder, path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not is_private(os.stat(folder)):
                    return
            _remove_untrusted(path)
            replace_file(path, [sha256(content).hexdigest().encode() + b"\n", content], mode=0o600, durable=False)
            self.has_added = True

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def usage(self) -> Usage:
        """How much it holds."""
        sizes = [size for _, size, _ in self._entries()]
        return Usage(len(sizes), sum(sizes))

    def clear(self) -> Usage:
        """Removes every entry; returns what was removed."""
        return self.prune(0)

    def prune(self, max_bytes: int = MAX_BYTES) -> Usage:
        """Removes the entries that have not been used for longest until it has at most so many bytes; returns what was
        removed."""
        entries = sorted(self._entries())
        surplus, removed, freed = sum(size for _, size, _ in entries) - max_bytes, 0, 0
        for _, size, path in entries:
            if freed >= surplus and max_bytes:
                break
            with contextlib.suppress(OSError):  # another process has removed it
                path.unlink()
                removed, freed = removed + 1, freed + size
        return Usage(removed, freed)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Time of the last use, size and path of every file, unfinished ones of killed processes included."""
        with contextlib.suppress(OSError):
            for folder in list(os.scandir(self.folder)):
                if not folder.is_dir(follow_symlinks=False):
                    continue
                with contextlib.suppress(OSError):
                    for entry in list(os.scandir(folder.path)):
                        with contextlib.suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            yield status.st_mtime, status.st_size, Path(entry.path)


def is_private(status: os.stat_result) -> bool:
    """Whether only this user and the system's administrator can write a file."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _remove_untrusted(path: Path) -> None:
    """Removes what is in the place of an entry and is none, so that the new entry is private."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if not (is_private(status) and stat.S_ISREG(status.st_mode)):
            path.unlink()


def code_cache(argument: bool | None = None, environ: Mapping[str, str] | None = None) -> CodeCache | None:
    """The user's cache; None where it is turned off.

    Args:
        argument: whether to use it; None asks the environment.
        environ: the environment, by default this process's.

    Raises:
        OptionError: TILEWRIGHT_CACHE has another value than "on" and "off".
    """
    environ = os.environ if environ is None else environ
    setting = environ.get(VARIABLE, "") or "on"
    if setting not in ("on", "off"):
        raise OptionError(f"expected on or off, got {setting!r}", where=VARIABLE)
    is_on = setting == "on" if argument is None else argument
    return CodeCache(cache_folder(environ) / "code") if is_on else None
