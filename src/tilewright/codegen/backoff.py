"""Exponential backoff of parallel regions: calls run serially where a region takes longer to start than to work."""

from llvmlite import ir

from tilewright.codegen.llvm_types import I64, call_intrinsic

MAX_SERIAL_CALLS = 63
"""Limit of the backoff: after a region whose start and end took longer than its work, the next call runs serially; if
the region after it is no better, the next 3 calls, then 7, up to this number."""


def next_backoff(
    b: ir.IRBuilder, backoff: tuple[ir.Value, ir.Value], overhead: ir.Value, work: ir.Value, slice_ticks: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The number of next calls to run serially, after a region.

    Args:
        b: where the code goes.
        backoff: two i64: serial calls that remain (0, or -1 when the last one has run), and their number the last time.
        overhead: ticks of the start and the end of the region.
        work: ticks between them.
        slice_ticks: a region with a larger overhead waited for a core, not for sleeping threads to wake.

    Returns:
        `backoff` for the next call.
    """
    remaining, previous = backoff
    # the first region after serial calls wakes threads: its overhead says nothing about regions in quick succession
    wakes = b.and_(b.icmp_signed("<", remaining, I64(0)), b.icmp_signed("<", overhead, slice_ticks))
    longer = call_intrinsic(b, "smin.i64", I64, [b.add(b.shl(previous, I64(1)), I64(1)), I64(MAX_SERIAL_CALLS)])
    next_calls = b.select(b.icmp_signed(">", overhead, work), longer, I64(0))
    return b.select(wakes, I64(0), next_calls), b.select(wakes, previous, next_calls)
