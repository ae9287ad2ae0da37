"""Call frames: the prepared arguments of a native call and the memory of its outputs, for one call at a time.

The memory of outputs that the caller has dropped is reused by the next call with the same sizes: it is aligned to cache
lines, and its pages are mapped already. Memory with any remaining reference, even a view of a view, is never reused:
every NumPy view references the array that owns the memory, whose reference count shows whether it is in use.
"""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount

import numpy as np

from tilewright.machine.alignment import BUFFER_ALIGNMENT
from tilewright.runtime.fast_call import CONTEXT_WORDS, expected_words, has_fast_calls, make_fast_call
from tilewright.runtime.pages import populate


def _max_reused_bytes() -> int:
    """An eighth of the machine's memory; half a GiB where it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (AttributeError, OSError, ValueError):
        return 512 << 20


MAX_REUSED_BYTES = _max_reused_bytes()
"""Outputs of a call with more bytes than this are not kept for reuse. Fresh memory is zeroed and mapped page by page
while the kernel writes, which may take as long as the kernel itself."""

CAN_REUSE_OUTPUTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether memory of outputs is reused at all: without a GIL another thread may take or drop a reference while
references are counted."""

_Word = ctypes.c_size_t
_word_at = _Word.from_address


def _data_pointer_offset() -> int | None:
    """Offset of the data pointer in a NumPy array object: the first field of NumPy's ABI after Python's object header.
    None for interpreters with other objects."""
    if sys.implementation.name != "cpython":
        return None
    sample, field = np.empty(3), object.__basicsize__
    address = sample.__array_interface__["data"][0]
    return field if _word_at(id(sample) + field).value == address else None


_DATA_OFFSET = _data_pointer_offset()


def address_of(array: np.ndarray) -> int:
    """Address of a NumPy array's first element; reading the field takes a tenth of the time of
    `__array_interface__`."""
    if _DATA_OFFSET is None:
        return int(array.__array_interface__["data"][0])
    return _word_at(id(array) + _DATA_OFFSET).value


@dataclass(frozen=True, slots=True, eq=False)
class CallPlan:
    """The plan of a call, which depends on the sizes alone.

    Attributes:
        sizes: int64 sizes of the symbols, as native code reads them.
        outputs: shape and dtype of every output.
        workspace_bytes: size of the workspace.
        output_bytes: size of all outputs.
    """

    sizes: ctypes.Array[ctypes.c_int64]
    outputs: tuple[tuple[tuple[int, ...], np.dtype], ...]
    workspace_bytes: int
    output_bytes: int


MAX_SPARE_BYTES = 32 << 20
"""Memory of an output is used for another shape unless more than this, and than three quarters of it, would be idle;
where callers keep such outputs, the three quarters alone count."""


