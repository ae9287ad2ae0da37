"""Version of the package."""

import os
from functools import lru_cache
from hashlib import sha256

__version__ = "0.1.0"

_FOLDER = os.path.dirname(__file__)


def _file_state(path: str) -> tuple[int, ...]:
    """What tells a changed file from an unchanged one; times of modification alone may be set, as installers do."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _sources() -> list[str]:
    return sorted(f"{folder}/{f}" for folder, _, files in os.walk(_FOLDER) for f in files if f.endswith(".py"))


_STATES = {path: _file_state(path) for path in _sources()}
"""The sources when this process began to import the package: this module comes before any that has a part in the
results of a compilation."""


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Hash of the package's sources, 16 hexadecimal digits: versions under development differ in it alone.

    Where `sources_have_changed`, it is not the hash of what this process runs, so nothing may be kept by it.
    """
    digest = sha256()
    for path in _STATES:
        with open(path, "rb", buffering=0) as file:
            digest.update(path[len(_FOLDER) :].encode() + file.read())
    return digest.hexdigest()[:16]


def sources_have_changed() -> bool:
    """Whether a source has changed since this process has imported the package; one that cannot be read has."""
    try:
        return any(_file_state(path) != state for path, state in _STATES.items())
    except OSError:
        return True
