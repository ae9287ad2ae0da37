"""Calls of a step tree: a whole model in one native call, data-dependent sizes and loops included.

The tree allocates the memory of its values. Large results become arrays as they are, others are copied. Where something
is wrong with sizes or data it says only that: the runtime walks the same steps to find out what. A call checks its
arrays like a fast call (`fast_call.py`), which it is.
"""

import ctypes
import logging
import mmap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tilewright.machine.alignment import BUFFER_ALIGNMENT, GUARD_BYTES
from tilewright.machine.tree_call import FIRST_LOOP, OK, OK_WITH_MEMORY, STATE_WORDS, TREE_NAME
from tilewright.runtime.call_frame import address_of
from tilewright.runtime.control_flow_call import endless_loop, max_iterations
from tilewright.runtime.fast_call import MISMATCH, expected_words, make_fast_call, poll_address
from tilewright.runtime.linker import Library
from tilewright.runtime.manifest import ControlFlowStep, LoopStep, Manifest, NativeStep, all_steps
from tilewright.runtime.pages import madvise_address
from tilewright.runtime.tree_blocks import NativeMemory, array_on_block, take_blocks
from tilewright.runtime.weights import numpy_dtype
from tilewright.runtime.workspace import WorkspaceBlock, WorkspacePool

RESULT_BYTES = 1 << 14
"""Memory for small results, which a call keeps; larger ones are in the tree's own memory."""

SMALL_WORKSPACE_BYTES = 1 << 12
"""A workspace of so many bytes is with each set of arguments; the pool is only asked once a call has needed more."""

MAX_SHAPES = 64
"""Combinations of shapes whose arguments are kept."""

MAX_FRAMES = 8
"""Sets of arguments kept for a combination of shapes: calls that run at the same time have one each."""

_log = logging.getLogger("tilewright.runtime")

_MAX_LIMIT = (1 << 63) - 1
"""The most iterations that a word can hold."""

_BLOCKS, _WORKSPACE, _WORKSPACE_BYTES, _USED_BYTES, _LARGER = (
    STATE_WORDS.index(name) for name in ("blocks", "workspace", "workspace_bytes", "used_bytes", "larger")
)


def callable_tree(manifest: Manifest) -> str | None:
    """The symbol of a manifest's step tree; None without one, and for one that expects other arguments than these."""
    return manifest.tree if manifest.tree == TREE_NAME else None


def tree_addresses(manifest: Manifest) -> list[NativeStep | str]:
    """What the addresses that a step tree gets stand for: a native step for its array of weights, the name of a weight
    for a constant of a block."""
    steps = list(all_steps(manifest.steps))
    blocks = [manifest.block, *(b for s in steps if isinstance(s, ControlFlowStep) for b in s.blocks)]
    constants = (c.weight for b in blocks for c in b.constants)
    return [*(s for s in steps if isinstance(s, NativeStep)), *dict.fromkeys(constants)]


def tree_symbols(manifest: Manifest) -> list[str]:
    """The symbols whose sizes a step tree gets: those that the model's inputs bind."""
    bound = {d for spec in manifest.inputs for d in spec.dims}
    return [s.name for s in manifest.symbols if s.name in bound]


_Shapes = tuple[tuple[int, ...], ...]


