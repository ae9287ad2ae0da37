"""The native entry of one segment of a model as data: which kernels run in which order, on which memory.

The driver builds a `Segment` (memory planned, sizes as expressions over its symbols); `entry` turns it into the C
functions that the runtime calls.
"""

from dataclasses import dataclass
from typing import ClassVar

from tilewright.expr.nodes import Expr, Var
from tilewright.graph.buffer_location import BufferLocation

MAX_BUFFER_BYTES = 1 << 46
"""Largest size of one buffer: half of the addresses that a process has on x86-64 and AArch64."""

MAX_SIZE_VALUE = 1 << 62
"""Largest number that arithmetic on sizes may meet, with room left before int64 wraps."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel call.

    Attributes:
        kernel: name of the loop-IR function.
        args: one location per parameter of the kernel, in order.
        symbols: one int64 expression over the segment's symbols per symbol of the kernel, in order.
        grains: how much work it is, an int64 expression: n threads are started where it is at least 1 + log2(n),
            rounded up, else the kernel runs on the calling thread. None where threads are always started.
    """

    kernel: str
    args: tuple[BufferLocation, ...]
    symbols: tuple[Expr, ...] = ()
    parallel_grains: Expr | None = None


@dataclass(frozen=True, slots=True)
class BufferCopy:
    """`bytes` bytes from `src` to `dst`, which do not overlap."""

    dst: BufferLocation
    src: BufferLocation
    bytes: Expr


@dataclass(frozen=True, slots=True)
class TimestampBuffer:
    """Where an instrumented entry notes clock readings: one of its outputs, int64, which every call has for itself.

    First the values of the segment's symbols; then, from a cache line on, one record per call of a kernel or copy: a
    line of the calling thread and one line per thread (`codegen.stamps` names their words). Readings are those of
    `llvm.readcyclecounter`.

    Attributes:
        output: index of the output.
        threads: lines of threads in a record; an instrumented entry starts no more.
    """

    output: int
    threads: int

    WORDS_PER_LINE: ClassVar[int] = 8
    """Words of a line."""

    def first_record(self, symbols: int) -> int:
        """The word at which the records begin."""
        return -(-symbols // self.WORDS_PER_LINE) * self.WORDS_PER_LINE

    def record_words(self) -> int:
        """Words of a record."""
        return (1 + self.threads) * self.WORDS_PER_LINE

    def total_words(self, symbols: int, calls: int) -> int:
        """Words of the whole."""
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
        sizes: bytes of every buffer that the segment touches; sizes for which one exceeds `MAX_BYTES` are rejected.
        numbers: what numbers in the kernels are at most; sizes for which one exceeds `MAX_SIZE_VALUE` are rejected.
        stamps: where clock readings go, for profiles; None in all other code.
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
