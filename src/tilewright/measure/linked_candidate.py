"""A built candidate that is linked into this process, and bound to operands, on which it is then called."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.measure.build import BuiltCandidate, BuiltFunction
from tilewright.measure.timing import time_calls
from tilewright.runtime.call_frame import address_of
from tilewright.runtime.linker import link_functions
from tilewright.runtime.weights import align_array, numpy_dtype

Array = np.ndarray[Any, Any]

NOT_WRITTEN = 0xFF
"""Bytes of outputs and workspace before a checked call, NaN in all types of floats: what is not written is noticed."""


class LinkedCandidate:
    """A candidate's functions in this process."""

    def __init__(self, built: BuiltCandidate, threads: int) -> None:
        self._built, self._threads = built, threads
        functions = [f for f in (built.kernel, built.prepack) if f is not None]
        self._library = link_functions(built.code, [f.name for f in functions], "a candidate")

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the prepacked constants."""
        packing = self._built.prepack
        return () if packing is None else tuple(p.name for p in packing.parameters if p.is_written)

    def bind(self, case: int, operands: Mapping[str, Array]) -> "BoundCandidate":
        """The candidate with operands for a case; prepacked constants that are not among them are computed."""
        arrays = dict(operands)
        is_packed = all(name in arrays for name in self.constants)
        for function in (self._built.prepack, self._built.kernel):
            for p in function.parameters if function is not None else ():
                if p.name not in arrays:
                    shape = p.shapes[case]
                    shape = (self._threads, *shape[1:]) if p.is_private else shape
                    arrays[p.name] = poisoned(shape, p.dtype)
        if self._built.prepack is not None and not is_packed:
            self._call(self._built.prepack, case, arrays, 1)()
        call = self._call(self._built.kernel, case, arrays, self._threads)
        return BoundCandidate(self._built.kernel, arrays, call, self)

    def _call(self, f: BuiltFunction, case: int, arrays: Mapping[str, Array], threads: int) -> Callable[[], object]:
        kinds = [ctypes.c_void_p] * len(f.parameters) + [ctypes.c_int64] * (len(f.symbols[case]) + 1)
        function = ctypes.CFUNCTYPE(None, *kinds)(self._library.addresses[f.name])
        arguments = (*(address_of(arrays[p.name]) for p in f.parameters), *f.symbols[case], threads)
        return lambda: function(*arguments)


@dataclass(frozen=True, slots=True)
class BoundCandidate:
    """A kernel with its operands, which a call without arguments runs on, and what owns its code."""

    kernel: BuiltFunction
    arrays: Mapping[str, Array]
    call: Callable[[], object]
    owner: "LinkedCandidate"

    def checked_call(self) -> "CheckedCall":
        """One call on outputs and workspace in which nothing looks written."""
        written = [p.name for p in self.kernel.parameters if p.is_written]
        for name in written:
            self.arrays[name].reshape(-1).view(np.uint8)[...] = NOT_WRITTEN
        (seconds,) = time_calls(self.call, 1)
        return CheckedCall({name: self.arrays[name].copy() for name in written}, seconds)


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """Copies of what a call wrote, by parameter, and how long it took."""

    results: Mapping[str, Array]
    seconds: float


def poisoned(shape: tuple[int, ...], dtype: str) -> Array:
    """An array in which nothing looks written."""
    kind = numpy_dtype(dtype)
    raw = np.full(int(np.prod(shape, dtype=np.int64)) * kind.itemsize, NOT_WRITTEN, np.uint8)
    return align_array(raw).view(kind).reshape(shape)
