"""ONNX's numbers for element types, as data; nothing here imports `onnx`."""

from tilewright.expr import dtype as types
from tilewright.expr.dtype import LOOSE_DTYPES, DType

ELEMENT_TYPES: dict[int, DType] = {
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
"""Element types by `TensorProto.DataType`; those that native code computes with."""

LOOSE_TYPES: dict[int, DType] = {
    8: LOOSE_DTYPES["string"],
    14: LOOSE_DTYPES["complex64"],
    15: LOOSE_DTYPES["complex128"],
    17: LOOSE_DTYPES["float8_e4m3fn"],
    18: LOOSE_DTYPES["float8_e4m3fnuz"],
    19: LOOSE_DTYPES["float8_e5m2"],
    20: LOOSE_DTYPES["float8_e5m2fnuz"],
    21: LOOSE_DTYPES["uint4"],
    22: LOOSE_DTYPES["int4"],
    23: LOOSE_DTYPES["float4_e2m1fn"],
    24: LOOSE_DTYPES["float8_e8m0fnu"],
    25: LOOSE_DTYPES["uint2"],
    26: LOOSE_DTYPES["int2"],
}
"""Element types by number of tensors that only the reference evaluator computes with."""

ALL_TYPES: dict[int, DType] = ELEMENT_TYPES | LOOSE_TYPES
"""Element types by number."""

ELEMENT_NUMBERS: dict[DType, int] = {dtype: number for number, dtype in ALL_TYPES.items()}
"""The inverse of `ALL_TYPES`."""
