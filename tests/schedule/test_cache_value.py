"""cache_value: printed result, semantics, one exponential for all sums of online softmax, refusals."""

from collections.abc import Callable

import pytest
from tests.schedule.attention import ATTENTION, SOFTMAX, check_close
from tests.schedule.functions import refuses

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel, unroll
from tilewright.schedule.cache_value import cache_value
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import split
from tilewright.schedule.rolling_update import rolling_update
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.staging import set_scope
from tilewright.schedule.step import replay
from tilewright.schedule.store_at import store_at
from tilewright.verify.verifier import verify


def online(func: Func, loop: str, chunk: int, last: str) -> Func:
    """The sums L and `last` in the loop over chunks of the maximum."""
    func = split(func, loop, chunk)
    for block in ("L", last):
        func = rolling_update(func, block, f"{loop}_o")
    return func


@pytest.mark.parametrize("chunk", [1, 3, 4, 16, 64])
def test_sums_share_their_exponentials(chunk: int) -> None:
    for func, loop, last in ((SOFTMAX, "k", "Y"), (ATTENTION, "k_1", "O")):
        before = online(func, loop, chunk, last)
        after = cache_value(before, "L", f"{loop}_o", (last,), "P")
        verify(after)
        exponentials = [show(f).count("exp(X[") + show(f).count("exp(S[") for f in (before, after)]
        assert exponentials == [2, 1]
        check_close(func, after)


def test_attention_with_chunks_on_the_stack(golden: Callable[[str], None]) -> None:
    func = cache_value(online(ATTENTION, "k_1", 16, "O"), "L", "k_1_o", ("O",), "P")
    func = set_scope(store_at(func, "P", "k_1_o"), "P", MemoryScope.STACK)
    func = set_scope(compute_at(func, "S", "k_1_o"), "S", MemoryScope.STACK)
    for name in ("m", "m_old"):
        func = set_scope(store_at(func, name, "i_1"), name, MemoryScope.STACK)
    verify(parallel(func, "i_1"))
    golden(show(func))
    check_close(ATTENTION, parallel(func, "i_1"))


def test_one_reduction_alone() -> None:
    func = cache_value(split(SOFTMAX, "k_1", 5), "L", "k_1_o")
    assert "block L_value(" in show(func)
    check_close(SOFTMAX, func)


def test_a_trace_replays() -> None:
    s = Schedule(SOFTMAX)
    assert s.cache_value("L", "i_1") == "L_value"
    assert replay(SOFTMAX, s.trace) == s.func
    check_close(SOFTMAX, s.func)


def test_refusals() -> None:
    fused = online(SOFTMAX, "k", 4, "Y")
    cases: list[tuple[Func, tuple[str, str, tuple[str, ...]], str]] = [
        (SOFTMAX, ("m", "i", ()), "cache_value of 'm' in loop 'i': its value X[m_i, m_k] is computed already"),
        (SOFTMAX, ("L", "i", ()), "cache_value of 'L' in loop 'i': block 'L' is not in the loop"),
        (SOFTMAX, ("L", "i_1", ("Y",)), "cache_value of 'L' in loop 'i_1', reader 'Y': block 'Y' is not in the loop"),
        (fused, ("L", "k_o", ("Y_rescale",)), "cache_value of 'L' in loop 'k_o', reader 'Y_rescale': "
         "exp(X[l_i, l_k] - m[l_i]) does not occur in what it computes"),
        (unroll(split(SOFTMAX, "k_1", 4), "k_1_i"), ("L", "k_1_i", ()), "cache_value of 'L' in loop 'k_1_i': "
         "loop 'k_1_i' is unrolled; use it before loops are annotated"),
        (fused, ("Y", "k_o", ("L",)), "cache_value of 'Y' in loop 'k_o', reader 'L': "
         "it does not come after the reduction"),
    ]  # fmt: skip
    for func, args, reason in cases:
        refuses(lambda func=func, args=args: cache_value(func, *args), reason)


def test_an_input_that_changes_before_the_reader_is_refused() -> None:
    func = parse("""
func f(X: float32[8, 4], A: float32[8], B: float32[8]):
    alloc T: float32[8, 4]
    for i in serial(8):
        for k in serial(4):
            block T(t_i: 8 = i, t_k: 4 = k):
                T[t_i, t_k] = X[t_i, t_k]
        for k_1 in serial(4):
            block A(a_i: 8 = i, reduce a_k: 4 = k_1):
                init A[a_i] = 0.0
                A[a_i] = A[a_i] + exp(T[a_i, a_k])
        for k_2 in serial(4):
            block U(u_i: 8 = i, u_k: 4 = k_2):
                T[u_i, u_k] = 0.0
        for k_3 in serial(4):
            block B(b_i: 8 = i, reduce b_k: 4 = k_3):
                init B[b_i] = 0.0
                B[b_i] = B[b_i] + exp(T[b_i, b_k])
""")
    refuses(
        lambda: cache_value(func, "A", "i", ("B",)),
        "cache_value of 'A' in loop 'i': block 'U' writes 'T', which the value reads",
    )
