"""Folders of files that this user and the system's administrator alone can write.

    <folder>/<two digits>/<key>

Whoever can write an entry of a cache can run code in the processes that read it, so folders and files that others may
write are not read, and new ones are private to the user. Writers replace files atomically, so any number of processes
may use a folder at once, and killed ones leave no broken file. Where it cannot be written, nothing is kept, and the
user is warned once. A user may have other files in the same place: what has no name of an entry is neither counted nor
removed.
"""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from tilewright.errors import CacheWarning
from tilewright.machine.calibration_store import VARIABLE as FOLDER_VARIABLE
from tilewright.runtime.atomic_write import replace_file
from tilewright.user_warnings import warn_user

_FOLDER = re.compile("[0-9a-f]{2}")
_ENTRY = re.compile(r"([0-9a-f]{64})|\.([0-9a-f]{64})\.[0-9a-f]{16}")
"""Names of entries, and of those that `replace_file` has not finished."""

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room (`tilewright cache clear`), "),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it writable, "),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "remove what is in its place, "),
}
"""What can be done about an error of the system, besides another folder or none."""

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
class PrivateFolder:
    """A folder of entries by key, which need not exist.

    Attributes:
        folder: of the entries.
        has_added: whether an entry has been written.
        has_warned: whether the user knows that entries can't be written.
    """

    folder: Path
    has_added: bool = False
    has_warned: bool = False

    @contextlib.contextmanager
    def opened(self, key: str) -> Generator[int | None]:
        """A descriptor of an entry that can be trusted, to read it; None where there is none."""
        handle = self._open(key)
        try:
            yield handle
        finally:
            if handle is not None:
                os.close(handle)

    def _open(self, key: str) -> int | None:
        path = self._path(key)
        handle = None
        try:
            if not (is_private(os.stat(self.folder)) and is_private(os.stat(path.parent))):
                return None
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(handle)
        except OSError:
            status = None
        if handle is not None and not (status and is_private(status) and stat.S_ISREG(status.st_mode)):
            os.close(handle)
            return None
        return handle

    def touch(self, key: str) -> None:
        """Records a use of an entry."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path, follow_symlinks=False).st_mtime > _USE_SECONDS:
                os.utime(path, follow_symlinks=False)

    def write(self, key: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Writes an entry; where that is not possible, the first one that fails is a warning."""
        path = self._path(key)
        try:
            for folder in (self.folder, path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not is_private(status := os.stat(folder)):
                    is_own = status.st_uid in (os.geteuid(), 0)
                    problem = "other users can write to it" if is_own else "it belongs to another user"
                    self._warn_once(folder, problem, f"run `chmod go-w {quote(str(folder))}`, " if is_own else "")
                    return
            path.unlink(missing_ok=True)  # a damaged entry, or one that others may write
            replace_file(path, pieces, mode=0o600, durable=False, keep=True)
            self.has_added = True
        except OSError as error:
            folders = (self.folder.parent, self.folder, path.parent)
            place = next((f for f in folders if not os.access(f, os.W_OK | os.X_OK)), self.folder.parent)
            self._warn_once(place, error.strerror or str(error), _REMEDIES.get(error.errno or 0, ""))

    def _warn_once(self, place: Path, problem: str, remedy: str) -> None:
        """Warns, once, that entries can't be kept as there is something wrong with a folder."""
        if self.has_warned:
            return
        self.has_warned = True
        what = f"the cache folder {place} can't be used ({problem}), so nothing is kept there"
        hint = f"{remedy}set {FOLDER_VARIABLE} to another folder, or turn the cache off with TILEWRIGHT_CACHE=off"
        warn_user(f"{what}; {hint}", CacheWarning)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def usage(self) -> Usage:
        """How much it holds."""
        sizes = [size for _, size, _ in self._entries()]
        return Usage(len(sizes), sum(sizes))

    def clear(self) -> Usage:
        """Removes every entry; returns what was removed."""
        return self.prune(0)

    def prune(self, max_bytes: int) -> Usage:
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
        """Time of the last use, size and path of every entry, unfinished ones of killed processes included."""
        with contextlib.suppress(OSError):
            for folder in list(os.scandir(self.folder)):
                if _FOLDER.fullmatch(folder.name) is None or not folder.is_dir(follow_symlinks=False):
                    continue
                with contextlib.suppress(OSError):
                    for entry in list(os.scandir(folder.path)):
                        if not _is_entry(entry.name, folder.name):
                            continue
                        with contextlib.suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            yield status.st_mtime, status.st_size, Path(entry.path)


def _is_entry(name: str, folder: str) -> bool:
    match = _ENTRY.fullmatch(name)
    return match is not None and (match[1] or match[2]).startswith(folder)


def is_private(status: os.stat_result) -> bool:
    """Whether only this user and the system's administrator can write a file."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