class OutputMemory:
    """The memory of one output, aligned to a cache line.

    Attributes:
        array: an array of the output's shape and dtype on it; callers get views of it.
        address: of its first element.
        owner: the array that every view references.
        idle_references: reference count of the owner without any view.
        capacity: bytes from `address` on.
    """

    __slots__ = ("address", "array", "capacity", "idle_references", "owner")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Allocates; MemoryError or ValueError where there is not enough memory."""
        self.capacity = math.prod(shape) * dtype.itemsize
        self.owner = np.empty(self.capacity + BUFFER_ALIGNMENT, np.uint8)
        start = address_of(self.owner)
        skipped = -start % BUFFER_ALIGNMENT
        self.address = start + skipped
        self.array = np.ndarray(shape, dtype, self.owner, skipped)
        populate(self.address, self.capacity)
        self.idle_references = getrefcount(self.owner)

    @property
    def is_mostly_idle(self) -> bool:
        """Whether more than three quarters of the memory are not used by `array`."""
        return self.capacity > 4 * self.array.nbytes

    def reshape(self, shape: tuple[int, ...], dtype: np.dtype, spare_bytes: int) -> bool:
        """Makes `array` one of another shape and dtype; whether the memory suits these. Nothing else may reference
        it. At most three quarters of it, or `spare_bytes`, may be idle."""
        size = math.prod(shape) * dtype.itemsize
        if size > self.capacity or self.capacity - size > max(3 * size, spare_bytes):
            return False
        self.array = np.ndarray(shape, dtype, self.owner, -address_of(self.owner) % BUFFER_ALIGNMENT)
        return True


class CallFrame:
    """The arguments of a native call, and the memory of its outputs.

    Attributes:
        arrays: on the memory of the outputs; callers get views of them.
        fast_call: calls the native function with arrays like those of the last call, or refuses them (`fast_call.py`);
            None where it is not prepared.
        threads: limit of threads of `fast_call`.
        workspace_bytes: size of the workspace that the native function needs.
    """

    __slots__ = (
        "_are_kept", "_arguments", "_context", "_expected", "_inputs", "_memory", "_outputs", "_plan", "_symbols",
        "_threads", "_workspace", "arrays", "fast_call", "threads", "workspace_bytes",
    )  # fmt: skip

    def __init__(self, inputs: int, outputs: int, weights: ctypes.Array[ctypes.c_void_p], main: int) -> None:
        """Args: the numbers of inputs and outputs, the addresses of the weights (kept alive by the caller), and the
        address of the native function.
        """
        self._inputs, self._outputs = (_Word * inputs)(), (_Word * outputs)()
        words = (main, inputs, *(ctypes.addressof(x) for x in (self._inputs, self._outputs, weights)))
        self._context = np.array([*words, *[0] * (len(CONTEXT_WORDS) - len(words))], np.int64)
        self._expected: tuple[object, ...] = ()
        self.fast_call: Callable[..., int] | None = None
        self.threads = self.workspace_bytes = 0
        self._workspace, self._symbols, self._threads = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64()
        pointers = [ctypes.c_void_p(ctypes.addressof(x)) for x in (self._inputs, self._outputs, weights)]
        self._arguments = (*pointers, self._workspace, self._symbols, self._threads)
        self._plan: CallPlan | None = None
        self._memory: tuple[OutputMemory, ...] = ()
        # whether a caller has kept outputs in memory that is mostly idle, which is idle as long as they are kept
        self._are_kept = False
        self.arrays: tuple[np.ndarray, ...] = ()

    def is_ready_for(self, plan: CallPlan) -> bool:
        """Whether the frame is prepared for a plan and nothing references the memory of its outputs."""
        return self._plan is plan and self.is_unused()

    def is_unused(self) -> bool:
        """Whether nothing references the memory of the outputs."""
        for m in self._memory:  # noqa: SIM110 - a generator would be slower than the whole loop
            if getrefcount(m.owner) != m.idle_references:
                return False
        return True

    def prepare(self, plan: CallPlan) -> None:
        """Takes the sizes of a plan, and uninitialised memory for its outputs: that of the former ones where nothing
        references it and it is large enough, as new memory is mapped page by page. Once small outputs were kept in
        large memory, no more are put there.

        Raises:
            MemoryError, ValueError: there is not enough memory.
        """
        is_unused = self.is_unused()
        self._are_kept = self._are_kept or (not is_unused and any(m.is_mostly_idle for m in self._memory))
        idle, spare = self._memory if is_unused else (), 0 if self._are_kept else MAX_SPARE_BYTES
        self.release()
        self._memory = tuple(
            idle[k] if k < len(idle) and idle[k].reshape(shape, dtype, spare) else OutputMemory(shape, dtype)
            for k, (shape, dtype) in enumerate(plan.outputs)
        )
        self.arrays = tuple(m.array for m in self._memory)
        for k, m in enumerate(self._memory):
            self._outputs[k] = m.address
        self._set_plan(plan)

    def use_outputs(self, plan: CallPlan, outputs: Sequence[np.ndarray]) -> None:
        """Takes the sizes of a plan and the caller's arrays for its outputs, until `release`."""
        self.release()
        for k, array in enumerate(outputs):
            self._outputs[k] = address_of(array)
        self._set_plan(plan)

    def _set_plan(self, plan: CallPlan) -> None:
        self._plan, self.workspace_bytes = plan, plan.workspace_bytes
        self._symbols.value = ctypes.addressof(plan.sizes)

    def release(self) -> None:
        """Drops plan and outputs."""
        self._plan, self._memory, self.arrays = None, (), ()
        self.fast_call, self._expected = None, ()

    def prepare_fast_call(self, inputs: Sequence[np.ndarray], threads: int) -> None:
        """Prepares `fast_call`, where there are fast calls, for arrays of the dtypes and shapes of these inputs, which
        fit the plan.

        Args:
            inputs: of the latest native call.
            threads: limit of threads.
        """
        if not has_fast_calls():
            return
        dtypes = [array.dtype for array in inputs]
        words = expected_words(dtypes, [array.shape for array in inputs])
        # dtypes are compared by address, so they are kept alive
        self._expected = words, *dtypes
        self._context[5:] = 0, self._symbols.value or 0, threads, address_of(words)
        self.threads = threads
        self.fast_call = self.fast_call or make_fast_call(self._context)

    def set_workspace(self, workspace: int) -> None:
        """Sets the address of the workspace for `fast_call`."""
        self._context[5] = workspace

    def call(self, main: Callable[..., int], inputs: Sequence[np.ndarray], workspace: int, threads: int) -> int:
        """Calls the native function and returns its status.

        Args:
            main: the function; it releases the GIL.
            inputs: contiguous arrays, alive until the call is over.
            workspace: address of the workspace.
            threads: limit of threads.
        """
        addresses = self._inputs
        for k, array in enumerate(inputs):
            addresses[k] = address_of(array)
        self._workspace.value = workspace
        self._threads.value = threads
        return main(*self._arguments)
