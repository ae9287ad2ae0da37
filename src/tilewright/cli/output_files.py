"""Files that commands write: checked before the work, reported afterwards."""

import os
import sys
from pathlib import Path

from tilewright.errors import OptionError


def check_writable(path: Path | str, option: str, *read: Path | str | None) -> None:
    """Checks that the file of an option can be written, before a command spends its time.

    Args:
        path: the file.
        option: the flag that names it.
        read: files that the command reads, which it must not replace.

    Raises:
        OptionError: it can't, or must not.
    """
    where, file = f"{option} {path}", Path(path)
    try:
        if str(path).endswith(os.sep) or file.is_dir():
            raise OptionError("is a folder", where=where, hint="name the file to write in it")
        if not file.parent.is_dir():
            raise OptionError(f"there is no folder {file.parent}", where=where, hint="make it, or give another file")
        if not os.access(file if os.path.exists(file) else file.parent, os.W_OK):
            raise OptionError("cannot be written", where=where, hint="give a file that this user may write")
        if any(r is not None and os.path.exists(r) and file.exists() and file.samefile(r) for r in read):
            raise OptionError("is a file that this command reads", where=where, hint="give another file")
    except OSError as error:  # the name is too long
        raise OptionError(f"cannot be written: {error.strerror}", where=where) from error


def write_text(path: Path, text: str, option: str, quiet: bool) -> None:
    """Writes the file of an option, and reports it on standard error unless `quiet`.

    Raises:
        OptionError: it can't be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot be written: {error.strerror}", where=f"{option} {path}") from error
    report_written(path, quiet)


def report_written(path: Path | str, quiet: bool) -> None:
    """Reports a written file on standard error unless `quiet`."""
    if not quiet:
        print(f"wrote {path}", file=sys.stderr)
