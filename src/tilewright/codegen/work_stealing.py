"""How threads divide the iterations of a parallel loop: each begins with a share of its own, then helps with others'.

Iterations are counted in pieces of equal length, of one iteration unless there are very many. Shares are contiguous
and differ in length by one piece at most, so that a thread finds in its caches what it wrote in the loop before. Each
has a count of the pieces that were taken. A thread takes half of what is left of a share, one piece at least, with one
atomic exchange; where nothing is left it goes on with the next thread's share. So no iteration waits for a thread that
comes late, and little is left undone beside one whose core is slow for a while. A share is used up after as many
exchanges as its length has bits, and it does not matter how many threads there really are.

Loops follow one another in the same memory. A count carries the number of its loop in its upper bits, so that a thread
that is late takes nothing of a loop that it does not know: the exchange fails, or there seems to be nothing left.
"""

from collections.abc import Callable

from llvmlite import ir

from tilewright.codegen.llvm_types import I64, as_opaque_pointer, call_intrinsic

MAX_SHARES = 32
"""More threads than that begin with equal shares, several with each."""

MAX_PIECES = 1 << 23
"""Loops with at least so many iterations are counted in longer pieces, so that there are at most so many pieces."""

_COUNT_BITS = 24
_COUNT_STRIDE = 128
"""Bytes from one count to the next: threads write to cache lines of their own, also where lines come in pairs."""

COUNTS_TYPE = ir.ArrayType(ir.ArrayType(I64, _COUNT_STRIDE // 8), MAX_SHARES)
"""The counts of a loop, in the memory of the team."""


class TypedPointer(ir.PointerType):
    """A pointer as llvmlite's `store_atomic` wants it, which looks at what older LLVM's pointers pointed to."""

    def __init__(self, pointee: ir.Type) -> None:
        super().__init__()
        self.pointee = pointee


def store_atomic(b: ir.IRBuilder, value: ir.Value, place: ir.Value, ordering: str) -> None:
    """An atomic store of an integer or a pointer."""
    setattr(place, "type", TypedPointer(value.type))  # noqa: B010 - the attribute is read-only only in the type stubs
    width = value.type.width // 8 if isinstance(value.type, ir.IntType) else 8
    b.store_atomic(value, place, ordering, width)


def reset_shares(b: ir.IRBuilder, counts: ir.Value, shares: ir.Value, number: ir.Value) -> None:
    """Sets the counts of all shares to: nothing is taken.

    Args:
        b: where the code goes.
        counts: pointer to `COUNTS_TYPE`.
        shares: how many there are, at least one.
        number: of the loop.
    """
    before, head, after = b.block, b.append_basic_block("begin"), b.append_basic_block("begun")
    none = _zero_count(b, number)
    b.branch(head)
    b.position_at_end(head)
    share = b.phi(I64, name="share")
    store_atomic(b, none, _count_pointer(b, counts, share), "monotonic")
    following = b.add(share, I64(1))
    share.add_incoming(I64(0), before)
    share.add_incoming(following, head)
    b.cbranch(b.icmp_signed("<", following, shares), head, after)
    b.position_at_end(after)


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
        loop: number of the thread, of the loop, of shares, of pieces.
        run: writes what runs pieces `begin` to `end`.
        finished: writes what says that so many pieces are done; at least one.
    """
    thread, number, shares, pieces = loop
    none = _zero_count(b, number)
    length, longer = b.udiv(pieces, shares), b.urem(pieces, shares)
    entry, head, after = b.block, b.append_basic_block("share"), b.append_basic_block("done")
    first = b.urem(thread, shares)
    b.branch(head)

    b.position_at_end(head)
    visited, share = b.phi(I64, name="visited"), b.phi(I64, name="share")
    begin = b.add(b.mul(share, length), call_intrinsic(b, "smin.i64", I64, [share, longer]))
    size = b.add(length, b.zext(b.icmp_signed("<", share, longer), I64))
    done = _take_from_share(b, _count_pointer(b, counts, share), none, (begin, size), run)
    with b.if_then(b.icmp_signed(">", done, I64(0))):
        report_done(done)
    seen, following = b.add(visited, I64(1)), b.add(share, I64(1))
    following = b.select(b.icmp_signed("==", following, shares), I64(0), following)
    for phi, start, then in ((visited, I64(0), seen), (share, first, following)):
        phi.add_incoming(start, entry)
        phi.add_incoming(then, b.block)
    b.cbranch(b.icmp_signed("<", seen, shares), head, after)
    b.position_at_end(after)


def _take_from_share(
    b: ir.IRBuilder,
    count: ir.Value,
    none: ir.Value,
    share: tuple[ir.Value, ir.Value],
    run: Callable[[ir.Value, ir.Value], None],
) -> ir.Value:
    """Takes pieces of one share, `(begin, size)`, and runs them until none is left; how many."""
    before, (begin, size) = b.block, share
    look, exchange, got, empty = (b.append_basic_block(n) for n in ("look", "exchange", "got", "empty"))
    # what the count stood at guards no data: memory is ordered where loops begin and where they are done
    start = b.load_atomic(count, "monotonic", 8, typ=I64)
    b.branch(look)

    b.position_at_end(look)
    word, done = b.phi(I64, name="word"), b.phi(I64, name="done")
    # of another loop's count this makes a number larger than any share
    taken = b.xor(word, none)
    b.cbranch(b.icmp_unsigned("<", taken, size), exchange, empty)

    b.position_at_end(exchange)
    until = b.add(taken, b.lshr(b.add(b.sub(size, taken), I64(1)), I64(1)))
    exchanged = b.cmpxchg(as_opaque_pointer(count), word, b.or_(none, until), "monotonic", "monotonic")
    now = b.extract_value(exchanged, 0)
    b.cbranch(b.extract_value(exchanged, 1), got, look)

    b.position_at_end(got)
    run(b.add(begin, taken), b.add(begin, until))
    more = b.add(done, b.sub(until, taken))
    again = b.load_atomic(count, "monotonic", 8, typ=I64)
    ran = b.block
    b.branch(look)

    for block, value, total in ((before, start, I64(0)), (exchange, now, done), (ran, again, more)):
        word.add_incoming(value, block)
        done.add_incoming(total, block)
    b.position_at_end(empty)
    return done
