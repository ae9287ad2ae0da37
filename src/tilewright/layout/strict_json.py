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


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(n for n in names if names.count(n) > 1)
        raise ValueError(f"the field {duplicate!r} appears twice")
    return fields


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")
