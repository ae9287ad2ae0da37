"""Calls of a step tree: a whole model in one native call, data-dependent sizes and loops included.

The tree allocates the memory of its values; results are copied into arrays of their sizes. Where something is wrong
with sizes or data it says only that: the runtime walks the same steps to find out what. A call checks its arrays like a
fast call (`fast_call.py`), which it is.
"""

import ctypes
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tilewright.machine.tree_call import FIRST_LOOP, OK, STATE_WORDS
from tilewright.runtime.call_frame import address_of
from tilewright.runtime.control_flow_call import endless_loop, max_iterations
from tilewright.runtime.fast_call import MISMATCH, expected_words, make_fast_call, poll_address
from tilewright.runtime.linker import Library
from tilewright.runtime.manifest import ControlFlowStep, LoopStep, Manifest, NativeStep, all_steps
from tilewright.runtime.weights import numpy_dtype

RESULT_BYTES = 1 << 14
"""Memory for small results, which a call keeps; larger ones are copied from the tree's own memory."""

_MAX_LIMIT = (1 << 63) - 1
"""The most iterations that a word can hold."""

_WORKSPACE = STATE_WORDS.index("workspace")
_libc_free = ctypes.CDLL(None).free
_libc_free.argtypes, _libc_free.restype = (ctypes.c_void_p,), None
_FREE_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def tree_symbols(name: str) -> tuple[str, str]:
    """Symbols of a step tree's functions."""
    return name, f"{name}_free"


def tree_addresses(manifest: Manifest) -> list[str]:
    """What the addresses stand for that a step tree gets: the weights of every native step, then constants."""
    steps = list(all_steps(manifest.steps))
    blocks = [b for s in steps if isinstance(s, ControlFlowStep) for b in s.blocks]
    constants: Iterable[str] = (c.weight for cs in (manifest.constants, *(b.constants for b in blocks)) for c in cs)
    segments = [f"segment:{s.prefix}" for s in steps if isinstance(s, NativeStep)]
    return [*segments, *(f"weight:{name}" for name in dict.fromkeys(constants))]


class _TreeFrame:
    """The arguments of a call of a step tree, and the memory that the tree keeps for later calls."""

    __slots__ = ("_expected", "_free", "_inputs", "_results", "_state_words", "_symbols", "_tree", "fast_call", "words")

    def __init__(self, tree: "StepTreeCall", inputs: Sequence[np.ndarray], sizes: Sequence[int]) -> None:
        """Args: the tree, arrays like those of the calls, and the sizes of the symbols."""
        self._tree, self._free = tree, tree.free
        self._inputs = (ctypes.c_size_t * max(1, len(inputs)))()
        self._symbols = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        self.words = (ctypes.c_int64 * max(1, tree.result_words))()
        self._results = np.empty(RESULT_BYTES + 64, np.uint8)
        start = address_of(self._results)
        state = {"limit": tree.limit, "poll": tree.poll, "results": start + -start % 64, "result_bytes": RESULT_BYTES}
        self._state_words = (ctypes.c_int64 * len(STATE_WORDS))(*(state.get(name, 0) for name in STATE_WORDS))
        dtypes = [array.dtype for array in inputs]
        expected = expected_words(dtypes, [array.shape for array in inputs])
        # dtypes are compared by address, so they are kept alive
        self._expected = expected, *dtypes
        arrays = self._inputs, self.words, tree.weights, self._state_words, self._symbols
        addresses = [ctypes.addressof(x) for x in arrays]
        words = (tree.address, len(inputs), *addresses, tree.threads, address_of(expected))
        self.fast_call = make_fast_call(np.array(words, np.int64))

    def free_results(self) -> None:
        """Frees the memory that large results are in."""
        self._free(ctypes.addressof(self._state_words))

    def __del__(self) -> None:
        # not by the tree's code, which may be gone where the garbage collector takes both
        _libc_free(self._state_words[_WORKSPACE])


