"""Limits of tensor sizes, checked before lowering and scheduling."""

from collections.abc import Sequence
from math import prod

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Const, Expr
from tilewright.graph.ir import Graph
from tilewright.graph.program import Program

MAX_ADDRESSABLE_BYTES = 1 << 47
"""Size of the address space of a process on x86-64 and AArch64."""


def check_input_sizes(graph: Graph) -> None:
    """Checks that every input fits the address space, before sizes that are computed from it wrap.

    Raises:
        ShapeError: an input does not fit; names the first.
    """
    for value in graph.inputs:
        _check_size(value.name, value.type.dtype, value.type.shape)


def check_tensor_sizes(program: Program) -> None:
    """Checks that the literal sizes of every tensor fit the address space.

    Raises:
        ShapeError: a tensor does not fit, or has a negative size because a product of sizes wrapped; names the first.
    """
    for name, b in program.values.items():
        if any(isinstance(n, Const) and n.value < 0 for n in b.shape):
            what = f"expected sizes of at least 0, got {_type_text(b.dtype, b.shape)}"
            raise ShapeError(what, where=f"value '{name}'")
        _check_size(name, b.dtype, b.shape)


def _check_size(name: str, dtype: DType, shape: Sequence[Expr]) -> None:
    literals = [int(n.value) for n in shape if isinstance(n, Const)]
    size = prod(literals) * max(1, dtype.bits // 8)
    if size > MAX_ADDRESSABLE_BYTES:
        what = f"expected at most 2^47 bytes, got {_type_text(dtype, shape)} with at least 2^{size.bit_length() - 1}"
        raise ShapeError(what, where=f"value '{name}'", hint="no machine can hold it")


def _type_text(dtype: DType, shape: Sequence[Expr]) -> str:
    return f"{dtype} [{', '.join(map(str, shape))}]"
