"""Alignment of buffers in memory, shared by the memory planner, generated code and the runtime."""

BUFFER_ALIGNMENT = 64
"""Bytes: a cache line, and a vector register of 512 bits. Weights, outputs, slots of the workspace and stack buffers
start at multiples of it."""

GUARD_BYTES = 64
"""Mapped bytes behind weights and workspaces, as many as the widest vector register has: a masked load may reach over
the end of a buffer, which is slow where the next page is not present."""
