"""Documents of the package in JSON: a format, a version, fields; every problem of one is reported.

{"format": "tilewright-trace", "version": 1, "steps": [..]}
"""

from collections.abc import Sequence
from typing import Any

from tilewright.errors import DataError, Defect
from tilewright.layout.strict_json import load_bounded_json


class DocumentReader:
    """Collects the problems of a document.

    Args:
        kind: what the document is, in errors.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.problems: list[Defect] = []

    def report(self, where: str, what: str, hint: str = "") -> None:
        """Records a problem."""
        self.problems.append(Defect(self.kind, where, what, hint))

    def header(self, data: object, fields: Sequence[str], version: int) -> dict[str, Any] | None:
        """The fields of a document, after checks of its header; None where it is no object.

        Args:
            data: its JSON values.
            fields: names of all its fields, `format` and `version` first.
            version: the version that is read; the format is `tilewright-<kind>`.
        """
        if not isinstance(data, dict):
            self.report("", f"expected an object, got {type(data).__name__}")
            return None
        values: dict[str, Any] = data
        expected = f"tilewright-{self.kind}"
        if values.get("format") != expected:
            self.report("format", f"expected {expected!r}, got {abbreviate(values.get('format'))}")
        given = values.get("version")
        if type(given) is not int or given != version:
            hint = "it was written by a newer version" if type(given) is int and given > version else ""
            self.report("version", f"expected {version}, got {abbreviate(given)}", hint)
        for name in sorted(values.keys() - set(fields)):
            self.report(abbreviate(name), f"there is no such field; there are {', '.join(fields)}")
        return values


def load_document(text: str | bytes, max_bytes: int, error: type[DataError], where: str) -> Any:
    """The JSON values of a document.

    Args:
        text: the document.
        max_bytes: limit of its length.
        error: the exception for text that is no JSON.
        where: the document's place.
    """
    try:
        return load_bounded_json(text, max_bytes)
    except ValueError as e:
        raise error([Defect(error.code, "", str(e))], where=where) from None


def abbreviate(value: object) -> str:
    """A value as text of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
