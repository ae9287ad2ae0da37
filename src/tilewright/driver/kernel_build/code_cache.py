"""Machine code of earlier compilations in the user's cache folder.

    <folder>/code/<two digits>/<key>     64 digits of the content's SHA-256, a newline, the content: JSON

A key is everything that decides the content (`measure.machine_code_key`), so entries are never out of date. An entry
that is damaged counts as missing and is written again; `private_folder` says which ones are trusted.
"""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tilewright.driver.private_folder import PrivateFolder, Usage
from tilewright.errors import OptionError
from tilewright.machine.calibration_store import cache_folder

VARIABLE = "TILEWRIGHT_CACHE"
"""Environment variable that turns the cache off ("off") or on ("on", the default)."""

MAX_BYTES = 1 << 30
"""Size that the cache is pruned to after a compilation that has added to it; a kernel takes 10 to 200 KB."""

_MAX_ENTRY_BYTES = 1 << 28
"""A longer file is no kernel."""


class CodeCache(PrivateFolder):
    """A cache in a folder, which need not exist."""

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The content of an entry; None where there is none that can be trusted."""
        try:
            with self.opened(key) as handle:
                if handle is None:
                    return None
                if os.fstat(handle).st_size > _MAX_ENTRY_BYTES:
                    return None
                with open(handle, "rb", closefd=False) as file:
                    digest, _, content = file.read().partition(b"\n")
            if digest != sha256(content).hexdigest().encode():
                return None
            self.touch(key)
            value = json.loads(content)
        except (OSError, ValueError, RecursionError, MemoryError):
            return None
        return value if isinstance(value, dict) else None

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Keeps JSON values where that is possible."""
        content = json.dumps(value).encode()
        self.write(key, [sha256(content).hexdigest().encode() + b"\n", content])

    def prune(self, max_bytes: int = MAX_BYTES) -> Usage:
        """Removes the entries that have not been used for longest until it has at most so many bytes; returns what was
        removed."""
        return PrivateFolder.prune(self, max_bytes)


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
