"""Weights as views of the bytes of a model's files, so that a kept compilation need not hold them.

Most weights are an initializer as it is or packed by a strided view (`expr.strided_view`). Their memory tells that: it
lies inside of the initializer's, so where the view begins and its strides say which bytes of the file it reads.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tilewright.driver.model_cache.tensor_positions import TensorPosition
from tilewright.machine.alignment import aligned_empty

Array = np.ndarray[Any, Any]


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
class LoadedArray:
    """An initializer as a model was loaded, which may be gone since.

    Attributes:
        start, size: of its memory, in bytes.
        owner: the array that its memory lives as long as.
    """

    start: int
    size: int
    owner: "ref[Array]"

    @staticmethod
    def of(array: Array) -> "LoadedArray | None":
        """The record of an array; None where its elements do not follow each other, or there are none."""
        if not array.flags.c_contiguous or not array.nbytes:
            return None
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return LoadedArray(array.__array_interface__["data"][0], array.nbytes, ref(owner))


class SourceBytes:
    """The initializers of a model in memory, with the bytes of its files."""

    def __init__(
        self,
        loaded: Mapping[str, LoadedArray],
        positions: Sequence[TensorPosition],
        contents: Mapping[str, Array],
    ) -> None:
        """Args: initializers by name, the positions of the model's tensors, the content of its files by location."""
        self._contents = contents
        blocks = [(loaded[p.name], p) for p in positions if p.is_initializer and p.name in loaded]
        alive = [(x, p) for x, p in blocks if x.owner() is not None and p.length in (None, x.size)]
        self._blocks = sorted(alive, key=lambda b: b[0].start)
        self._block_starts = [x.start for x, _ in self._blocks]
        self._is_equal: dict[int, bool] = {}

    def view_of(self, array: Array) -> FileView | None:
        """Where an array lies in the files; None where it is no view of an initializer whose bytes are theirs."""
        if not array.size or any(s < 0 for s in array.strides):
            return None
        low, high = byte_bounds(array)
        index = bisect_right(self._block_starts, low) - 1
        if index < 0:
            return None
        block, position = self._blocks[index]
        if high > block.start + block.size or not self._has_bytes_of_file(index):
            return None
        return FileView(position.location, position.offset + low - block.start, tuple(array.strides))

    def _has_bytes_of_file(self, index: int) -> bool:
        """Whether the file has the bytes of an initializer where its position says."""
        if index not in self._is_equal:
            block, position = self._blocks[index]
            content, owner = self._contents.get(position.location), block.owner()
            self._is_equal[index] = False
            if content is not None and owner is not None:
                first = position.offset
                self._is_equal[index] = np.array_equal(content[first : first + block.size], _memory(block, owner))
        return self._is_equal[index]


def _memory(block: LoadedArray, owner: Array) -> Array:
    """The bytes of an initializer in the memory of its owner."""
    first = block.start - owner.__array_interface__["data"][0]
    return owner.reshape(-1).view(np.uint8)[first : first + block.size]


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
