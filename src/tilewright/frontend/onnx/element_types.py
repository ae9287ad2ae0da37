"""ONNX's numbers of element types, as data without an import of `onnx`."""

from tilewright.expr import dtype as types
from tilewright.expr.dtype import NON_NATIVE_DTYPES, DType

NATIVE_TYPES: dict[int, DType] = {
    1: types.float32,
    2: types.uint8,
    3: types.int8,
    4: types.uint16,
    5: types.int16,
    6: types.int32,
    7: types.int64,
    9: types.boolean,
    10: types.float16,
    11: types.float64,
    12: types.uint32,
    13: types.uint64,
    16: types.bfloat16,
}
"""Element types with native code, by `TensorProto.DataType`."""

REFERENCE_ONLY_TYPES: dict[int, DType] = {
    8: NON_NATIVE_DTYPES["string"],
    14: NON_NATIVE_DTYPES["complex64"],
    15: NON_NATIVE_DTYPES["complex128"],
    17: NON_NATIVE_DTYPES["float8_e4m3fn"],
    18: NON_NATIVE_DTYPES["float8_e4m3fnuz"],
    19: NON_NATIVE_DTYPES["float8_e5m2"],
    20: NON_NATIVE_DTYPES["float8_e5m2fnuz"],
    21: NON_NATIVE_DTYPES["uint4"],
    22: NON_NATIVE_DTYPES["int4"],
    23: NON_NATIVE_DTYPES["float4_e2m1fn"],
    24: NON_NATIVE_DTYPES["float8_e8m0fnu"],
    25: NON_NATIVE_DTYPES["uint2"],
    26: NON_NATIVE_DTYPES["int2"],
}
"""Element types that only the reference evaluator has, by number."""

ELEMENT_TYPES: dict[int, DType] = NATIVE_TYPES | REFERENCE_ONLY_TYPES
"""Element types by number."""

ELEMENT_TYPE_NUMBERS: dict[DType, int] = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
"""The inverse of `ELEMENT_TYPES`."""