class _TreeFrame:
    """The arguments of a call of a step tree."""

    __slots__ = (
        "_expected", "_inputs", "_memory", "_small_workspace", "_state_words", "_symbols", "_tree", "fast_call",
        "words",
    )  # fmt: skip

    def __init__(self, tree: "StepTreeCall", inputs: Sequence[np.ndarray], sizes: Sequence[int]) -> None:
        """Args: the tree, arrays like those of the calls, and the sizes of the symbols."""
        self._tree = tree
        self._inputs = (ctypes.c_size_t * max(1, len(inputs)))()
        self._symbols = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        self.words = (ctypes.c_int64 * max(1, tree.result_words))()
        self._memory = np.empty(RESULT_BYTES + SMALL_WORKSPACE_BYTES + GUARD_BYTES + BUFFER_ALIGNMENT, np.uint8)
        start = address_of(self._memory)
        start += -start % BUFFER_ALIGNMENT
        self._small_workspace = start + RESULT_BYTES
        state = {"limit": tree.limit, "poll": tree.poll, "advise": madvise_address(), "page_bytes": mmap.PAGESIZE}
        state |= {"results": start, "result_bytes": RESULT_BYTES}
        state |= {"workspace": self._small_workspace, "workspace_bytes": SMALL_WORKSPACE_BYTES}
        self._state_words = (ctypes.c_int64 * len(STATE_WORDS))(*(state.get(name, 0) for name in STATE_WORDS))
        dtypes = [array.dtype for array in inputs]
        expected = expected_words(dtypes, [array.shape for array in inputs])
        # dtypes are compared by address, so they are kept alive
        self._expected = expected, *dtypes
        arrays = self._inputs, self.words, tree.weights, self._state_words, self._symbols
        addresses = [ctypes.addressof(x) for x in arrays]
        words = (tree.address, len(inputs), *addresses, tree.threads, address_of(expected))
        self.fast_call = make_fast_call(np.array(words, np.int64))

    def enter(self, inputs: Sequence[object]) -> int:
        """The status of a call; `MISMATCH` for other arrays than the frame's."""
        if self.fast_call is None:
            return MISMATCH
        tree, status, block = self._tree, MISMATCH, None
        if tree.uses_pool:
            block = tree.pool.take_any()
            if block is not None:
                self._state_words[_WORKSPACE], self._state_words[_WORKSPACE_BYTES] = block.address, block.size
        try:
            status = self.fast_call(*inputs)
        finally:
            if block is not None or status != OK:
                self._give_workspace(block, status)
        return status

    def _give_workspace(self, block: WorkspaceBlock | None, status: int) -> None:
        """Gives back the workspace that a call was lent, or the larger one that it has put in its place."""
        state, tree = self._state_words, self._tree
        if state[_LARGER]:
            address, size = state[_WORKSPACE], state[_WORKSPACE_BYTES]
            block = WorkspaceBlock.on_memory(NativeMemory(state[_LARGER], address, size), address, size)
            state[_LARGER] = 0
            tree.uses_pool = True
        state[_WORKSPACE], state[_WORKSPACE_BYTES] = self._small_workspace, SMALL_WORKSPACE_BYTES
        if block is None:
            return
        if status == MISMATCH:
            tree.pool.give(block)
        else:
            tree.pool.give_used(block, state[_USED_BYTES])

    def take_blocks(self) -> dict[int, NativeMemory]:
        """The memory that large results are in."""
        first, self._state_words[_BLOCKS] = self._state_words[_BLOCKS], 0
        return take_blocks(first)


