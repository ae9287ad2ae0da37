"""Element types: one frozen record per type, with its NumPy counterpart and its size in memory."""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from tilewright.errors import OptionError


@cache
def _numpy_dtype(name: str) -> np.dtype:
    return np.dtype(object) if name in ("string", "any") else np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type; the instances of this module are all there are, so equality is identity.

    Attributes:
        name: the NumPy name ("float32", "int64", "bool", ...).
        kind: "f" floating point, "i" signed, "u" unsigned, "b" bool, "o" opaque: not computed by native code.
        bits: bits in memory; bool takes 8.
    """

    name: str
    kind: str
    bits: int

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """Whether values are signed or unsigned integers (bool is not)."""
        return self.kind in "iu"

    @property
    def integer_range(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        if self.kind == "u":
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    @property
    def is_native(self) -> bool:
        """Whether native code computes with the type; values of other types only pass between fallback nodes."""
        return self.kind != "o"

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype of the same memory representation; object for strings and for values that are not tensors."""
        return _numpy_dtype(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


float16 = DType("float16", "f", 16)
bfloat16 = DType("bfloat16", "f", 16)
float32 = DType("float32", "f", 32)
float64 = DType("float64", "f", 64)
int8 = DType("int8", "i", 8)
int16 = DType("int16", "i", 16)
int32 = DType("int32", "i", 32)
int64 = DType("int64", "i", 64)
uint8 = DType("uint8", "u", 8)
uint16 = DType("uint16", "u", 16)
uint32 = DType("uint32", "u", 32)
uint64 = DType("uint64", "u", 64)
boolean = DType("bool", "b", 8)

DTYPES: dict[str, DType] = {
    t.name: t
    for t in (
        float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, boolean,
    )
}  # fmt: skip

opaque = DType("any", "o", 64)
"""The type of values other than tensors of known rank: sequences, optionals, maps."""

NON_NATIVE_DTYPES: dict[str, DType] = {
    name: DType(name, "o", bits)
    for name, bits in (
        ("string", 64), ("complex64", 64), ("complex128", 128), ("float8_e4m3fn", 8), ("float8_e4m3fnuz", 8),
        ("float8_e5m2", 8), ("float8_e5m2fnuz", 8), ("float8_e8m0fnu", 8), ("float4_e2m1fn", 8), ("int4", 8),
        ("uint4", 8), ("int2", 8), ("uint2", 8),
    )
}  # fmt: skip
"""Element types that native code does not compute with; sub-byte types occupy one byte per element."""


def dtype_of(source: "str | np.dtype | DType") -> DType:
    """The `DType` of a name or NumPy dtype.

    Raises:
        OptionError: native code does not support the type.
    """
    if isinstance(source, DType):
        return source
    name = source if isinstance(source, str) else np.dtype(source).name
    if name not in DTYPES:
        raise OptionError(f"element type {name!r} is not supported", hint=f"use one of {', '.join(DTYPES)}")
    return DTYPES[name]
