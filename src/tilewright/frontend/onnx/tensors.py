"""Conversion of tensors to NumPy arrays, checked against their declared type and shape."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.errors import Defect, pluralize
from tilewright.frontend.onnx.element_types import NATIVE_TYPES
from tilewright.frontend.onnx.external_data import ExternalDataError, external_data_problem, read_external
from tilewright.graph.ir import Array
from tilewright.graph.limits import MAX_RANK

_MAX_DENSE_BYTES = 1 << 30
"""Sparse initializers with a larger dense form are refused."""

_BIT_WIDTHS = {
    "string": 8, "complex64": 64, "complex128": 128, "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8,
    "float8e5m2fnuz": 8, "float8e8m0": 8, "float6e2m3": 6, "float6e3m2": 6, "float4e2m1": 4, "uint4": 4, "int4": 4,
    "uint2": 2, "int2": 2,
}  # fmt: skip
"""Bits of the element types that only the reference evaluator has; elements are packed without gaps. By name, because
older versions of `onnx` lack some."""

_MAX_SPAN_BYTES = (1 << 63) - 1
"""Bytes of a shape with its sizes of 0 taken as 1: strides are computed from the others."""


class TensorDefectError(Exception):
    """A tensor's data does not fit its type and shape; `problem` says how."""

    def __init__(self, problem: Defect) -> None:
        self.problem = problem
        super().__init__(str(problem))


def type_name(element_type: int) -> str:
    """ONNX's name of an element type: "float", "int64", "string", ..."""
    numbers = TensorProto.DataType.values()
    return TensorProto.DataType.Name(element_type).lower() if element_type in numbers else f"type {element_type}"


def has_native_type(tensor: TensorProto) -> bool:
    """Whether native code has the element type; the others are left to the reference evaluator."""
    return tensor.data_type in NATIVE_TYPES


def to_array(tensor: TensorProto, folders: tuple[str, ...], where: str) -> Array:
    """The tensor's elements, C-contiguous and read-only.

    Args:
        tensor: of a native element type.
        folders: folders that may contain external data.
        where: the tensor's name in errors ("initializer 'w'").

    Raises:
        TensorDefectError: dimensions are negative, the number of elements does not match them, or external data cannot
            be read.
    """
    if not has_native_type(tensor):
        raise TensorDefectError(Defect("initializer", where, f"type {type_name(tensor.data_type)} can't be read here"))
    dtype = NATIVE_TYPES[tensor.data_type]
    if tensor.data_location == TensorProto.EXTERNAL:
        shape = check_dims(tensor.dims, where)
        try:
            raw = read_external(tensor, folders, math.prod(shape) * dtype.bytes)
        except ExternalDataError as error:
            raise TensorDefectError(external_data_problem(where, error)) from error
        _check_span(shape, dtype.bytes * 8, where)
        return _read_only(np.frombuffer(raw, dtype.numpy).reshape(shape))
    shape = check_data(tensor, where)
    if tensor.HasField("raw_data"):
        return _read_only(np.frombuffer(tensor.raw_data, dtype.numpy).reshape(shape))
    return _read_only(np.ascontiguousarray(numpy_helper.to_array(tensor)).reshape(shape))


def check_data(tensor: TensorProto, where: str) -> tuple[int, ...]:
    """The shape of a tensor of any element type with embedded data, which is checked against type and shape.

    Raises:
        TensorDefectError: the data does not fit the type and shape.
    """
    bits = element_bits(tensor, where)
    shape = check_dims(tensor.dims, where)
    if tensor.HasField("segment"):
        raise TensorDefectError(Defect("initializer", where, "is one of several segments, which can't be read"))
    count = math.prod(shape)
    if not has_native_type(tensor):
        try:
            numpy_helper.to_array(tensor)
        except Exception as error:  # whatever NumPy raises for data of another length, or for strings in no encoding
            what = f"data do not fit {_type_text(tensor)}: {error}"
            raise TensorDefectError(Defect("initializer", where, what)) from error
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != count * bits // 8:
            raise _size_defect(where, tensor, f"{count * bits // 8} bytes", f"{len(tensor.raw_data)} bytes")
    elif len(_typed_data(tensor)) != count:
        raise _size_defect(where, tensor, f"{pluralize(count, 'element')}", str(len(_typed_data(tensor))))
    else:
        _check_range(tensor, where)
    _check_span(shape, bits, where)
    return shape


def _check_range(tensor: TensorProto, where: str) -> None:
    """Raises TensorDefectError where integers stored in 32 bits are out of their type's range."""
    dtype = NATIVE_TYPES[tensor.data_type]
    if dtype.kind not in "iu" or dtype.bits >= 32 or not tensor.int32_data:
        return
    limits, values = np.iinfo(dtype.numpy), np.array(tensor.int32_data, np.int64)
    if values.min() < limits.min or values.max() > limits.max:
        what = f"expected {limits.min} to {limits.max} for {_type_text(tensor)}, got {values.min()} to {values.max()}"
        raise TensorDefectError(Defect("initializer", where, what))


