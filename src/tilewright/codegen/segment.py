"""A native segment of a model as data: which kernels its entry runs in which order, on which memory.

The driver builds a `Segment` (memory planned, sizes as expressions over its symbols); `emit_segment` emits the C
functions that the runtime calls.
"""

from dataclasses import dataclass
from typing import ClassVar

from tilewright.expr.nodes import Expr, Var
from tilewright.graph.buffer_location import BufferLocation

MAX_BUFFER_BYTES = 1 << 46
"""Largest size of a buffer: half of the address space of a process on x86-64 and AArch64."""

MAX_SIZE_VALUE = 1 << 62
"""Largest value in arithmetic on sizes, well below the overflow of int64."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel call.

    Attributes:
        kernel: name of the loop-IR function.
        args: location per parameter of the kernel, in order.
        symbols: int64 expression over the segment's symbols per symbol of the kernel, in order.
        parallel_grains: amount of work, an int64 expression: n threads are used where it is at least 1 + log2(n),
            rounded up, otherwise the kernel runs on the calling thread. None where threads are always used.
    """

    kernel: str
    args: tuple[BufferLocation, ...]
    symbols: tuple[Expr, ...] = ()
    parallel_grains: Expr | None = None


@dataclass(frozen=True, slots=True)
class BufferCopy:
    """A copy of `bytes` bytes from `src` to `dst`, which do not overlap."""

    dst: BufferLocation
    src: BufferLocation
    bytes: Expr


@dataclass(frozen=True, slots=True)
class TimestampBuffer:
    """Where an instrumented entry records timestamps: one of its outputs, int64, so that overlapping calls have one
    each.

    First the values of the segment's symbols; then, from a cache line on, one record per kernel call or copy: a line of
    the calling thread and one line per thread (`codegen.timestamps` names their words). Timestamps are readings of
    `llvm.readcyclecounter`.

    Attributes:
        output: index of the output.
        threads: lines of threads in a record; an instrumented entry starts no more threads.
    """

    output: int
    threads: int

    WORDS_PER_LINE: ClassVar[int] = 8
    """Words of a cache line."""

    def first_record(self, symbols: int) -> int:
        """The word at which the records begin."""
        return -(-symbols // self.WORDS_PER_LINE) * self.WORDS_PER_LINE

    def record_words(self) -> int:
        """Words of a record."""
        return (1 + self.threads) * self.WORDS_PER_LINE

    def total_words(self, symbols: int, calls: int) -> int:
        """Words of the buffer."""
        return self.first_record(symbols) + calls * self.record_words()


@dataclass(frozen=True, slots=True)
class Segment:
    """What one native entry does.

    Attributes:
        name: prefix of its C symbols: `<name>_check`, `<name>_shapes`, `<name>_workspace`, `<name>_main`.
        symbols: sizes that the caller passes, in this order.
        calls: kernel calls and copies in order of execution.
        workspace_bytes: size of the workspace.
        output_shapes: shape of every output.
        weights: names of the weights, in the order of their pointers.
        constraints: bool expressions over the symbols that must hold; the first violated one is reported.
        buffer_bytes: bytes of every buffer that the segment touches; sizes with one above `MAX_BUFFER_BYTES` are
            rejected.
        index_bounds: upper bounds of index arithmetic in kernels; sizes with one above `MAX_SIZE_VALUE` are rejected.
        timestamps: where timestamps are recorded, for profiles; None in all other code.
    """

    name: str
    symbols: tuple[Var, ...]
    calls: tuple[KernelCall | BufferCopy, ...]
    workspace_bytes: Expr
    output_shapes: tuple[tuple[Expr, ...], ...]
    weights: tuple[str, ...] = ()
    constraints: tuple[Expr, ...] = ()
    buffer_bytes: tuple[Expr, ...] = ()
    index_bounds: tuple[Expr, ...] = ()
    timestamps: TimestampBuffer | None = None
