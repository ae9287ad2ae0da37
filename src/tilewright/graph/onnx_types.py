"""ONNX's numbers for element types, as data; nothing here imports `onnx`."""

from tilewright.expr import dtype as types
from tilewright.expr.dtype import DType

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
"""Element types by `TensorProto.DataType`; strings, complex numbers and types of less than a byte are missing."""

ELEMENT_NUMBERS: dict[DType, int] = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
"""The inverse of `ELEMENT_TYPES`."""
