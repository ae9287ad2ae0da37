"""What a native call needs besides its inputs, prepared once and used by one call at a time: the arrays of pointers as
native code reads them, and the memory of the outputs.

The memory of outputs that the caller has dropped serves the next call with the same sizes: it lies at a cache line, and
the system need not map its pages again. Memory that anything still refers to, a view of a view included, is never
touched: NumPy lets every view hold the array that owns the memory, so that array's references tell.
"""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount

import numpy as np

from tilewright.runtime.entry import CONTEXT, entry, expected_words, has_entries
from tilewright.runtime.pages import populate

ALIGNMENT = 64


def _kept_bytes() -> int:
    """An eighth of the machine's memory; half a GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (AttributeError, OSError, ValueError):
        return 512 << 20


KEPT_BYTES = _kept_bytes()
"""Bytes of the outputs of a call beyond which their memory is not kept. Fresh memory is zeroed and mapped page by page
while the kernel writes, which may take as long as the kernel itself."""

KEPT = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether memory of outputs is kept at all: without a global lock another thread may take or drop a reference while
references are counted."""

_Word = ctypes.c_size_t
_word_at = _Word.from_address


def _data_field() -> int | None:
    """Where in a NumPy array's object the address of its data stands: it is the first field of NumPy's binary
    interface behind Python's own. None for an interpreter whose objects look otherwise."""
    if sys.implementation.name != "cpython":
        return None
    sample, field = np.empty(3), object.__basicsize__
    address = sample.__array_interface__["data"][0]
    return field if _word_at(id(sample) + field).value == address else None


_FIELD = _data_field()


def address_of(array: np.ndarray) -> int:
    """Address of a NumPy array's first element; reading the field takes a tenth of the time of NumPy's own answer."""
    if _FIELD is None:
        return int(array.__array_interface__["data"][0])
    return _word_at(id(array) + _FIELD).value


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What is known about a call once its sizes are.

    Attributes:
        sizes: the int64 sizes of the symbols, as native code reads them.
        outputs: shape and type of every output.
        workspace: bytes.
        bytes: of all outputs.
    """

    sizes: ctypes.Array[ctypes.c_int64]
    outputs: tuple[tuple[tuple[int, ...], np.dtype], ...]
    workspace: int
    bytes: int


class Memory:
    """The memory of one output, at a cache line.

    Attributes:
        array: an array of the output's shape and type over it; callers get views of it.
        address: of its first element.
        owner: the array that every view refers to.
        unused: how many references to the owner there are without any view.
    """

    __slots__ = ("address", "array", "owner", "unused")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Allocates; MemoryError or ValueError where there is not enough."""
        self.owner = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
        start = address_of(self.owner)
        skipped = -start % ALIGNMENT
        self.address = start + skipped
        self.array = np.ndarray(shape, dtype, self.owner, skipped)
        populate(self.address, self.array.nbytes)
        self.unused = getrefcount(self.owner)


class Frame:
    """The arguments of a native call, and the memory of its outputs.

    Attributes:
        arrays: over the memory of the outputs; callers get views of them.
        enter: calls the native function with arrays like those of the last call, or refuses them (`entry`); None where
            that is not prepared.
        threads: that `enter` uses at most.
        workspace: bytes that the native function needs.
    """

    __slots__ = (
        "_arguments", "_context", "_expected", "_inputs", "_memory", "_outputs", "_plan", "_symbols", "_threads",
        "_workspace", "arrays", "enter", "threads", "workspace",
    )  # fmt: skip

    def __init__(self, inputs: int, outputs: int, weights: ctypes.Array[ctypes.c_void_p], main: int) -> None:
        """Args: the numbers of inputs and outputs, the addresses of the weights (kept alive by the caller), and that of
        the native function."""
        self._inputs, self._outputs = (_Word * inputs)(), (_Word * outputs)()
        known = (main, inputs, *(ctypes.addressof(x) for x in (self._inputs, self._outputs, weights)))
        self._context = np.array([*known, *[0] * (len(CONTEXT) - len(known))], np.int64)
        self._expected: tuple[object, ...] = ()
        self.enter: Callable[..., int] | None = None
        self.threads = self.workspace = 0
        self._workspace, self._symbols, self._threads = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64()
        pointers = [ctypes.c_void_p(ctypes.addressof(x)) for x in (self._inputs, self._outputs, weights)]
        self._arguments = (*pointers, self._workspace, self._symbols, self._threads)
        self._plan: Plan | None = None
        self._memory: tuple[Memory, ...] = ()
        self.arrays: tuple[np.ndarray, ...] = ()

    def serves(self, plan: Plan) -> bool:
        """Whether the frame is prepared for a plan and nobody refers to the memory of its outputs."""
        return self._plan is plan and self.unused()

    def unused(self) -> bool:
        """Whether nobody refers to the memory of the outputs."""
        for m in self._memory:  # noqa: SIM110 - a generator would take longer than the whole loop
            if getrefcount(m.owner) != m.unused:
                return False
        return True

    def prepare(self, plan: Plan) -> None:
        """Takes the sizes of a plan and new memory for its outputs, whose elements are arbitrary.

        Raises:
            MemoryError, ValueError: there is not enough memory.
        """
        self.release()
        self._memory = tuple(Memory(shape, dtype) for shape, dtype in plan.outputs)
        self.arrays = tuple(m.array for m in self._memory)
        for k, m in enumerate(self._memory):
            self._outputs[k] = m.address
        self._take(plan)

    def borrow(self, plan: Plan, outputs: Sequence[np.ndarray]) -> None:
        """Takes the sizes of a plan and the caller's arrays for its outputs, until `release`."""
        self.release()
        for k, array in enumerate(outputs):
            self._outputs[k] = address_of(array)
        self._take(plan)

    def _take(self, plan: Plan) -> None:
        self._plan, self.workspace = plan, plan.workspace
        self._symbols.value = ctypes.addressof(plan.sizes)

    def release(self) -> None:
        """Lets plan and outputs go."""
        self._plan, self._memory, self.arrays = None, (), ()
        self.enter, self._expected = None, ()

    def expect(self, inputs: Sequence[np.ndarray], threads: int) -> None:
        """Prepares `enter`, where there are entries, for arrays of the types and shapes of these inputs, which fit the
        plan.

        Args:
            inputs: what the native function has just been called with.
            threads: at most this many threads work.
        """
        if not has_entries():
            return
        dtypes = [array.dtype for array in inputs]
        words = expected_words(dtypes, [array.shape for array in inputs])
        # types are told apart by their addresses, so they have to live on
        self._expected = words, *dtypes
        self._context[5:] = 0, self._symbols.value or 0, threads, address_of(words)
        self.threads = threads
        self.enter = self.enter or entry(self._context)

    def work_in(self, workspace: int) -> None:
        """Sets the address of the workspace for `enter`."""
        self._context[5] = workspace

    def call(self, main: Callable[..., int], inputs: Sequence[np.ndarray], workspace: int, threads: int) -> int:
        """Calls the native function; the answer is its own.

        Args:
            main: the function; it lets go of the interpreter's lock.
            inputs: contiguous arrays, alive until the call is over.
            workspace: address of the workspace.
            threads: at most this many threads work.
        """
        addresses = self._inputs
        for k, array in enumerate(inputs):
            addresses[k] = address_of(array)
        self._workspace.value = workspace
        self._threads.value = threads
        return main(*self._arguments)
