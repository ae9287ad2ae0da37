"""The sources that results are of."""

from tilewright import version
from tilewright.errors import SourcesChangedError


def source_hash() -> str:
    """The hash of the package's sources, 16 hexadecimal digits.

    Raises:
        SourcesChangedError: they have changed since this process has imported them, so results would be of others.
    """
    digest = version.source_hash()
    if digest is None:
        raise SourcesChangedError
    return digest
