"""Timestamps of an instrumented entry, for profiles: begin and end of each kernel, and of each thread's work in its
parallel regions.

An entry records them in one of its outputs (`segment.TimestampBuffer`), so overlapping calls have one each, and every
thread writes to a line of its own. Code without a record is the same as if this module did not exist.

    line of the caller    BEGIN, END     of the call
                          FORK           start of the current or latest parallel region
                          PARALLEL       ticks of all parallel regions, from fork to join
                          REGIONS        their number
    line of a thread      DELAY          ticks from forks to the thread's first work
                          BUSY           ticks of its work
                          JOINED         number of regions in which it worked
                          FIRST, LAST    begin of its first work, end of its last
                          LAST_REGION    fork of the region in which it worked last

The counter is LLVM's: the time-stamp counter on x86-64, the virtual counter (CNTVCT_EL0) on AArch64. Both run at one
rate on all cores of the machines that Linux trusts them on. The first is read ahead of unfinished instructions, by tens
of cycles at most.
"""

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.llvm_types import I1, I8, I64, PTR, VOID, call_intrinsic
from tilewright.codegen.segment import TimestampBuffer

BEGIN, END, FORK, PARALLEL, REGIONS = range(5)
DELAY, BUSY, JOINED, FIRST, LAST, LAST_REGION = range(6)


def read_clock(b: ir.IRBuilder) -> ir.Value:
    """A reading of the counter."""
    return call_intrinsic(b, "readcyclecounter", I64, [])


def emit_clock_reader(name: str) -> str:
    """The LLVM module of a function without parameters that returns a reading of the counter."""
    module = ir.Module(name="counter")
    function = ir.Function(module, ir.FunctionType(I64, []), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    builder.ret(read_clock(builder))
    return str(module)


def _word_pointer(b: ir.IRBuilder, line: ir.Value, word: int) -> ir.Value:
    return b.gep(line, [I64(word)], source_etype=I64)


def _load_word(b: ir.IRBuilder, line: ir.Value, word: int) -> ir.Value:
    return b.load(_word_pointer(b, line, word), align=8, typ=I64)


def _store_word(b: ir.IRBuilder, line: ir.Value, word: int, value: ir.Value) -> None:
    b.store(value, _word_pointer(b, line, word), align=8)


def _add_to_word(b: ir.IRBuilder, line: ir.Value, word: int, value: ir.Value) -> None:
    _store_word(b, line, word, b.add(_load_word(b, line, word), value))


class TimestampRecorder:
    """The records of one segment, written by its main function.

    Args:
        b: where the code goes.
        stamps: the layout of the records.
        calls: number of records.
        outputs: pointer to the pointers of the outputs.
        symbols: values of the segment's symbols.
    """

    def __init__(
        self, b: ir.IRBuilder, stamps: TimestampBuffer, calls: int, outputs: ir.Value, symbols: Sequence[ir.Value]
    ) -> None:
        self._b, self._stamps = b, stamps
        self._start = stamps.first_record(len(symbols))
        self._base = b.load(b.gep(outputs, [I64(stamps.output)], source_etype=PTR), align=8, typ=PTR)
        size = 8 * stamps.total_words(len(symbols), calls)
        call_intrinsic(b, "memset.p0.i64", VOID, [self._base, I8(0), I64(size), I1(0)])
        for k, value in enumerate(symbols):
            _store_word(b, self._base, k, value)

    def begin(self, call: int) -> ir.Value:
        """Records that a call begins; returns the pointer to its record."""
        record = _word_pointer(self._b, self._base, self._start + call * self._stamps.record_words())
        _store_word(self._b, record, BEGIN, read_clock(self._b))
        return record

    def end(self, record: ir.Value) -> None:
        """Records that the call of a record has ended."""
        _store_word(self._b, record, END, read_clock(self._b))


def limit_threads(b: ir.IRBuilder, stamps: TimestampBuffer, threads: ir.Value) -> ir.Value:
    """A number of threads, at most as many as a record has lines."""
    return call_intrinsic(b, "smin.i64", I64, [threads, I64(stamps.threads)])


def record_fork(b: ir.IRBuilder, record: ir.Value) -> None:
    """Records that threads are about to be started."""
    _store_word(b, record, FORK, read_clock(b))


def record_join(b: ir.IRBuilder, record: ir.Value) -> None:
    """Records that all threads have ended."""
    _add_to_word(b, record, PARALLEL, b.sub(read_clock(b), _load_word(b, record, FORK)))
    _add_to_word(b, record, REGIONS, I64(1))


def record_work_begin(b: ir.IRBuilder, record: ir.Value, thread: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Records that a thread begins work, possibly not its first in a region; the result is for `record_work_end`.

    Args:
        b: where the code goes.
        record: of the kernel's call.
        thread: the thread's number, less than the number of lines.
    """
    line = b.gep(record, [b.mul(b.add(thread, I64(1)), I64(TimestampBuffer.WORDS_PER_LINE))], source_etype=I64)
    start, fork = read_clock(b), _load_word(b, record, FORK)
    is_new_region = b.icmp_signed("!=", _load_word(b, line, LAST_REGION), fork)
    _add_to_word(b, line, DELAY, b.select(is_new_region, b.sub(start, fork), I64(0)))
    first = b.icmp_signed("==", _load_word(b, line, JOINED), I64(0))
    _store_word(b, line, FIRST, b.select(first, start, _load_word(b, line, FIRST)))
    _add_to_word(b, line, JOINED, b.zext(is_new_region, I64))
    _store_word(b, line, LAST_REGION, fork)
    return line, start


def record_work_end(b: ir.IRBuilder, work: tuple[ir.Value, ir.Value]) -> None:
    """Records that the work has ended."""
    line, start = work
    end = read_clock(b)
    _add_to_word(b, line, BUSY, b.sub(end, start))
    _store_word(b, line, LAST, end)
