"""Scratch memory for native calls: one block per call that runs at the same time, reused by the next call.

A block grows to what a call needs. One that has been four times too large for 256 calls in a row is let go, so that
a single large input does not hold its memory for ever.
"""

import numpy as np

from tilewright.machine.alignment import BUFFER_ALIGNMENT, GUARD_BYTES
from tilewright.runtime.pages import HUGE_PAGE_BYTES, populate

MAX_IDLE_CALLS = 256


class WorkspaceBlock:
    """A 64-byte aligned block of memory, mapped; a large one begins with a large page."""

    __slots__ = ("_memory", "address", "idle_calls", "size")

    def __init__(self, size: int) -> None:
        """Args: bytes."""
        apart = HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else BUFFER_ALIGNMENT
        self._memory = np.empty(size + apart + GUARD_BYTES, np.uint8)
        start = int(self._memory.__array_interface__["data"][0])
        self.address = start + (-start % apart)
        populate(self.address, size + GUARD_BYTES)
        self.size = size
        self.idle_calls = 0


class WorkspacePool:
    """Blocks that no call uses at the moment. Several threads may take and give at once."""

    def __init__(self) -> None:
        self._free: list[WorkspaceBlock] = []

    def take(self, size: int) -> WorkspaceBlock:
        """A block of at least `size` bytes, to be given back after the call."""
        try:
            # list.pop and list.append are atomic, so no lock is needed and a fork can't leave one held
            room = self._free.pop()
        except IndexError:
            room = None
        if room is None or room.size < size:
            return WorkspaceBlock(size)
        if room.size > 4 * size + 4096:
            room.idle_calls += 1
            if room.idle_calls > MAX_IDLE_CALLS:
                return WorkspaceBlock(size)
        else:
            room.idle_calls = 0
        return room

    def give(self, block: WorkspaceBlock) -> None:
        """Take a block back."""
        self._free.append(block)

    @property
    def bytes(self) -> int:
        """Bytes in the blocks that wait for their next call."""
        return sum(room.size for room in self._free)
