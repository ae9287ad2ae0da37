"""Weight section of an artifact in the safetensors format: a JSON header and raw little-endian data, memory-mapped.

The format (huggingface.co/docs/safetensors) is an 8-byte little-endian header length, a JSON header with dtype, shape
and byte range of every tensor, and the data without holes. It aligns to the element size only; generated code needs
whole cache lines, so small padding tensors named `__pad__...` stand between the weights, and one after the last: masked
loads may reach over a weight's end, which is slow where the next page is not present.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import ArtifactError
from tilewright.machine.alignment import BUFFER_ALIGNMENT, GUARD_BYTES, aligned_empty
from tilewright.runtime.schema import DAMAGED, as_array, as_integer, as_object, as_text, field, parse_object

_PAD = "__pad__"
_METADATA = "__metadata__"

_SAFETENSORS_CODES = {
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "bool": "BOOL",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
_DTYPE_NAMES = {code: name for name, code in _SAFETENSORS_CODES.items()}


def numpy_dtype(name: str) -> np.dtype:
    """NumPy dtype of an element type's name; an object dtype for "string" and "any"."""
    if name in ("string", "any"):
        return np.dtype(object)
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True, slots=True)
class WeightSection:
    """A section ready to be written: its header, and in order the arrays with the padding before each; the last array
    is empty and ends the section."""

    header: bytes
    arrays: tuple[tuple[int, np.ndarray], ...]
    length: int

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes of the section, in order, without copying the weights."""
        yield self.header
        for padding, data in self.arrays:
            if padding:
                yield bytes(padding)
            if data.size:
                raw: Any = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
                yield memoryview(raw)


def make_weight_section(weights: Mapping[str, np.ndarray], where: str) -> WeightSection:
    """A section in which every weight starts on a 64-byte boundary, given that the section does.

    Raises:
        ArtifactError: a weight's name or dtype cannot be stored.
    """
    header: dict[str, object] = {_METADATA: {"format": "tilewright"}}
    arrays: list[tuple[int, np.ndarray]] = []
    offset = 0
    for name, data in weights.items():
        code = _SAFETENSORS_CODES.get(data.dtype.name)
        if code is None or data.dtype.byteorder == ">":
            raise ArtifactError(f"weight '{name}' has the type {data.dtype.str}, which can't be stored", where=where)
        if name == _METADATA or name.startswith(_PAD):
            raise ArtifactError(f"weight name '{name}' is reserved", where=where)
        padding = -offset % BUFFER_ALIGNMENT
        if padding:
            header[f"{_PAD}{len(arrays)}"] = _header_entry("U8", (padding,), offset, padding)
        header[name] = _header_entry(code, data.shape, offset + padding, data.nbytes)
        arrays.append((padding, data))
        offset += padding + data.nbytes
    if arrays:
        header[f"{_PAD}{len(arrays)}"] = _header_entry("U8", (GUARD_BYTES,), offset, GUARD_BYTES)
        arrays.append((GUARD_BYTES, np.empty(0, np.uint8)))
        offset += GUARD_BYTES
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-(8 + len(text)) % BUFFER_ALIGNMENT)
    prefix = len(text).to_bytes(8, "little") + text
    return WeightSection(prefix, tuple(arrays), len(prefix) + offset)


def _header_entry(code: str, shape: tuple[int, ...], start: int, length: int) -> dict[str, object]:
    return {"dtype": code, "shape": list(shape), "data_offsets": [start, start + length]}


def read_weights(section: memoryview, where: str) -> dict[str, np.ndarray]:
    """The weights of a section as read-only arrays on its memory.

    Raises:
        ArtifactError: the header is damaged, or a tensor's range is outside of the data or does not fit its shape.
    """
    length = int.from_bytes(section[:8], "little") if len(section) >= 8 else 0
    if len(section) < 8 or 8 + length > len(section):
        raise ArtifactError("the weights' header is cut off", where=where, hint=DAMAGED)
    header = parse_object(bytes(section[8 : 8 + length]), where, "the weights' header")
    data = section[8 + length :]
    weights: dict[str, np.ndarray] = {}
    for name, value in header.items():
        if name != _METADATA and not name.startswith(_PAD):
            weights[name] = _read_tensor(name, value, data, where)
    return weights


def _read_tensor(name: str, value: object, data: memoryview, where: str) -> np.ndarray:
    what = f"weight '{name}'"
    obj = as_object(value, where, what)
    code = as_text(field(obj, "dtype", where), where, f"{what} dtype")
    if code not in _DTYPE_NAMES:
        raise ArtifactError(f"{what} has the unknown type '{code}'", where=where, hint=DAMAGED)
    dtype = numpy_dtype(_DTYPE_NAMES[code])
    shape = as_array(field(obj, "shape", where), where, f"{what} shape", as_integer)
    offsets = as_array(field(obj, "data_offsets", where), where, f"{what} data_offsets", as_integer)
    # Python integers, so that absurd sizes cannot wrap
    count = 1
    for size in shape:
        count *= size
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(data):
        raise ArtifactError(f"{what} lies outside the file", where=where, hint=DAMAGED)
    if offsets[1] - offsets[0] != count * dtype.itemsize:
        length = offsets[1] - offsets[0]
        what = f"{what} expected {count * dtype.itemsize} bytes for its shape, got {length}"
        raise ArtifactError(what, where=where, hint=DAMAGED)
    return np.frombuffer(data, dtype=dtype, count=count, offset=offsets[0]).reshape(shape)


def align_array(array: np.ndarray) -> np.ndarray:
    """The array itself where it is C-contiguous and starts on a 64-byte boundary, otherwise a copy that does."""
    if array.flags.c_contiguous and array.__array_interface__["data"][0] % BUFFER_ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy
