"""Measured times of register tiles: the part of a machine's description that says how fast its innermost loops run.

A register tile multiplies a column of values by a row of vectors and adds the products to its accumulators, once per
term of a sum. The cycles per term are measured by `tilewright doctor --calibrate`. A description without measurements
has none; estimates then follow from its ports and latencies.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

_KEY_PATTERN = re.compile(r"(\d{1,5})/(\d{1,3}) (\d{1,2})x(\d{1,2})x(\d{1,2})", re.ASCII)

MAX_CYCLES = 1e5
"""Cycles per term beyond those of any tile."""


@dataclass(frozen=True, slots=True, order=True)
class RegisterTileCycles:
    """The measured time of one register tile.

    Attributes:
        vector_bits: width of the vectors.
        element_bits: width of the elements, floating-point numbers.
        rows: values that are multiplied by every vector.
        vectors: vectors of a row.
        unroll: terms of one step of the loop.
        cycles: per term, the loop included.
    """

    vector_bits: int
    element_bits: int
    rows: int
    vectors: int
    unroll: int
    cycles: float

    @property
    def key(self) -> str:
        """Its name in a description: "512/32 12x2x4" for vectors of 512 bits of 32-bit elements, 12 rows of 2 vectors,
        4 terms."""
        return f"{self.vector_bits}/{self.element_bits} {self.rows}x{self.vectors}x{self.unroll}"


def encode_register_tiles(tiles: tuple[RegisterTileCycles, ...]) -> dict[str, float]:
    """Measured tiles as JSON values."""
    return {x.key: x.cycles for x in tiles}


def decode_register_tiles(value: Any, report: Callable[[str, str], None]) -> tuple[RegisterTileCycles, ...]:
    """Measured tiles of JSON values.

    Args:
        value: of the field `register_tiles`.
        report: called with a place and what is wrong there.
    """
    if not isinstance(value, Mapping):
        report("register_tiles", f"expected an object, got {value!r}")
        return ()
    tiles: list[RegisterTileCycles] = []
    for key, cycles in cast(Mapping[str, Any], value).items():
        match = _KEY_PATTERN.fullmatch(key)
        if match is None or any(int(x) == 0 for x in match.groups()):
            report(f"register_tiles['{key}']", "expected a name such as '512/32 12x2x4'")
        elif isinstance(cycles, bool) or not isinstance(cycles, (int, float)) or not 0 < cycles <= MAX_CYCLES:
            report(f"register_tiles['{key}']", f"must be more than 0 and at most {MAX_CYCLES:.16g}, got {cycles!r}")
        else:
            bits, element_bits, rows, vectors, unroll = map(int, match.groups())
            tiles.append(RegisterTileCycles(bits, element_bits, rows, vectors, unroll, float(cycles)))
    return tuple(tiles)
