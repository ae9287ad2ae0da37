"""Archives of object files in the format of Unix `ar`: the code of a model, a file per kernel and one of entries.

    "!<arch>\\n", then per file a header of 60 bytes and its content, at even offsets

Times, owners and permissions are zero, so that equal files give equal archives; `ar t`, `nm` and `objdump` read them.
"""

from collections.abc import Sequence

from tilewright.errors import ArtifactError

MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60
_HEADER_END = b"`\n"


def make_archive(files: Sequence[bytes]) -> bytes:
    """The archive of object files, which are called by their positions."""
    parts = [MAGIC]
    for k, data in enumerate(files):
        header = f"{f'{k}.o/':<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}".encode() + _HEADER_END
        parts += [header, data, b"\n" * (len(data) % 2)]
    return b"".join(parts)


def is_archive(code: bytes) -> bool:
    """Whether code is an archive, not an object file."""
    return code.startswith(MAGIC)


def read_archive(code: bytes, where: str) -> tuple[bytes, ...]:
    """The files of an archive in their order.

    Args:
        code: the archive.
        where: the place in errors.

    Raises:
        ArtifactError: it is no such archive.
    """
    if not is_archive(code):
        raise _damage("the code is no archive of object files", where)
    files: list[bytes] = []
    at = len(MAGIC)
    while at < len(code):
        k = len(files)
        header = code[at : at + _HEADER_BYTES]
        size = header[48:58].rstrip()
        at += _HEADER_BYTES
        if len(header) < _HEADER_BYTES or not header.endswith(_HEADER_END) or not size.isdigit():
            raise _damage(f"the header of object file {k} is damaged", where)
        if at + int(size) > len(code):
            raise _damage(f"object file {k} is truncated", where)
        files.append(code[at : at + int(size)])
        at = min(at + int(size) + int(size) % 2, len(code))
    return tuple(files)


def _damage(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, hint="compile the model again")
