"""Workspaces of native calls: one block of scratch memory per concurrent call, reused by later calls.

A block grows to what a call needs. One that has been four times too large for 256 calls in a row is dropped, so that a
single large input does not hold its memory for ever.
"""

import numpy as np

from tilewright.machine.alignment import BUFFER_ALIGNMENT, GUARD_BYTES
from tilewright.runtime.pages import HUGE_PAGE_BYTES, populate

MAX_IDLE_CALLS = 256


class WorkspaceBlock:
    """A 64-byte aligned block of mapped memory; a large one begins with a huge page."""

    __slots__ = ("_memory", "address", "idle_calls", "size")

    def __init__(self, size: int) -> None:
        """Args: bytes."""
        self._memory: object
        alignment = HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else BUFFER_ALIGNMENT
        self._memory = memory = np.empty(size + alignment + GUARD_BYTES, np.uint8)
        start = int(memory.__array_interface__["data"][0])
        self.address = start + (-start % alignment)
        populate(self.address, size + GUARD_BYTES)
        self.size = size
        self.idle_calls = 0

    @classmethod
    def on_memory(cls, memory: object, address: int, size: int) -> "WorkspaceBlock":
        """A block on memory that native code has allocated.

        Args:
            memory: what frees it with its last reference.
            address: of the first byte, a multiple of 64.
            size: in bytes, without the guard behind them.
        """
        block = cls.__new__(cls)
        block._memory, block.address, block.size, block.idle_calls = memory, address, size, 0
        return block

    def is_too_large(self, size: int) -> bool:
        """Notes that a call needs `size` bytes; whether the block has been far larger than that for many calls."""
        self.idle_calls = self.idle_calls + 1 if self.size > 4 * size + 4096 else 0
        return self.idle_calls > MAX_IDLE_CALLS


class WorkspacePool:
    """Idle blocks. Several threads may take and give at once."""

    def __init__(self) -> None:
        self._free: list[WorkspaceBlock] = []

    def take(self, size: int) -> WorkspaceBlock:
        """A block of at least `size` bytes, to be given back after the call."""
        try:
            # list.pop and list.append are atomic, so no lock is needed and a fork cannot leave one held
            block = self._free.pop()
        except IndexError:
            block = None
        if block is None or block.size < size or block.is_too_large(size):
            return WorkspaceBlock(size)
        return block

    def take_any(self) -> WorkspaceBlock | None:
        """An idle block, for a call that finds out how much it needs; None where there is none."""
        try:
            # raising takes longer than a small call
            return self._free.pop() if self._free else None
        except IndexError:  # another thread has taken it
            return None

    def give_used(self, block: WorkspaceBlock, size: int) -> None:
        """Takes back a block of which a call has used `size` bytes."""
        if not block.is_too_large(size):
            self._free.append(block)

    def give(self, block: WorkspaceBlock) -> None:
        """Takes a block back."""
        self._free.append(block)

    @property
    def bytes(self) -> int:
        """Bytes of the idle blocks."""
        return sum(block.size for block in self._free)
