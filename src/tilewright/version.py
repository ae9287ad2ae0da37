"""Version of the package."""

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

__version__ = "0.1.0"


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Hash of the package's sources, 16 hexadecimal digits: versions under development differ in it alone."""
    root = Path(__file__).parent
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