class StepTreeCall:
    """A step tree bound to linked code and weights; thread-safe."""

    def __init__(
        self,
        manifest: Manifest,
        name: str,
        library: Library,
        weights: Mapping[str, np.ndarray],
        threads: int,
        pool: WorkspacePool,
    ) -> None:
        """Args: the manifest, the tree's symbol, the linked code, all weights by name, the most threads of a call, and
        workspaces.

        Raises:
            OptionError: the environment variable that limits iterations holds no positive number.
        """
        self._library, self.address, self.threads = library, library.addresses[name], threads
        self.pool, self.uses_pool = pool, pool.bytes > SMALL_WORKSPACE_BYTES
        self.limit, self.poll = min(max_iterations(), _MAX_LIMIT), poll_address()
        self._loop_nodes = [", ".join(s.nodes) for s in all_steps(manifest.steps) if isinstance(s, LoopStep)]
        self._arrays: list[object] = []
        addresses: list[int] = []
        for what in tree_addresses(manifest):
            if isinstance(what, NativeStep):
                arrays = [weights[name] for name in what.weights]
                pointers = (ctypes.c_size_t * max(1, len(arrays)))(*map(address_of, arrays))
                self._arrays += (*arrays, pointers)
                addresses.append(ctypes.addressof(pointers))
            else:
                self._arrays.append(weights[what])
                addresses.append(address_of(weights[what]))
        self.weights = (ctypes.c_size_t * max(1, len(addresses)))(*addresses)
        self._symbols = tree_symbols(manifest)
        self._outputs = [(numpy_dtype(spec.dtype), len(spec.dims)) for spec in manifest.outputs]
        self.result_words = sum(1 + rank for _, rank in self._outputs)
        # list.pop, list.append and changes of a dict are atomic, so no lock is needed
        self._frames: dict[_Shapes, list[_TreeFrame]] = {}
        self._latest: list[_TreeFrame] = []

    def try_call(self, inputs: Sequence[Any]) -> list[np.ndarray] | Literal[False] | None:
        """The outputs, if the inputs are arrays of the dtypes and shapes of a recent call; False where something is
        wrong with sizes or data, as it would be in another call."""
        frames = self._latest
        ended = self._enter_idle(frames, inputs)
        if ended is None:
            try:
                others = self._frames.get(tuple([array.shape for array in inputs]))
            except (AttributeError, TypeError):  # no array
                return None
            ended = None if others is None or others is frames else self._enter_idle(others, inputs)
            if ended is None or others is None:
                return None
            self._latest = frames = others
        outputs = self._collect_outputs(*ended, frames)
        return False if outputs is None else outputs

    def _enter_idle(self, frames: list[_TreeFrame], inputs: Sequence[object]) -> tuple[_TreeFrame, int] | None:
        """An idle frame after a call, and the call's status; None where no frame fits."""
        try:
            frame = frames.pop() if frames else None
        except IndexError:  # another thread has taken it
            return None
        if frame is None:
            return None
        status = frame.enter(inputs)
        if status == MISMATCH:
            frames.append(frame)
            return None
        return frame, status

    def call(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray] | None:
        """The outputs; None where something is wrong with sizes or data.

        Args:
            inputs: contiguous arrays of the model's dtypes and of shapes that fit the sizes.
            sizes: of the symbols.

        Raises:
            LoopError: a loop without a trip count does not end.
        """
        shapes = tuple([array.shape for array in inputs])
        frames = self._frames.get(shapes)
        if frames is None:
            if len(self._frames) >= MAX_SHAPES:
                self._frames.clear()
            frames = self._frames[shapes] = []
        self._latest = frames
        ended = self._enter_idle(frames, inputs)
        if ended is None:
            frame = _TreeFrame(self, inputs, [sizes[name] for name in self._symbols])
            ended = frame, frame.enter(inputs)
        return None if ended[1] == MISMATCH else self._collect_outputs(*ended, frames)

    def _collect_outputs(self, frame: _TreeFrame, status: int, frames: list[_TreeFrame]) -> list[np.ndarray] | None:
        """The outputs of a call that has ended with a status, whose frame is put among the idle ones."""
        if status not in (OK, OK_WITH_MEMORY):
            if status >= FIRST_LOOP:
                raise endless_loop(self._loop_nodes[status - FIRST_LOOP], self.limit)
            _log.debug("a native call of all steps has failed: they are walked to tell why")
            return None
        words, position, blocks = frame.words[:], 0, {} if status == OK else frame.take_blocks()
        outputs: list[np.ndarray] = []
        for dtype, rank in self._outputs:
            address, shape = words[position], words[position + 1 : position + 1 + rank]
            array = array_on_block(blocks, address, shape, dtype) if blocks else None
            if array is None:
                try:
                    array = np.empty(shape, dtype)
                except (MemoryError, ValueError):
                    return None
                ctypes.memmove(address_of(array), address, array.nbytes)
            position += 1 + rank
            outputs.append(array)
        if len(frames) < MAX_FRAMES:
            frames.append(frame)
        return outputs
