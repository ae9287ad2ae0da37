"""Where a compilation finds records: an argument, the environment, or a store of the user.

    <folder>/records.db      TILEWRIGHT_RECORDS, else XDG_DATA_HOME/tilewright/records.db, else below ~/.local/share

This module imports no part of the compiler, so a session that loads a compiled artifact can name the options.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import OptionError

if TYPE_CHECKING:
    from tilewright.measure.records.record import Record

VARIABLE = "TILEWRIGHT_RECORDS"
"""Environment variable: a store or an export of records, or "off"."""

FILE = "records.db"


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Records that a compilation uses.

    Attributes:
        path: a store, or an export.
        is_default: whether nobody named it, so that a compilation goes on where it can't be used.
        frozen: whether all programs and estimates come from records, and nothing is constructed or kept.
        used: receives the records that a compilation uses or keeps; None where nobody asks.
    """

    path: Path
    is_default: bool = False
    frozen: bool = False
    used: "list[Record] | None" = field(default=None, compare=False)


def user_store(environ: Mapping[str, str] | None = None) -> Path:
    """The user's store where nothing else is named."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "share") / "tilewright" / FILE


def record_source(
    records: "str | os.PathLike[str] | bool | None" = None,
    frozen: bool = False,
    environ: Mapping[str, str] | None = None,
) -> RecordSource | None:
    """The records that a compilation uses; None where it uses none.

    Args:
        records: a store or an export; False for none; None asks TILEWRIGHT_RECORDS, then it is the user's store.
        frozen: whether nothing but records decides programs.
        environ: environment variables, the process's own by default.

    Raises:
        OptionError: the argument is no path, or there are no records to be frozen to.
    """
    environ = os.environ if environ is None else environ
    setting = environ.get(VARIABLE, "")
    if not isinstance(frozen, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
        raise OptionError(f"expected True or False, got {frozen!r}", where="argument 'frozen'")
    if records is not None and not isinstance(records, (str, os.PathLike, bool)):  # pyright: ignore[reportUnnecessaryIsInstance]
        what = f"expected a path, got {type(records).__name__}"
        raise OptionError(what, where="argument 'records'", hint="give a store, an export, or False for none")
    if records is False or (records is None and setting == "off"):
        if frozen:
            hint = "give the records that the compilation is to use"
            raise OptionError("without records there is nothing to be frozen to", where="frozen", hint=hint)
        return None
    if not isinstance(records, bool) and records is not None:
        return RecordSource(Path(records), frozen=frozen)
    return RecordSource(Path(setting) if setting else user_store(environ), not setting, frozen)
