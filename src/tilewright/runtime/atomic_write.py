"""Files that are replaced at once and completely, or not at all.

The new content goes to another file in the same folder, because a rename is atomic only within one file system. Where
the system has files without a name (Linux, most file systems), it has one only between the last byte and the rename, so
that a process that is killed while it writes leaves nothing behind; elsewhere the next save of the same file removes
what was left.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable
from pathlib import Path

_STALE_SECONDS = 60.0
"""Seconds after which nobody writes a file any more that nobody has locked."""


def replace_file(target: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Writes a file; one that stands there keeps its permissions, and its owner where that is allowed. Pipes and
    devices, which can't be replaced, are written to.

    Args:
        target: the file, with no links left to follow.
        pieces: its content.

    Returns:
        How many bytes were written.

    Raises:
        OSError: it can't be written; a file that stands there is as it was.
    """
    try:
        before = os.stat(target)
    except FileNotFoundError:
        before = None
    if before is not None and stat.S_ISDIR(before.st_mode):
        raise IsADirectoryError(None, "is a folder")
    if before is not None and not stat.S_ISREG(before.st_mode):
        with target.open("wb", buffering=0) as file:
            return _write(file.fileno(), pieces)
    _remove_stale_files(target)
    name = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    handle = -1
    try:
        handle = _create(name, 0o666 if before is None else 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        count = _write(handle, pieces)
        if before is not None:
            with contextlib.suppress(PermissionError):
                os.fchown(handle, before.st_uid, before.st_gid)
            os.fchmod(handle, stat.S_IMODE(before.st_mode))
        os.fsync(handle)
        if not os.fstat(handle).st_nlink:
            # a descriptor for relative paths makes Python ask for links to be followed, which it does not otherwise
            os.link(f"/proc/self/fd/{handle}", name, src_dir_fd=handle, follow_symlinks=True)
        os.replace(name, target)
    except BaseException:
        # It has no name before the link and none after the rename; what interrupted it is the error.
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    finally:
        if handle >= 0:
            os.close(handle)
    return count


def _create(name: Path, mode: int) -> int:
    """A descriptor of a new file: without a name yet where the system can do that, else called `name`."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    unnamed: int = getattr(os, "O_TMPFILE", 0)
    if unnamed and os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # many file systems don't
            return os.open(name.parent, flags | unnamed, mode)
    return os.open(name, flags | os.O_CREAT | os.O_EXCL, mode)


def _write(handle: int, pieces: Iterable[bytes | memoryview]) -> int:
    count = 0
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            done = os.write(handle, view[: 1 << 26])
            view, count = view[done:], count + done
    return count


def _remove_stale_files(target: Path) -> None:
    """Removes files of earlier writers of the same target that ended before they were done."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}")
    with contextlib.suppress(OSError):  # a folder that can't be listed, or files of others
        for entry in os.scandir(target.parent):
            old = (
                pattern.fullmatch(entry.name)
                and time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS
            )
            if old and entry.is_file(follow_symlinks=False) and not _is_locked(entry.path):
                os.unlink(entry.path)


def _is_locked(path: str) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