def element_bits(tensor: TensorProto, where: str) -> int:
    """The stored width of an element; 8 for strings.

    Raises:
        TensorDefectError: the element type is not one of ONNX's.
    """
    if has_native_type(tensor):
        return 8 * NATIVE_TYPES[tensor.data_type].bytes
    width = _BIT_WIDTHS.get(type_name(tensor.data_type))
    if width is None:
        raise TensorDefectError(Defect("initializer", where, f"has no element type ({type_name(tensor.data_type)})"))
    return width


def check_dims(dims: Sequence[int], where: str) -> tuple[int, ...]:
    """The sizes of a tensor, which a NumPy array can have.

    Args:
        dims: sizes as the model states them.
        where: what errors call the tensor.

    Raises:
        TensorDefectError: one is negative, or they are too many.
    """
    shape = tuple(dims)
    if any(n < 0 for n in shape):
        raise TensorDefectError(Defect("initializer", where, f"has the negative dimension {min(shape)}"))
    if len(shape) > MAX_RANK:
        what = f"expected at most {MAX_RANK} dimensions, got {len(shape)}"
        raise TensorDefectError(Defect("initializer", where, what))
    return shape


def _check_span(shape: Sequence[int], bits: int, where: str) -> None:
    if math.prod(max(1, n) for n in shape) * bits // 8 > _MAX_SPAN_BYTES:
        raise TensorDefectError(Defect("initializer", where, f"dimensions {list(shape)} span more than 2^63 bytes"))


def sparse_to_array(tensor: onnx.SparseTensorProto, where: str = "") -> Array:
    """A sparse tensor as a dense array.

    Args:
        tensor: values [n], and indices [n] into the flattened shape or [n, rank], int64 and each once.
        where: what errors call the tensor; an initializer by default.

    Raises:
        TensorDefectError: indices, values or sizes do not fit.
    """
    where = where or f"initializer '{tensor.values.name}'"
    values = to_array(tensor.values, (), where)
    indices = to_array(tensor.indices, (), f"{where}, sparse indices")
    shape = check_dims(tensor.dims, where)
    _check_span(shape, values.itemsize * 8, where)
    if math.prod(shape) * values.itemsize > _MAX_DENSE_BYTES:
        raise TensorDefectError(Defect("initializer", where, f"sparse of shape {list(shape)} is too large"))
    if indices.dtype != np.int64:
        raise _sparse_defect(where, f"expected type int64, got {indices.dtype.name}")
    if values.ndim != 1 or indices.shape not in (values.shape, (*values.shape, len(shape))):
        raise _sparse_defect(where, f"got shape {list(indices.shape)} for values of shape {list(values.shape)}")
    columns = [indices] if indices.ndim == 1 else list(indices.T)
    sizes = [math.prod(shape)] if indices.ndim == 1 else list(shape)
    if any(((c < 0) | (c >= n)).any() for c, n in zip(columns, sizes, strict=True)):
        raise _sparse_defect(where, f"some lie outside of shape {list(shape)}")
    flat = indices if indices.ndim == 1 else sum((c * s for c, s in zip(columns, _strides(shape), strict=True)), 0)
    if np.unique(flat).size != values.size:
        raise _sparse_defect(where, "some occur more than once")
    dense = np.zeros(shape, values.dtype)
    dense.reshape(-1)[flat] = values
    return _read_only(dense)


def _strides(shape: Sequence[int]) -> list[int]:
    """Distances in elements between neighbours along each dimension."""
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _sparse_defect(where: str, what: str) -> TensorDefectError:
    return TensorDefectError(Defect("initializer", where, f"sparse indices do not fit: {what}"))


def _size_defect(where: str, tensor: TensorProto, expected: str, actual: str) -> TensorDefectError:
    what = f"expected {expected} of data for {_type_text(tensor)}, got {actual}"
    return TensorDefectError(Defect("initializer", where, what))


def _type_text(tensor: TensorProto) -> str:
    return f"{type_name(tensor.data_type)}{list(tensor.dims)}"


def _typed_data(tensor: TensorProto) -> Any:
    if tensor.data_type == TensorProto.FLOAT:
        return tensor.float_data
    if tensor.data_type == TensorProto.DOUBLE:
        return tensor.double_data
    if tensor.data_type == TensorProto.INT64:
        return tensor.int64_data
    if tensor.data_type in (TensorProto.UINT32, TensorProto.UINT64):
        return tensor.uint64_data
    return tensor.int32_data


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array
