"""Version of the package."""

import os
import time
from functools import lru_cache
from hashlib import sha256

__version__ = "0.1.0"

_FOLDER = os.path.dirname(__file__)

_IMPORT_TIME = time.time()
"""The package imports this module before any that has a part in the results of a compilation."""


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Hash of the package's sources, 16 hexadecimal digits: versions under development differ in it alone.

    A process whose sources have changed since it has imported the package runs code that is of no version; its hash is
    like that of no other process.
    """
    digest, is_changed = sha256(), False
    for path in _sources():
        with open(path, "rb", buffering=0) as file:
            is_changed |= os.fstat(file.fileno()).st_ctime > _IMPORT_TIME
            digest.update(path[len(_FOLDER) :].encode() + file.read())
    if is_changed:
        digest.update(os.urandom(16))
    return digest.hexdigest()[:16]


def sources_have_changed() -> bool:
    """Whether a source has changed since this process has imported the package."""
    try:
        # times of changes: those of modification may be set, as installers and copies do
        return any(os.stat(path).st_ctime > _IMPORT_TIME for path in _sources())
    except FileNotFoundError:
        return True


def _sources() -> list[str]:
    return sorted(f"{folder}/{f}" for folder, _, files in os.walk(_FOLDER) for f in files if f.endswith(".py"))