class StepTreeCall:
    """A step tree bound to linked code and weights; thread-safe."""

    def __init__(
        self, manifest: Manifest, name: str, library: Library, weights: Mapping[str, np.ndarray], threads: int
    ) -> None:
        """Args: the manifest, the tree's symbol, the linked code, all weights by name, and the most threads of a call.

        Raises:
            OptionError: the environment variable that limits iterations holds no positive number.
        """
        main, free = tree_symbols(name)
        self._library, self.address, self.threads = library, library.addresses[main], threads
        self.free = _FREE_TYPE(library.addresses[free])
        self.limit, self.poll = min(max_iterations(), _MAX_LIMIT), poll_address()
        steps = list(all_steps(manifest.steps))
        self._loop_nodes = [", ".join(s.nodes) for s in steps if isinstance(s, LoopStep)]
        native = {f"segment:{s.prefix}": s for s in steps if isinstance(s, NativeStep)}
        self._arrays: list[object] = []
        addresses: list[int] = []
        for what in tree_addresses(manifest):
            if what in native:
                arrays = [weights[w] for w in native[what].weights]
                pointers = (ctypes.c_size_t * max(1, len(arrays)))(*map(address_of, arrays))
                self._arrays += (*arrays, pointers)
                addresses.append(ctypes.addressof(pointers))
            else:
                self._arrays.append(weights[what.partition(":")[2]])
                addresses.append(address_of(weights[what.partition(":")[2]]))
        self.weights = (ctypes.c_size_t * max(1, len(addresses)))(*addresses)
        bound = {d for spec in manifest.inputs for d in spec.dims}
        self._symbols = [s.name for s in manifest.symbols if s.name in bound]
        self._outputs = [(numpy_dtype(spec.dtype), len(spec.dims)) for spec in manifest.outputs]
        self.result_words = sum(1 + rank for _, rank in self._outputs)
        self._frames: deque[_TreeFrame] = deque(maxlen=8)

    def try_call(self, inputs: Sequence[object]) -> list[np.ndarray] | None:
        """The outputs, if the inputs are arrays of the dtypes and shapes of the latest call and nothing is wrong."""
        for _ in range(len(self._frames)):
            try:
                frame = self._frames.pop()
            except IndexError:
                return None
            enter = frame.fast_call
            status = MISMATCH if enter is None else enter(*inputs)
            if status != MISMATCH:
                return self._collect_outputs(frame, status)
            self._frames.appendleft(frame)
        return None

    def call(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray] | None:
        """The outputs; None where something is wrong with sizes or data.

        Args:
            inputs: contiguous arrays of the model's dtypes and of shapes that fit the sizes.
            sizes: of the symbols.

        Raises:
            LoopError: a loop without a trip count does not end.
        """
        frame = _TreeFrame(self, inputs, [sizes[name] for name in self._symbols])
        enter = frame.fast_call
        return None if enter is None else self._collect_outputs(frame, enter(*inputs))

    def _collect_outputs(self, frame: _TreeFrame, status: int) -> list[np.ndarray] | None:
        """The outputs of a call that has ended with a status."""
        if status != OK:
            if status >= FIRST_LOOP:
                raise endless_loop(self._loop_nodes[status - FIRST_LOOP], self.limit)
            return None
        words, position, total = frame.words[:], 0, 0
        outputs: list[np.ndarray] = []
        for dtype, rank in self._outputs:
            shape = words[position + 1 : position + 1 + rank]
            try:
                array = np.empty(shape, dtype)
            except (MemoryError, ValueError):
                frame.free_results()
                return None
            ctypes.memmove(address_of(array), words[position], array.nbytes)
            total += -(-array.nbytes // 64) * 64
            position += 1 + rank
            outputs.append(array)
        if total > RESULT_BYTES:
            frame.free_results()
        self._frames.append(frame)
        return outputs
