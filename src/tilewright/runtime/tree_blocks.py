"""Memory that a step tree hands over: blocks with large results become arrays without a copy.

Native code allocates it with `malloc`; here it is freed with the last reference.
"""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.machine.alignment import BUFFER_ALIGNMENT
from tilewright.machine.tree_call import BLOCK_WORDS

HANDED_OVER_BYTES = 1 << 16
"""Results with fewer bytes are copied, which takes less time than to make an array of their block."""

_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = (ctypes.c_void_p,), None
_Header = ctypes.c_size_t * len(BLOCK_WORDS)
_BASE, _NEXT, _BYTES = (BLOCK_WORDS.index(name) for name in ("base", "next", "bytes"))


class NativeMemory:
    """Memory from `malloc`, freed with its last reference; NumPy arrays can be made of its bytes."""

    __slots__ = ("_base", "address", "size")

    def __init__(self, base: int, address: int, size: int) -> None:
        """Args: the address to free, that of the data, and the bytes of data."""
        self._base, self.address, self.size = base, address, size

    @property
    def __array_interface__(self) -> dict[str, object]:
        """The data as bytes, in NumPy's terms."""
        return {"version": 3, "shape": (self.size,), "typestr": "|u1", "data": (self.address, False)}

    def __del__(self, free: Callable[[int], object] = _free) -> None:
        # not by code of the model, which may be gone where the garbage collector takes both
        free(self._base)


def take_blocks(first: int) -> dict[int, NativeMemory]:
    """The blocks of a list by the address of their data; they are freed with them.

    Args:
        first: address of the data of the first block, or 0.
    """
    blocks: dict[int, NativeMemory] = {}
    while first:
        header = _Header.from_address(first - BUFFER_ALIGNMENT)
        blocks[first] = NativeMemory(header[_BASE], first, header[_BYTES])
        first = header[_NEXT]
    return blocks


def array_on_block(
    blocks: dict[int, NativeMemory], address: int, shape: Sequence[int], dtype: np.dtype
) -> np.ndarray | None:
    """An array on the block at an address, which is no longer among the blocks then; None where the memory is not a
    block, belongs to another array, or is far larger than the array, as that of stacked results may be.

    Args:
        blocks: the result of `take_blocks`.
        address: of the array's data.
        shape: of the array, with fewer bytes than the block.
        dtype: of the array.
    """
    block = blocks.get(address)
    if block is None:
        return None
    count = dtype.itemsize
    for size in shape:
        count *= size
    if count < HANDED_OVER_BYTES or block.size > 2 * count:
        return None
    del blocks[address]
    return np.ndarray(shape, dtype, np.asarray(block))
