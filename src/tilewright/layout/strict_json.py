"""JSON that people write: what the standard does not allow, or leaves open, is refused."""

import json
from typing import Any


def load_strict_json(text: str | bytes) -> Any:
    """The values of JSON text.

    Raises:
        ValueError: it is no JSON, a field of an object appears twice, a number is none (NaN, Infinity), or it is nested
            too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(n for n in names if names.count(n) > 1)
        raise ValueError(f"the field {twice!r} appears twice")
    return found


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")
