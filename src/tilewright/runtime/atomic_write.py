"""Atomic file replacement: a file is replaced completely or not at all.

The new content goes to another file in the same folder, because a rename is atomic only within one file system. Where
the system has files without a name (Linux, most file systems), a new file gets its name after the last byte, and one
that replaces another has a temporary name only between the last byte and the rename, so that a process that is killed
while it writes leaves nothing behind; other leftovers are removed by the next durable save of the same file.
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
"""Age from which an unlocked temporary file is considered abandoned."""


def replace_file(
    target: Path, pieces: Iterable[bytes | memoryview], mode: int = 0o666, durable: bool = True, keep: bool = False
) -> int:
    """Writes a file; an existing one keeps its permissions, and its owner where that is permitted. Pipes and devices,
    which cannot be replaced, are written to.

    Args:
        target: the file, with symbolic links resolved.
        pieces: its content.
        mode: permissions of a new file, without those that the process's mask takes away.
        durable: whether the content survives a crash of the system, and leftovers of killed writers are looked for;
            both take longer than writing a small file.
        keep: whether a file that another process writes meanwhile is kept, because it has the same content.

    Returns:
        The number of bytes written.

    Raises:
        OSError: it cannot be written; an existing file is unchanged.
    """
    try:
        existing = os.stat(target)
    except FileNotFoundError:
        existing = None
    if existing is not None and stat.S_ISDIR(existing.st_mode):
        raise IsADirectoryError(None, "is a folder")
    if existing is not None and not stat.S_ISREG(existing.st_mode):
        with target.open("wb", buffering=0) as file:
            return _write(file.fileno(), pieces)
    if durable:
        _remove_stale_files(target)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    handle = -1
    try:
        handle = _create(temporary, mode if existing is None else 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        count = _write(handle, pieces)
        if existing is not None:
            with contextlib.suppress(PermissionError):
                os.fchown(handle, existing.st_uid, existing.st_gid)
            os.fchmod(handle, stat.S_IMODE(existing.st_mode))
        if durable:
            os.fsync(handle)
        _link_or_replace(handle, temporary, target, keep)
    except BaseException:
        # it has no temporary name before the link and none after the rename; the interruption is the error to report
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        if handle >= 0:
            os.close(handle)
    return count


def _create(name: Path, mode: int) -> int:
    """A descriptor of a new file: without a name where the system supports that, otherwise called `name`."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    unnamed: int = getattr(os, "O_TMPFILE", 0)
    if unnamed and os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # many file systems do not support it
            return os.open(name.parent, flags | unnamed, mode)
    return os.open(name, flags | os.O_CREAT | os.O_EXCL, mode)


def _link_or_replace(handle: int, temporary: Path, target: Path, keep: bool) -> None:
    """Gives a finished file its name: a new one at once, one that replaces another by way of a temporary name."""
    if not os.fstat(handle).st_nlink:
        try:
            _link(handle, target)
        except FileExistsError:
            if keep:
                return
            _link(handle, temporary)
        else:
            return
    os.replace(temporary, target)


def _link(handle: int, name: Path) -> None:
    """Gives an unnamed file a name that no other has."""
    # only with src_dir_fd does Python pass AT_SYMLINK_FOLLOW
    os.link(f"/proc/self/fd/{handle}", name, src_dir_fd=handle, follow_symlinks=True)


def _write(handle: int, pieces: Iterable[bytes | memoryview]) -> int:
    count = 0
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            done = os.write(handle, view[: 1 << 26])
            view, count = view[done:], count + done
    return count


def _remove_stale_files(target: Path) -> None:
    """Removes temporary files of earlier writers of the same target that were killed."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}")
    with contextlib.suppress(OSError):  # a folder that cannot be listed, or files of other users
        for entry in os.scandir(target.parent):
            is_stale = (
                pattern.fullmatch(entry.name)
                and time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS
            )
            if is_stale and entry.is_file(follow_symlinks=False) and not _is_locked(entry.path):
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
