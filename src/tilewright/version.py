"""Version of the package, and the hash of the sources that this process runs."""

import os
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import sha256

__version__ = "0.1.0"

_FOLDER = os.path.dirname(__file__)

_CLOCK_TICK = 10_000_000
"""Nanoseconds between two times that Linux gives to files, at most."""

_IMPORT_TIME = time.time_ns() - _CLOCK_TICK
"""When this process began to import the package: sources that have changed since may not be those that it runs."""


def _folder_identity() -> tuple[int, int] | None:
    """What tells the package's folder from another one in its place, as where a link to a version is switched."""
    try:
        status = os.stat(_FOLDER)
    except OSError:  # the package is in an archive
        return None
    return status.st_dev, status.st_ino


_IMPORT_FOLDER = _folder_identity()


def _sources(folder: str = _FOLDER) -> Iterator[os.DirEntry[str]]:
    """The files that can be imported: editors have others beside them, as Emacs' broken links `.#NAME.py`."""
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        name, _, suffix = entry.name.partition(".")
        if suffix == "py" and name.isidentifier() and entry.is_file():
            yield entry
        elif entry.name.isidentifier() and entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
            yield from _sources(entry.path)


def _content_hash() -> str | None:
    """The hash of the sources as they are now; None where one can't be read, or there are none."""
    digest = sha256()
    try:
        sources = list(_sources())
        for entry in sources:
            with open(entry.path, "rb", buffering=0) as file:
                digest.update(entry.path[len(_FOLDER) :].encode() + file.read())
    except OSError:  # it was removed meanwhile, or the package is in an archive
        return None
    return digest.hexdigest()[:16] if sources else None


def _may_have_changed() -> bool:
    """Whether a source may have changed since the import.

    The time of a file's status (ctime) can't be set, unlike that of its content, which installers set. It also changes
    with the number of hard links.
    """
    return _folder_identity() != _IMPORT_FOLDER or _is_one_newer(lambda status: status.st_ctime_ns)


def _is_one_newer(time_of: Callable[[os.stat_result], int]) -> bool:
    """Whether a time of a source is later than the import, or one can't be read."""
    try:
        return any(
            time_of(status) >= _IMPORT_TIME
            for e in _sources() for status in (e.stat(), e.stat(follow_symlinks=False))
        )  # fmt: skip
    except OSError:
        return True


@lru_cache(maxsize=1)
def source_hash() -> str | None:
    """Hash of the package's sources, 16 hexadecimal digits: versions under development differ in it alone.

    None where they have changed between the import of this package and the first call, so that what this process runs
    has no known hash: nothing may be found or kept by it, and no other process does a part of the work.
    """
    digest = _content_hash()
    return None if _may_have_changed() else digest


def sources_have_changed() -> bool:
    """Whether modules that this process has imported may be others than those that `source_hash` tells of.

    A source that was written since the import counts even if its content is the same again: a module may have been
    imported meanwhile.
    """
    known = source_hash()
    if known is None or not _may_have_changed():
        return known is None
    return _is_one_newer(lambda status: status.st_mtime_ns) or _content_hash() != known
