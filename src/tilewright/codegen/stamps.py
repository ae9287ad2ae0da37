"""Clock readings of an instrumented entry, for profiles: when each kernel began and ended, and the same of every
thread's share of its parallel loops.

An entry notes them in one of its outputs (`plan.Stamps`), so calls that overlap have one each, and every thread writes
to a line of its own. Nothing here is part of other code: what is emitted without a record is as if this file were not.

    line of the caller    BEGIN, END     of the call
                          FORK           when the parallel region that is running, or ran last, was started
                          PARALLEL       ticks of all parallel regions, from the start to the end of the join
                          REGIONS        their number
    line of a thread      DELAY          ticks from the start of regions to the thread's first work in them
                          BUSY           ticks of its work
                          SHARES         regions in which it had some
                          FIRST, LAST    beginning of its first work, end of the last
                          SEEN           the start of the region in which it worked last

The counter is LLVM's: the time-stamp counter on x86-64, the virtual counter (CNTVCT_EL0) on AArch64. Both run at one
rate on all cores of the machines that Linux trusts them on. The first is read ahead of instructions that are not done
yet, tens of cycles at most.
"""

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.plan import Stamps
from tilewright.codegen.types import I1, I8, I64, PTR, VOID, intrinsic

BEGIN, END, FORK, PARALLEL, REGIONS = range(5)
DELAY, BUSY, SHARES, FIRST, LAST, SEEN = range(6)


def now(b: ir.IRBuilder) -> ir.Value:
    """A reading of the counter."""
    return intrinsic(b, "readcyclecounter", I64, [])


def _word(b: ir.IRBuilder, line: ir.Value, word: int) -> ir.Value:
    return b.gep(line, [I64(word)], source_etype=I64)


def _load(b: ir.IRBuilder, line: ir.Value, word: int) -> ir.Value:
    return b.load(_word(b, line, word), align=8, typ=I64)


def _store(b: ir.IRBuilder, line: ir.Value, word: int, value: ir.Value) -> None:
    b.store(value, _word(b, line, word), align=8)


def _add(b: ir.IRBuilder, line: ir.Value, word: int, value: ir.Value) -> None:
    _store(b, line, word, b.add(_load(b, line, word), value))


class Recorder:
    """The records of one segment, written in its main function.

    Args:
        b: where the code goes.
        stamps: where the records lie.
        calls: how many there are.
        outputs: pointer to the pointers of the outputs.
        symbols: values of the segment's symbols.
    """

    def __init__(
        self, b: ir.IRBuilder, stamps: Stamps, calls: int, outputs: ir.Value, symbols: Sequence[ir.Value]
    ) -> None:
        self._b, self._stamps = b, stamps
        self._start = stamps.first(len(symbols))
        self._base = b.load(b.gep(outputs, [I64(stamps.output)], source_etype=PTR), align=8, typ=PTR)
        size = 8 * stamps.words(len(symbols), calls)
        intrinsic(b, "memset.p0.i64", VOID, [self._base, I8(0), I64(size), I1(0)])
        for k, value in enumerate(symbols):
            _store(b, self._base, k, value)

    def begin(self, call: int) -> ir.Value:
        """Notes that a call begins; pointer to its record."""
        record = _word(self._b, self._base, self._start + call * self._stamps.stride())
        _store(self._b, record, BEGIN, now(self._b))
        return record

    def end(self, record: ir.Value) -> None:
        """Notes that the call of a record has ended."""
        _store(self._b, record, END, now(self._b))


def limited(b: ir.IRBuilder, stamps: Stamps, threads: ir.Value) -> ir.Value:
    """A number of threads, at most as many as records have lines for."""
    return intrinsic(b, "smin.i64", I64, [threads, I64(stamps.threads)])


def fork(b: ir.IRBuilder, record: ir.Value) -> None:
    """Notes that threads are about to be started."""
    _store(b, record, FORK, now(b))


def join(b: ir.IRBuilder, record: ir.Value) -> None:
    """Notes that all threads have ended."""
    _add(b, record, PARALLEL, b.sub(now(b), _load(b, record, FORK)))
    _add(b, record, REGIONS, I64(1))


def share_begins(b: ir.IRBuilder, record: ir.Value, thread: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Notes that a thread begins work, of which it may have several pieces in a region; what `share_ends` is given.

    Args:
        b: where the code goes.
        record: of the kernel's call.
        thread: the thread's number, less than the number of lines.
    """
    line = b.gep(record, [b.mul(b.add(thread, I64(1)), I64(Stamps.LINE))], source_etype=I64)
    start, forked = now(b), _load(b, record, FORK)
    comes = b.icmp_signed("!=", _load(b, line, SEEN), forked)
    _add(b, line, DELAY, b.select(comes, b.sub(start, forked), I64(0)))
    first = b.icmp_signed("==", _load(b, line, SHARES), I64(0))
    _store(b, line, FIRST, b.select(first, start, _load(b, line, FIRST)))
    _add(b, line, SHARES, b.zext(comes, I64))
    _store(b, line, SEEN, forked)
    return line, start


def share_ends(b: ir.IRBuilder, share: tuple[ir.Value, ir.Value]) -> None:
    """Notes that the work has ended."""
    line, start = share
    end = now(b)
    _add(b, line, BUSY, b.sub(end, start))
    _store(b, line, LAST, end)
