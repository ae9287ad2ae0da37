"""Identifiers of buffers and symbols, derived from the model's names of values.

A model names values "/layer1/conv/Conv_output_0" or "p2o.DynamicDimension.0"; printed IR and generated code need
identifiers. Errors show the model's names.
"""

import keyword
import re
from typing import get_args

from tilewright.expr.dtype import DTYPES
from tilewright.expr.nodes import BinaryOp, UnaryOp

_MAX_LENGTH = 48


def _literal_values(alias: object) -> set[str]:
    literals: set[str] = set()
    for part in get_args(alias):
        literals |= {part} if isinstance(part, str) else _literal_values(part)
    return literals


_RESERVED = frozenset(
    {*keyword.kwlist, *keyword.softkwlist, *DTYPES, *_literal_values(BinaryOp), *_literal_values(UnaryOp)}
    | {"select", "cast", "not_", "sum", "prod", "inf", "nan", "main", "parallel", "serial", "vectorized", "unrolled"}
)
"""Words with a meaning in printed IR."""

_LOOP_VARIABLE = re.compile(r"[a-z]\d+")


def identifier(name: str) -> str:
    """A name as an identifier of at most 48 characters that is not reserved in printed IR."""
    text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    if len(text) > _MAX_LENGTH:
        text = text[-_MAX_LENGTH:].lstrip("_")
    if not text or text[0].isdigit():
        text = f"v{text}"
    return f"{text}_" if _is_reserved(text) else text


def axis_name(value: str, axis: int) -> str:
    """The name of an axis that the model leaves without one: the value's, and the number of the axis."""
    return f"{identifier(value).rstrip('_')}_{axis}"


def _is_reserved(name: str) -> bool:
    return name in _RESERVED or _LOOP_VARIABLE.fullmatch(name) is not None


class Namer:
    """Generates unique names of buffers.

    A name never ends in an underscore and digits, because the buffers of one node are named `name`, `name_1`, ...
    """

    def __init__(self, symbols: frozenset[str] = frozenset()) -> None:
        self._taken = set(symbols)
        # Per base name, the number at which the last search ended: names are only added, so the next one starts there.
        self._counts: dict[tuple[str, bool], int] = {}
        self._stems = {re.sub(r"_\d+$", "", name) for name in symbols}

    def make_name(self, hint: str, *, reserve_numbered: bool = False) -> str:
        """A new identifier close to `hint`.

        Args:
            hint: the model's name of the value.
            reserve_numbered: whether `name_1`, `name_2`, ... must be free as well.
        """
        base = identifier(hint)
        while suffix := re.search(r"^(.*)_(\d+)$", base):
            base = f"{suffix[1]}{suffix[2]}"
        base = f"{base}_" if _is_reserved(base) else base
        count = self._counts.get((base, reserve_numbered), 1)
        name = base if count == 1 else f"{base}_v{count}"
        while name in self._taken or (reserve_numbered and name in self._stems):
            count += 1
            name = f"{base}_v{count}"
        self._counts[base, reserve_numbered] = count
        self._taken.add(name)
        return name
