"""Sizes that no machine has: refused before anything is constructed for them."""

from collections.abc import Sequence
from math import prod

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Const, Expr
from tilewright.graph.ir import Graph
from tilewright.graph.program import Program

MAX_ADDRESSABLE_BYTES = 1 << 47
"""What a process can address on x86-64 and AArch64."""


def check_input_sizes(graph: Graph) -> None:
    """Every input could lie in memory; sizes that follow from larger ones wrap, and their errors would mislead.

    Raises:
        ShapeError: names the first input that could not.
    """
    for value in graph.inputs:
        _check_size(value.name, value.type.dtype, value.type.shape)


def check_tensor_sizes(program: Program) -> None:
    """Every tensor could lie in memory, as far as its sizes are known.

    Raises:
        ShapeError: names the first value that could not; its bytes would not fit an index either. Or one with a
            negative size, as products of sizes are that wrap.
    """
    for name, b in program.values.items():
        if any(isinstance(n, Const) and n.value < 0 for n in b.shape):
            shown = _type_text(b.dtype, b.shape)
            raise ShapeError(f"expected sizes of at least 0, got {shown}", where=f"value '{name}'")
        _check_size(name, b.dtype, b.shape)


def _check_size(name: str, dtype: DType, shape: Sequence[Expr]) -> None:
    known = [int(n.value) for n in shape if isinstance(n, Const)]
    size = prod(known) * max(1, dtype.bits // 8)
    if size > MAX_ADDRESSABLE_BYTES:
        what = f"expected at most 2^47 bytes, got {_type_text(dtype, shape)} with at least 2^{size.bit_length() - 1}"
        raise ShapeError(what, where=f"value '{name}'", hint="no machine can hold it")


def _type_text(dtype: DType, shape: Sequence[Expr]) -> str:
    return f"{dtype} [{', '.join(map(str, shape))}]"
