"""Cast and CastLike: conversions of element types."""

from tilewright.errors import ShapeError
from tilewright.expr.dtype import (
    DType,
    bfloat16,
    boolean,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tilewright.expr.operations import cast
from tilewright.ops.definition import Definition, OpValue, operator

ONNX_DTYPES: dict[int, DType] = {
    1: float32, 2: uint8, 3: int8, 4: uint16, 5: int16, 6: int32, 7: int64, 9: boolean, 10: float16, 11: float64,
    12: uint32, 13: uint64, 16: bfloat16,
}  # fmt: skip
"""Element types by number in TensorProto.DataType."""


def attribute_dtype(d: Definition, name: str, default: DType | None = None) -> DType:
    """The element type that an attribute names.

    Raises:
        ShapeError: the attribute is missing and has no default.
        UnsupportedError: native code does not support the type (strings, complex numbers, sub-byte types).
    """
    if name not in d.attributes:
        if default is None:
            raise ShapeError(f"attribute {name} is missing", where=f"node {d.label}")
        return default
    number = d.attr_int(name, 0)
    if number not in ONNX_DTYPES:
        raise d.unsupported(f"element type number {number}")
    return ONNX_DTYPES[number]


def convert(d: Definition, x: OpValue, dtype: DType) -> OpValue:
    """`x` converted to `dtype`; `x` itself where it has that type."""
    if x.dtype == dtype:
        return x
    return d.compute(x.shape, lambda *i: cast(dtype, x[i]))


@operator("Cast", ignores=("saturate", "round_mode"))
def cast_to(d: Definition) -> OpValue:
    """Conversion to the type `to`; floats are truncated to integers, bool means != 0.

    `saturate` and `round_mode` only concern 8-bit floats, which are not supported.
    """
    return convert(d, d.input(0), attribute_dtype(d, "to"))


@operator("CastLike", ignores=("saturate", "round_mode"))
def cast_like(d: Definition) -> OpValue:
    """Conversion to the type of input 1."""
    return convert(d, d.input(0), d.input(1).dtype)
