"""Strict reader of JSON that people write: it rejects what the standard forbids or leaves open."""

import json
from typing import Any


def load_strict_json(text: str | bytes) -> Any:
    """The values of JSON text.

    Raises:
        ValueError: it is not JSON, a field of an object repeats, a number is NaN or infinite, or it is nested too
            deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_bounded_json(text: str | bytes, max_bytes: int) -> Any:
    """The values of strict JSON text of limited length.

    Raises:
        ValueError: it exceeds the limit, or is not JSON as `load_strict_json` reads it; the text is a sentence.
    """
    if len(text) > max_bytes:
        raise ValueError(f"it exceeds {max_bytes} bytes")
    try:
        return load_strict_json(text)
    except ValueError as e:
        raise ValueError(f"it is not JSON: {e}") from None


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(n for n in names if names.count(n) > 1)
        raise ValueError(f"the field {duplicate!r} appears twice")
    return fields


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")
