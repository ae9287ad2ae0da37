"""Weights as views of the bytes of a model's files, so that a kept compilation need not hold them.

Most weights are an initializer as it is or packed by a strided view (`expr.strided_view`). Their memory tells that: it
lies inside of the initializer's, so where the view begins and its strides say which bytes of the file it reads.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tilewright.driver.model_cache.tensor_positions import TensorPosition
from tilewright.machine.alignment import aligned_empty

Array = np.ndarray[Any, Any]

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileView:
    """Where a weight comes from.

    Attributes:
        location: of the file with its bytes; "" for the model's.
        offset: of its first element there.
        strides: distances of elements in bytes, per dimension; none is negative.
    """

    location: str
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileBlock:
    """The memory of an initializer, which may be gone since, and the bytes of a file that it has.

    Attributes:
        start, size: of the memory, in bytes.
        owner: the array that the memory lives as long as.
        location: of the file; "" for the model's own.
        offset: of the bytes in it.
    """

    start: int
    size: int
    owner: "ref[Array]"
    location: str
    offset: int


def file_block(position: TensorPosition, array: Array | None, content: Array) -> FileBlock | None:
    """The block of an initializer; None where it has other bytes than the file, or its elements do not follow each
    other.

    Args:
        position: of the initializer in the file.
        array: as it was loaded; None where it was not.
        content: of the file, an array of bytes.
    """
    if array is None or not position.is_initializer or not array.flags.c_contiguous or array.dtype.hasobject:
        return None
    size = array.nbytes
    if position.length not in (None, size) or position.offset + size > content.size:
        return None
    if size and not _are_equal(array.reshape(-1).view(np.uint8), content[position.offset : position.offset + size]):
        return None
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    start = int(array.__array_interface__["data"][0])
    return FileBlock(start, size, ref(owner), position.location, position.offset)


def _are_equal(a: Array, b: Array) -> bool:
    """Whether two arrays of bytes are; piece by piece, as NumPy keeps a result per byte."""
    return all(np.array_equal(a[k : k + _PIECE_BYTES], b[k : k + _PIECE_BYTES]) for k in range(0, a.size, _PIECE_BYTES))


class FileBlocks:
    """Blocks by their memory.

    Args:
        blocks: those of a model.
    """

    def __init__(self, blocks: Sequence[FileBlock]) -> None:
        alive = [b for b in blocks if b.size and b.owner() is not None]
        self._blocks = sorted(alive, key=lambda b: b.start)
        self._block_starts = [b.start for b in self._blocks]

    def view_of(self, array: Array) -> FileView | None:
        """Where an array lies in the files; None where it is no view of a block."""
        if not array.size or any(s < 0 for s in array.strides):
            return None
        low, high = byte_bounds(array)
        index = bisect_right(self._block_starts, low) - 1
        if index < 0:
            return None
        block = self._blocks[index]
        if high > block.start + block.size:
            return None
        return FileView(block.location, block.offset + low - block.start, tuple(array.strides))


def weight_of(view: FileView, dtype: np.dtype[Any], shape: tuple[int, ...], content: Array) -> Array:
    """A copy of what a view reads, contiguous and aligned.

    Args:
        view: of the content.
        dtype, shape: of the weight.
        content: the bytes of the file.

    Raises:
        ValueError: it reaches beyond the content.
    """
    steps = zip(shape, view.strides, strict=True)
    size = sum((n - 1) * s for n, s in steps) + dtype.itemsize
    if 0 in shape or min(view.strides, default=0) < 0 or not 0 <= view.offset <= content.size - size:
        raise ValueError("a weight lies outside of the file")
    result = aligned_empty(shape, dtype)
    source, first = content, view.offset
    address = content.__array_interface__["data"][0] + first
    if address % dtype.alignment or any(s % dtype.alignment for s in view.strides):
        # copies from elements that are not aligned take several times as long
        source, first = aligned_empty((size,), np.uint8), 0
        source[...] = content[view.offset : view.offset + size]
    result[...] = np.ndarray(shape, dtype, source, first, view.strides)
    return result
