"""How threads divide the iterations of a parallel loop: each begins with a share of its own, then helps with others'.

    enter(context)      what every thread runs: takes iterations until none are left, calls body(values..., begin, end)

Shares are contiguous and differ in length by one at most, so that a thread finds in its caches what it wrote in the
loop before. Each has a count of the iterations that were taken. A thread takes half of what is left of a share, one
iteration at least, with one atomic exchange; where nothing is left it goes on with the next thread's share. So no
iteration waits for a thread that comes late, and little is left undone beside one whose core is slow for a while; only
the join at the end waits for all. A share is used up after as many exchanges as its length has bits, and it does not
matter how many threads there really are.
"""

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.stamps import share_begins, share_ends
from tilewright.codegen.types import I1, I8, I32, I64, PTR, VOID, declared, intrinsic, opaque

SHARES = 32
"""More threads than that begin with equal shares, several with each."""

_APART = 128
"""Bytes from one count to the next: threads write to cache lines of their own, also where lines come in pairs."""

COUNTS = ir.ArrayType(ir.ArrayType(I64, _APART // 8), SHARES)
"""The counts of a parallel loop, in the frame of the function that starts the threads."""


def begin_shares(b: ir.IRBuilder, counts: ir.Value, threads: ir.Value) -> ir.Value:
    """Sets the counts of all shares to zero; how many shares there are.

    Args:
        b: where the code goes.
        counts: pointer to `COUNTS`.
        threads: how many are asked for.
    """
    shares = intrinsic(b, "smin.i64", I64, [threads, I64(SHARES)])
    intrinsic(b, "memset.p0.i64", VOID, [counts, I8(0), b.mul(shares, I64(_APART)), I1(0)])
    return shares


def _count(b: ir.IRBuilder, counts: ir.Value, share: ir.Value) -> ir.Value:
    return b.gep(counts, [I64(0), share, I64(0)], source_etype=COUNTS)


def enter(body: ir.Function, kind: ir.LiteralStructType, stamped: bool = False) -> ir.Function:
    """The function that every thread runs.

    Args:
        body: runs iterations `begin` to `end`, its last two arguments.
        kind: of the context: the other arguments of `body`, pointer to the counts, number of shares, of iterations.
        stamped: the context has one more element at its end, the record in which threads note clock readings.
    """
    module = body.module
    function = ir.Function(module, ir.FunctionType(VOID, [PTR]), module.get_unique_name(f"{body.name}.enter"))
    function.linkage = "internal"
    b = ir.IRBuilder(function.append_basic_block("entry"))
    given = _loaded(b, function.args[0], kind)
    record = given.pop() if stamped else None
    *values, counts, shares, extent = given
    thread = b.zext(b.call(declared(module, "omp_get_thread_num", I32, []), []), I64)
    noted = None if record is None else share_begins(b, record, thread)
    length, longer = b.udiv(extent, shares), b.urem(extent, shares)
    entry, share, after = b.block, b.append_basic_block("share"), b.append_basic_block("done")
    first = b.urem(thread, shares)
    b.branch(share)

    b.position_at_end(share)
    visited, number = b.phi(I64, name="visited"), b.phi(I64, name="number")
    begin = b.add(b.mul(number, length), intrinsic(b, "smin.i64", I64, [number, longer]))
    size = b.add(length, b.zext(b.icmp_signed("<", number, longer), I64))
    _work(b, body, values, _count(b, counts, number), begin, size)
    seen, following = b.add(visited, I64(1)), b.add(number, I64(1))
    following = b.select(b.icmp_signed("==", following, shares), I64(0), following)
    for phi, start, then in ((visited, I64(0), seen), (number, first, following)):
        phi.add_incoming(start, entry)
        phi.add_incoming(then, b.block)
    b.cbranch(b.icmp_signed("<", seen, shares), share, after)
    b.position_at_end(after)
    if noted is not None:
        share_ends(b, noted)
    b.ret_void()
    return function


def _loaded(b: ir.IRBuilder, context: ir.Value, kind: ir.LiteralStructType) -> list[ir.Value]:
    return [b.load(b.gep(context, [I32(0), I32(i)], source_etype=kind), typ=element)
            for i, element in enumerate(kind.elements)]  # fmt: skip


def _work(
    b: ir.IRBuilder, body: ir.Function, values: Sequence[ir.Value], count: ir.Value, begin: ir.Value, size: ir.Value
) -> None:
    """Takes iterations of one share and runs them until none is left."""
    before = b.block
    look, take, run, empty = (b.append_basic_block(n) for n in ("look", "take", "run", "empty"))
    # what the count stood at guards no data: OpenMP orders memory where threads start and end
    start = b.load_atomic(count, "monotonic", 8, typ=I64)
    b.branch(look)

    b.position_at_end(look)
    taken = b.phi(I64, name="taken")
    left = b.sub(size, taken)
    b.cbranch(b.icmp_signed(">", left, I64(0)), take, empty)

    b.position_at_end(take)
    until = b.add(taken, b.lshr(b.add(left, I64(1)), I64(1)))
    exchanged = b.cmpxchg(opaque(count), taken, until, "monotonic", "monotonic")
    now = b.extract_value(exchanged, 0)
    b.cbranch(b.extract_value(exchanged, 1), run, look)

    b.position_at_end(run)
    b.call(body, [*values, b.add(begin, taken), b.add(begin, until)])
    again = b.load_atomic(count, "monotonic", 8, typ=I64)
    b.branch(look)

    for block, value in ((before, start), (take, now), (run, again)):
        taken.add_incoming(value, block)
    b.position_at_end(empty)
