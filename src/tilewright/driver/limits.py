"""Sizes that no machine has: refused before anything is constructed for them."""

from math import prod

from tilewright.errors import ShapeError
from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Const
from tilewright.graph.program import Program

MOST_BYTES = 1 << 47
"""What a process can address on x86-64 and AArch64."""


def check_sizes(program: Program) -> None:
    """Every tensor could lie in memory, as far as its sizes are known.

    Raises:
        ShapeError: names the first value that could not; its bytes would not fit an index either. Or one with a
            negative size, as products of sizes are that wrap.
    """
    for name, b in program.values.items():
        if any(isinstance(n, Const) and n.value < 0 for n in b.shape):
            raise ShapeError(f"expected sizes of at least 0, got {_shown(b)}", where=f"value '{name}'")
        known = [int(n.value) for n in b.shape if isinstance(n, Const)]
        size = prod(known) * max(1, b.dtype.bits // 8)
        if size > MOST_BYTES:
            raise ShapeError(_too_large(b, size), where=f"value '{name}'", hint="no machine can hold it")


def _too_large(b: Buffer, size: int) -> str:
    return f"expected at most 2^47 bytes, got {_shown(b)} with at least 2^{size.bit_length() - 1}"


def _shown(b: Buffer) -> str:
    return f"{b.dtype} [{', '.join(map(str, b.shape))}]"
