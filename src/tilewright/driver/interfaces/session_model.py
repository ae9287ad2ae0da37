"""The ONNX model behind a session: initializers that options or feeds replace, and sizes by denotation."""

import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.driver.interfaces.ort_value import array_of
from tilewright.errors import OptionError

if TYPE_CHECKING:
    import onnx

_FIRST_OVERRIDABLE_IR = 4
"""The version of the format since which an initializer that is an input, too, is the input's default."""


def load_model(source: str | os.PathLike[str] | bytes, with_data: bool = True) -> "onnx.ModelProto":
    """The model, with its external data or without, of a file that was compiled before."""
    import onnx  # only sessions with such options need it

    if isinstance(source, bytes):
        return onnx.load_model_from_string(source)
    return onnx.load(Path(source), load_external_data=with_data)


def overridable_initializers(model: "onnx.ModelProto") -> dict[str, "onnx.ValueInfoProto"]:
    """The inputs whose default is an initializer, by name."""
    if model.ir_version < _FIRST_OVERRIDABLE_IR:
        return {}
    names = {t.name for t in model.graph.initializer}
    return {v.name: v for v in model.graph.input if v.name in names}


def remove_initializers(model: "onnx.ModelProto", names: Container[str]) -> None:
    """Makes inputs of these names have no default, in place."""
    tensors = model.graph.initializer
    for k in reversed(range(len(tensors))):
        if tensors[k].name in names:
            del tensors[k]


def replace_initializers(model: "onnx.ModelProto", values: Mapping[str, Any]) -> None:
    """Gives initializers other data, in place.

    Raises:
        OptionError: the model has no such initializer, or the data has another shape or type.
    """
    from onnx import helper, numpy_helper

    tensors = {t.name: t for t in model.graph.initializer}
    for name, value in values.items():
        where = f"initializer '{name}'"
        if name not in tensors:
            raise OptionError("the model has no such initializer", where=where)
        array, tensor = np.asarray(array_of(value), order="C"), tensors[name]
        dtype, shape = helper.tensor_dtype_to_np_dtype(tensor.data_type), list(tensor.dims)
        if array.dtype != dtype or list(array.shape) != shape:
            raise OptionError(f"expected {dtype} {shape}, got {array.dtype} {list(array.shape)}", where=where)
        tensor.CopyFrom(numpy_helper.from_array(array, name))


def sizes_by_denotation(model: "onnx.ModelProto", denotations: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the named dimensions of inputs that the model marks with these denotations."""
    dims = [d for v in model.graph.input for d in v.type.tensor_type.shape.dim]
    return {d.dim_param: denotations[d.denotation] for d in dims if d.dim_param and d.denotation in denotations}
