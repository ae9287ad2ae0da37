"""A native segment of a model as data: which kernels its entry runs in which order, on which memory.

The driver builds a `Segment` (memory planned, sizes as expressions over its symbols); `emit_segment` emits the C
functions that the runtime calls.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Expr, Var
from tilewright.graph.buffer_location import BufferLocation
from tilewright.routine.routine import Routine

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
class ConditionalCalls:
    """One of two lists of calls.

    Attributes:
        condition: location of the bool that selects the first one.
        then_calls: calls where it holds.
        else_calls: calls where it does not.
    """

    condition: BufferLocation
    then_calls: "tuple[SegmentCall, ...]"
    else_calls: "tuple[SegmentCall, ...]"


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """A value that an iteration of a loop reads and the next one reads anew.

    Attributes:
        name: of the `PointerLocation` from which an iteration reads it.
        next_name: of the one to which an iteration writes it.
        initial: the value before the first iteration.
        memory: where iterations write it, in turns.
        result: where the last value is copied to.
        bytes: its size.
    """

    name: str
    next_name: str
    initial: BufferLocation
    memory: tuple[BufferLocation, BufferLocation]
    result: BufferLocation
    bytes: Expr


@dataclass(frozen=True, slots=True)
class StackedValue:
    """The results of the iterations of a loop, one after the other.

    Attributes:
        name: of the `PointerLocation` to which an iteration writes its own.
        result: all of them.
        bytes: the size of one.
    """

    name: str
    result: BufferLocation
    bytes: Expr


@dataclass(frozen=True, slots=True)
class RepeatedCalls:
    """The calls of the iterations of a loop.

    Attributes:
        count: number of iterations, an int64 expression over the segment's symbols.
        iteration: int64 that holds the number of the iteration.
        condition: bool that holds.
        carried: values that pass from iteration to iteration.
        stacked: results of all iterations.
        calls: of one iteration.
    """

    count: Expr
    iteration: BufferLocation
    condition: BufferLocation
    carried: tuple[CarriedValue, ...]
    stacked: tuple[StackedValue, ...]
    calls: "tuple[SegmentCall, ...]"


@dataclass(frozen=True, slots=True)
class RoutineCode:
    """A routine for element types: one per buffer."""

    routine: Routine
    dtypes: tuple[DType, ...]

    @property
    def name(self) -> str:
        """The routine's name and the types."""
        return ".".join((self.routine.name, *(t.name for t in self.dtypes)))


@dataclass(frozen=True, slots=True)
class RoutineCall:
    """The call of a routine.

    Attributes:
        code: the routine for its element types.
        args: location per buffer.
        lengths: number of elements per buffer.
        scalars: int64 expression per scalar.
        failures: what each failure means for the user's node, in the order of the statuses.
        label: the node, which may be a generated one.
        origin: the user's node, of which failures tell.
    """

    code: RoutineCode
    args: tuple[BufferLocation, ...]
    lengths: tuple[Expr, ...]
    scalars: tuple[Expr, ...]
    failures: tuple[str, ...] = ()
    label: str = ""
    origin: str = ""


SegmentCall = KernelCall | RoutineCall | BufferCopy | ConditionalCalls | RepeatedCalls


def routine_calls(calls: Iterable[SegmentCall]) -> tuple[RoutineCall, ...]:
    """The routine calls among calls and those inside them, in the order in which their failures are numbered."""
    return tuple(c for c in all_calls(calls) if isinstance(c, RoutineCall))


def all_calls(calls: Iterable[SegmentCall]) -> Iterator[SegmentCall]:
    """Calls, each followed by those inside it."""
    for call in calls:
        yield call
        match call:
            case ConditionalCalls():
                yield from all_calls((*call.then_calls, *call.else_calls))
            case RepeatedCalls():
                yield from all_calls(call.calls)
            case _:
                pass


def locations_of(call: SegmentCall) -> tuple[BufferLocation, ...]:
    """The locations that a call itself refers to."""
    match call:
        case KernelCall() | RoutineCall():
            return call.args
        case BufferCopy(dst, src):
            return dst, src
        case ConditionalCalls():
            return (call.condition,)
        case RepeatedCalls():
            of_carried = (x for c in call.carried for x in (c.initial, *c.memory, c.result))
            return call.iteration, call.condition, *of_carried, *(s.result for s in call.stacked)


def sizes_of(call: SegmentCall) -> tuple[Expr, ...]:
    """The expressions that a call itself computes, besides the offsets of its locations."""
    match call:
        case KernelCall():
            return *call.symbols, *(() if call.parallel_grains is None else (call.parallel_grains,))
        case RoutineCall():
            return *call.lengths, *call.scalars
        case BufferCopy():
            return (call.bytes,)
        case ConditionalCalls():
            return ()
        case RepeatedCalls():
            return call.count, *(x.bytes for x in (*call.carried, *call.stacked))


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
    calls: tuple[SegmentCall, ...]
    workspace_bytes: Expr
    output_shapes: tuple[tuple[Expr, ...], ...]
    weights: tuple[str, ...] = ()
    constraints: tuple[Expr, ...] = ()
    buffer_bytes: tuple[Expr, ...] = ()
    index_bounds: tuple[Expr, ...] = ()
    timestamps: TimestampBuffer | None = None
