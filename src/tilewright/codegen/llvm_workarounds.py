"""Workarounds for LLVM 22: empty inline assembly hides from LLVM how a value was computed."""

from llvmlite import ir

from tilewright.codegen.llvm_types import constant, element_type, lane_count, shuffle
from tilewright.codegen.subvectors import concat_vectors
from tilewright.machine import Target


def opaque_gather_mask(builder: ir.IRBuilder, target: Target, mask: ir.Value, bits: int) -> ir.Value:
    """The mask of a gather of elements of `bits` bits, without lanes that LLVM knows.

    On x86 with masks in vector registers, LLVM 22 turns a masked access of several registers into an access of all
    lanes where it knows a part of a non-constant mask, such as `condition and lane < 4`. Constants and single
    comparisons are compiled correctly and stay as they are.
    """
    is_safe = isinstance(mask, ir.Constant) or getattr(mask, "opname", "") == "icmp"
    masks_in_vectors = target.has("avx") and not target.mask_registers
    lanes, register_lanes = lane_count(mask), 256 // bits
    if is_safe or not masks_in_vectors or bits not in (32, 64) or lanes <= register_lanes:
        return mask
    kind = ir.VectorType(ir.IntType(bits), register_lanes)
    identity = ir.InlineAsm(ir.FunctionType(kind, [kind]), "", "=x,0", side_effect=False)
    parts: list[ir.Value] = []
    for start in range(0, lanes, register_lanes):
        part = shuffle(builder, mask, mask, range(start, start + register_lanes))
        opaque = builder.call(identity, [builder.sext(part, kind)])
        parts.append(builder.icmp_signed("<", opaque, constant(kind, 0)))
    return concat_vectors(builder, parts)


def opaque_truncation(builder: ir.IRBuilder, target: Target, stored: ir.Value) -> ir.Value:
    """Integers to be stored under a mask, without the truncation that produced them.

    For AVX-512, LLVM 22 turns a masked store of truncated integers with a single active lane into a store of that lane
    before the truncation, which overwrites the elements after it.
    """
    kind = element_type(stored.type)
    if not isinstance(kind, ir.IntType) or kind.width > 32 or isinstance(stored, ir.Constant):
        return stored
    lanes = lane_count(stored)
    register_lanes = max(128 // kind.width, 1 << (lanes - 1).bit_length())
    if register_lanes * kind.width > 256 or not target.has("avx512f"):
        return stored
    register = ir.VectorType(kind, register_lanes)
    identity = ir.InlineAsm(ir.FunctionType(register, [register]), "", "=v,0", side_effect=False)
    padded = shuffle(builder, stored, stored, [min(k, lanes - 1) for k in range(register_lanes)])
    return shuffle(builder, builder.call(identity, [padded]), padded, range(lanes))
