"""Initializers and tensor attributes as NumPy arrays, checked against their declared type and shape."""

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.errors import Problem
from tilewright.frontend.onnx.external import ExternalDataError, problem, read_external
from tilewright.graph.ir import Array
from tilewright.graph.onnx_types import ELEMENT_TYPES

_DENSE_LIMIT = 1 << 30
"""A sparse initializer that is larger than this (bytes) when dense is refused."""


class TensorDefectError(Exception):
    """A tensor whose data does not fit its type and shape; `problem` says how."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


def type_name(element_type: int) -> str:
    """ONNX's name of an element type: "float", "int64", "string", ..."""
    known = TensorProto.DataType.values()
    return TensorProto.DataType.Name(element_type).lower() if element_type in known else f"type {element_type}"


def is_supported(tensor: TensorProto) -> bool:
    """Whether the element type is one that the compiler has; the others stay with the reference evaluator."""
    return tensor.data_type in ELEMENT_TYPES


def to_array(tensor: TensorProto, folders: tuple[str, ...], where: str) -> Array:
    """The tensor's elements, C-contiguous and read-only.

    Args:
        tensor: of a supported element type.
        folders: where external data may lie.
        where: what errors call the tensor ("initializer 'w'").

    Raises:
        TensorDefectError: dimensions are negative, or there are more or fewer elements than they say, or external
            data can't be read.
    """
    dtype = ELEMENT_TYPES[tensor.data_type]
    shape = tuple(tensor.dims)
    if any(n < 0 for n in shape):
        raise TensorDefectError(Problem("initializer", where, f"has the negative dimension {min(shape)}"))
    count = math.prod(shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        try:
            raw = read_external(tensor, folders, count * dtype.bytes)
        except ExternalDataError as error:
            raise TensorDefectError(problem(tensor.name, error)) from error
        return _frozen(np.frombuffer(raw, dtype.numpy).reshape(shape))
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        if len(raw) != count * dtype.bytes:
            raise _size_defect(where, tensor, f"{count * dtype.bytes} bytes", f"{len(raw)} bytes")
        return _frozen(np.frombuffer(raw, dtype.numpy).reshape(shape))
    found = len(_typed_data(tensor))
    if found != count:
        raise _size_defect(where, tensor, f"{count} elements", str(found))
    return _frozen(np.ascontiguousarray(numpy_helper.to_array(tensor)).reshape(shape))


def sparse_to_array(tensor: onnx.SparseTensorProto) -> Array:
    """A sparse initializer as a dense array.

    Raises:
        TensorDefectError: indices or sizes do not fit.
    """
    where = f"initializer '{tensor.values.name}'"
    shape = tuple(tensor.dims)
    values = to_array(tensor.values, (), where)
    indices = to_array(tensor.indices, (), where)
    if any(n < 0 for n in shape) or math.prod(shape) * values.itemsize > _DENSE_LIMIT:
        raise TensorDefectError(Problem("initializer", where, f"sparse of shape {list(shape)} is too large"))
    dense = np.zeros(shape, values.dtype)
    try:
        flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
        dense.reshape(-1)[flat] = values
    except (IndexError, ValueError) as error:
        raise TensorDefectError(Problem("initializer", where, f"sparse indices do not fit: {error}")) from error
    return _frozen(dense)


def _size_defect(where: str, tensor: TensorProto, expected: str, found: str) -> TensorDefectError:
    form = f"{type_name(tensor.data_type)}{list(tensor.dims)}"
    return TensorDefectError(Problem("initializer", where, f"expected {expected} of data for {form}, got {found}"))


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


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array
