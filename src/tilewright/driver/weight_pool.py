"""The weights of an artifact: collected under unique names, equal ones once."""

import hashlib
from typing import Any

import numpy as np

from tilewright.names import unique_name

Array = np.ndarray[Any, Any]


class WeightPool:
    """Arrays by name in the order of their first use; arrays of equal type, shape and bits share one name."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._by_content: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._by_identity: dict[int, tuple[Array, str]] = {}

    def add(self, hint: str, array: Array) -> str:
        """The name of an array: a new one close to `hint`, or the one under which an equal array is kept."""
        seen = self._by_identity.get(id(array))
        if seen is not None and seen[0] is array:
            return seen[1]
        # not ascontiguousarray, which gives rank 1 to a scalar
        data = array if array.flags.c_contiguous else array.copy(order="C")
        digest = hashlib.sha256(data.reshape(-1).view(np.uint8).data).digest()
        key = (data.dtype.name, data.shape, digest)
        name = self._by_content.get(key)
        if name is None:
            name = unique_name(hint, self.arrays, separator=".", first=2)
            self.arrays[name] = data
            self._by_content[key] = name
        self._by_identity[id(array)] = (array, name)
        return name
