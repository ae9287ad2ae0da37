"""Work stealing: how the threads of a team divide the iterations of a parallel loop.

Each thread begins with a share of its own, then helps with the others'. Iterations are counted in pieces of equal
length, of one iteration unless there are very many. Shares are contiguous and differ in length by one piece at most, so
that a thread finds in its caches what it wrote in the previous loop. Each has a count of the pieces taken. A thread
takes half of what is left of a share, at least one piece, with one atomic exchange; where nothing is left it goes on
with the next thread's share. So no iteration waits for a late thread, and little is left undone by one whose core is
slow for a while. A share is used up after at most as many exchanges as its length has bits, for any number of threads.

Loops follow one another in the same memory. A count contains the number of its loop in its upper bits, so that a late
thread takes nothing of a loop that it does not know: the exchange fails, or nothing seems to be left.
"""

from collections.abc import Callable

from llvmlite import ir

from tilewright.codegen.llvm_types import I64, as_opaque_pointer, call_intrinsic

MAX_SHARES = 32
"""With more threads than this, several begin with each share."""

MAX_PIECES = 1 << 23
"""Loops with at least this many iterations are counted in longer pieces, so that there are at most this many."""

_COUNT_BITS = 24
_COUNT_STRIDE = 128
"""Bytes between counts: threads write to cache lines of their own, even where lines are fetched in pairs."""

COUNTS_TYPE = ir.ArrayType(ir.ArrayType(I64, _COUNT_STRIDE // 8), MAX_SHARES)
"""The counts of a loop, in the memory of the team."""


class TypedPointer(ir.PointerType):
    """A pointer with the pointee that llvmlite's `store_atomic` expects, as in older LLVM."""

    def __init__(self, pointee: ir.Type) -> None:
        super().__init__()
        self.pointee = pointee


def store_atomic(b: ir.IRBuilder, value: ir.Value, pointer: ir.Value, ordering: str) -> None:
    """An atomic store of an integer or a pointer."""
    setattr(pointer, "type", TypedPointer(value.type))  # noqa: B010 - the attribute is read-only only in the type stubs
    bytes_ = value.type.width // 8 if isinstance(value.type, ir.IntType) else 8
    b.store_atomic(value, pointer, ordering, bytes_)


def reset_shares(b: ir.IRBuilder, counts: ir.Value, shares: ir.Value, number: ir.Value) -> None:
    """Sets the counts of all shares to nothing taken.

    Args:
        b: where the code goes.
        counts: pointer to `COUNTS_TYPE`.
        shares: number of shares, at least one.
        number: of the loop.
    """
    preheader, header, exit_block = b.block, b.append_basic_block("begin"), b.append_basic_block("begun")
    zero = _zero_count(b, number)
    b.branch(header)
    b.position_at_end(header)
    share = b.phi(I64, name="share")
    store_atomic(b, zero, _count_pointer(b, counts, share), "monotonic")
    next_share = b.add(share, I64(1))
    share.add_incoming(I64(0), preheader)
    share.add_incoming(next_share, header)
    b.cbranch(b.icmp_signed("<", next_share, shares), header, exit_block)
    b.position_at_end(exit_block)


def _zero_count(b: ir.IRBuilder, number: ir.Value) -> ir.Value:
    return b.shl(number, I64(_COUNT_BITS))


def _count_pointer(b: ir.IRBuilder, counts: ir.Value, share: ir.Value) -> ir.Value:
    return b.gep(counts, [I64(0), share, I64(0)], source_etype=COUNTS_TYPE)


def emit_work_stealing(
    b: ir.IRBuilder,
    counts: ir.Value,
    loop: tuple[ir.Value, ir.Value, ir.Value, ir.Value],
    run: Callable[[ir.Value, ir.Value], None],
    report_done: Callable[[ir.Value], None],
) -> None:
    """Takes pieces of a loop and runs them until none is left in any share.

    Args:
        b: where the code goes.
        counts: pointer to `COUNTS_TYPE`.
        loop: numbers of the thread and of the loop, and the numbers of shares and of pieces.
        run: emits the code that runs pieces `begin` to `end`.
        report_done: emits the code that reports a number of pieces as done, at least one.
    """
    thread, number, shares, pieces = loop
    zero = _zero_count(b, number)
    length, longer_shares = b.udiv(pieces, shares), b.urem(pieces, shares)
    preheader, header, exit_block = b.block, b.append_basic_block("share"), b.append_basic_block("done")
    first = b.urem(thread, shares)
    b.branch(header)

    b.position_at_end(header)
    visited, share = b.phi(I64, name="visited"), b.phi(I64, name="share")
    begin = b.add(b.mul(share, length), call_intrinsic(b, "smin.i64", I64, [share, longer_shares]))
    size = b.add(length, b.zext(b.icmp_signed("<", share, longer_shares), I64))
    done = _take_from_share(b, _count_pointer(b, counts, share), zero, (begin, size), run)
    with b.if_then(b.icmp_signed(">", done, I64(0))):
        report_done(done)
    next_visited, next_share = b.add(visited, I64(1)), b.add(share, I64(1))
    next_share = b.select(b.icmp_signed("==", next_share, shares), I64(0), next_share)
    for phi, start, next_value in ((visited, I64(0), next_visited), (share, first, next_share)):
        phi.add_incoming(start, preheader)
        phi.add_incoming(next_value, b.block)
    b.cbranch(b.icmp_signed("<", next_visited, shares), header, exit_block)
    b.position_at_end(exit_block)


def _take_from_share(
    b: ir.IRBuilder,
    counter: ir.Value,
    zero: ir.Value,
    share: tuple[ir.Value, ir.Value],
    run: Callable[[ir.Value, ir.Value], None],
) -> ir.Value:
    """Takes pieces of one share, `(begin, size)`, and runs them until none is left; returns how many."""
    preheader, (begin, size) = b.block, share
    look, exchange, won, empty = (b.append_basic_block(n) for n in ("look", "exchange", "got", "empty"))
    # the count guards no data: memory is ordered where loops begin and where they are done
    initial = b.load_atomic(counter, "monotonic", 8, typ=I64)
    b.branch(look)

    b.position_at_end(look)
    word, done = b.phi(I64, name="word"), b.phi(I64, name="done")
    # for the count of another loop this is larger than any share
    taken = b.xor(word, zero)
    b.cbranch(b.icmp_unsigned("<", taken, size), exchange, empty)

    b.position_at_end(exchange)
    taken_to = b.add(taken, b.lshr(b.add(b.sub(size, taken), I64(1)), I64(1)))
    exchanged = b.cmpxchg(as_opaque_pointer(counter), word, b.or_(zero, taken_to), "monotonic", "monotonic")
    current = b.extract_value(exchanged, 0)
    b.cbranch(b.extract_value(exchanged, 1), won, look)

    b.position_at_end(won)
    run(b.add(begin, taken), b.add(begin, taken_to))
    next_done = b.add(done, b.sub(taken_to, taken))
    reloaded = b.load_atomic(counter, "monotonic", 8, typ=I64)
    run_block = b.block
    b.branch(look)

    for block, value, total in (
        (preheader, initial, I64(0)),
        (exchange, current, done),
        (run_block, reloaded, next_done),
    ):
        word.add_incoming(value, block)
        done.add_incoming(total, block)
    b.position_at_end(empty)
    return done
