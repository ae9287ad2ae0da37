"""Addresses of vector accesses: a base pointer with an offset per lane, and the lanes that are active."""

from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.llvm_types import I64, memory_type
from tilewright.codegen.strided_loads import NO_MARGIN, ReadMargin
from tilewright.expr.dtype import DType


@dataclass(frozen=True, slots=True)
class Address:
    """The elements that an access touches, as offsets from `base` in elements.

    Attributes:
        base: pointer to the element at offset 0.
        offsets: offset per lane where all are compile-time constants; None for a scalar and for run-time offsets.
        vector: run-time offset per lane, a vector of i64; else None.
        subvectors: addresses of consecutive groups of lanes, equally long, that differ in their base. `base` is then
            that of the first; `offsets` and `vector` are None.
        in_bounds: whether every lane, masked or not, accesses the buffer or its padding.
        margin: elements around a strided access that may be read.
    """

    base: ir.Value
    offsets: tuple[int, ...] | None = None
    vector: ir.Value | None = None
    subvectors: tuple["Address", ...] = ()
    in_bounds: bool = False
    margin: ReadMargin = NO_MARGIN


@dataclass(frozen=True, slots=True)
class ActiveLanes:
    """The lanes that may access memory.

    Attributes:
        guard: condition for all lanes together; None for always.
        mask: condition per lane; None for all lanes.
        nonempty: whether the mask is known to have an active lane.
    """

    guard: ir.Value | None = None
    mask: ir.Value | None = None
    nonempty: bool = True


ALL_ACTIVE = ActiveLanes()


def offset_pointer(builder: ir.IRBuilder, dtype: DType, base: ir.Value, offset: ir.Value | int) -> ir.Value:
    """The pointer `offset` elements after `base`."""
    if isinstance(offset, int) and offset == 0:
        return base
    index = I64(offset) if isinstance(offset, int) else offset
    return builder.gep(base, [index], source_etype=memory_type(dtype))
