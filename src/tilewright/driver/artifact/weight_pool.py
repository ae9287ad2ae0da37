"""The weights of an artifact under unique names; equal arrays are stored once."""

from typing import Any

import numpy as np

from tilewright.names import unique_name

Array = np.ndarray[Any, Any]


_SAMPLE_BYTES = 1000
"""About so many bytes of an array tell it from others; those that they do not are compared as a whole."""


class WeightPool:
    """Arrays by name in order of first use; arrays of equal type, shape and bits share a name.

    Attributes:
        arrays: the weights.
        sources: arrays of equal elements that weights are copies of, or the weights themselves, by name.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.sources: dict[str, Array] = {}
        self._by_sample: dict[tuple[str, tuple[int, ...], bytes], list[str]] = {}
        self._by_identity: dict[int, tuple[Array, str]] = {}

    def add(self, hint: str, array: Array, source: Array | None = None) -> str:
        """The name of an array: that of an equal array in the pool, or a new one made from `hint`.

        Args:
            hint: for the name.
            array: the array.
            source: the view that it is a copy of; None where it is none.
        """
        entry = self._by_identity.get(id(array))
        if entry is not None and entry[0] is array:
            return entry[1]
        # not ascontiguousarray, which gives rank 1 to a scalar
        data = array if array.flags.c_contiguous else array.copy(order="C")
        content = data.reshape(-1).view(np.uint8)
        # most arrays differ in a few elements already; hashing all of them would take as long as reading the model
        key = (data.dtype.name, data.shape, content[:: max(1, content.size // _SAMPLE_BYTES)].tobytes())
        alike = self._by_sample.setdefault(key, [])
        name = next((n for n in alike if np.array_equal(self.arrays[n].reshape(-1).view(np.uint8), content)), None)
        if name is None:
            name = unique_name(hint, self.arrays, separator=".", first=2)
            self.arrays[name] = data
            self.sources[name] = array if source is None else source
            alike.append(name)
        self._by_identity[id(array)] = (array, name)
        return name
