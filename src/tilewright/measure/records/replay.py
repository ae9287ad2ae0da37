"""Replay of recorded programs, whose writers are not trusted: what would become code without end is refused."""

from math import prod

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Const
from tilewright.loops.ir import Block, For, Func, LoopKind, walk
from tilewright.schedule.step import Trace, apply_numbered
from tilewright.verify.verifier import verify

MAX_STATEMENTS = 20_000
"""Loops and blocks of a program; steps that copy loops double them."""

MAX_COPIES = 1 << 16
"""Copies of blocks that unrolled loops make in all; the largest tiles of registers have some hundred."""

MAX_BUFFER_BYTES = 1 << 36
"""Bytes of the buffers of fixed size that a program adds."""

_COPIED = (LoopKind.UNROLLED, LoopKind.VTHREAD)


def replay_checked(func: Func, trace: Trace) -> Func:
    """The verified loops of a recorded program.

    Raises:
        ScheduleError: a step is not legal here, or the program is far too large.
        VerifyError: the loops are not safe.
    """
    for number, step in enumerate(trace, 1):
        func = apply_numbered(func, step, number)
        if sum(1 for _ in walk(func.body)) > MAX_STATEMENTS:
            raise ScheduleError(f"the loops have more than {MAX_STATEMENTS} statements", where=f"step {number}, {step}")
    copies = sum(
        prod(_extent(loop) for loop in enclosing if loop.kind in _COPIED)
        for s, enclosing in walk(func.body)
        if isinstance(s, Block)
    )
    if copies > MAX_COPIES:
        raise ScheduleError(f"unrolled loops make {copies} copies of blocks, more than {MAX_COPIES}", where=func.name)
    sizes = [[n.value for n in b.shape if isinstance(n, Const)] for b in func.allocs]
    bytes_ = sum(prod(map(int, n)) * b.dtype.bytes for n, b in zip(sizes, func.allocs, strict=True))
    if bytes_ > MAX_BUFFER_BYTES:
        raise ScheduleError(f"its buffers take {bytes_} bytes, more than {MAX_BUFFER_BYTES}", where=func.name)
    verify(func)
    return func


def _extent(loop: For) -> int:
    return max(1, int(loop.extent.value)) if isinstance(loop.extent, Const) else 1
