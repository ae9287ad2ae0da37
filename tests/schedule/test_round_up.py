"""round_up: printed result, semantics, whole tiles on threads, refusals."""

from collections.abc import Callable

import pytest
from tests.schedule.attention import ATTENTION, SOFTMAX, check_close
from tests.schedule.functions import refuses

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import split
from tilewright.schedule.round_up import round_up
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.staging import pad_storage, set_scope
from tilewright.schedule.step import replay
from tilewright.verify.verifier import verify

SCALED = parse("""
func scaled(X: float32[N], Y: float32[N]; N: 1..100):
    alloc A: float32[N]
    alloc B: float32[N]
    for i in serial(N):
        block A(a: N = i):
            A[a] = X[a] * 2.0
    for j in serial(N):
        block B(b: N = j):
            B[b] = exp(A[b])
    for k in serial(N):
        block Y(y: N = k):
            Y[y] = B[y] + A[y]
""")


def tiled(func: Func = SCALED) -> Func:
    """Tiles of eight elements with their intermediates on the stack."""
    func = split(func, "k", 8)
    for block in ("B", "A"):
        func = set_scope(compute_at(func, block, "k_o"), block, MemoryScope.STACK)
    return func


def test_round_up(golden: Callable[[str], None]) -> None:
    golden(show(round_up(tiled(), "k_o")))


def test_what_does_not_exist_is_read_as_0() -> None:
    func = parallel(round_up(tiled(), "k_o"), "k_o")
    verify(func)
    assert "select(a < N, X[a] * 2.0, 0.0)" in show(func)
    check_close(SCALED, func)


@pytest.mark.parametrize("rows", [3, 8])
def test_attention(rows: int) -> None:
    func = split(ATTENTION, "i_4", rows)
    for block in ("O", "L", "m", "S"):
        func = compute_at(func, block, "i_4_o")
    rounded = round_up(func, "i_4_o")
    verify(rounded)
    assert show(rounded).count(" where ") < show(func).count(" where ")
    check_close(ATTENTION, rounded)


def test_a_trace_replays() -> None:
    s = Schedule(tiled())
    s.do("round_up", "k_o")
    assert replay(tiled(), s.trace) == s.func


def test_refusals() -> None:
    whole = parse(show(SCALED).replace("N: 1..100", "M: 1..100").replace("N", "M*8"))
    outside = split(SCALED, "i", 8)
    cases = [
        (SOFTMAX, "i", "no block that writes an internal buffer has a guard to drop"),
        (tiled(whole), "k_o", "no block that writes an internal buffer has a guard to drop"),
        (outside, "i_o", "A[a] may not exist in a whole tile"),
        (pad_storage(outside, "A", 0, 8), "i_o", "block 'B' uses 'A' outside the loop"),
    ]
    for func, loop, reason in cases:
        refuses(lambda func=func, loop=loop: round_up(func, loop), f"round_up of loop {loop!r}: {reason}")


def test_integers_are_divided_by_no_data_beyond_the_domain() -> None:
    func = parse("""
func f(X: int64[N], D: int64[N], Y: int64[N]; N: 1..100):
    alloc A: int64[N]
    for i in serial(N):
        block A(a: N = i):
            A[a] = X[a] // D[a]
    for k in serial(N):
        block Y(y: N = k):
            Y[y] = A[y]
""")
    func = compute_at(split(func, "k", 8), "A", "k_o")
    refuses(lambda: round_up(func, "k_o"), "round_up of loop 'k_o': block 'A' divides by data: X[a] // D[a]")
