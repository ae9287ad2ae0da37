"""Traces: recorded by `Schedule`, replayed to an equal function, printed; every step is checked again."""

import pytest
from tests.schedule.functions import CHAIN, MATMUL, check_same

from tilewright.errors import ScheduleError
from tilewright.expr.buffer import Scope
from tilewright.loops.printer import show
from tilewright.schedule.trace import Schedule, Step, replay


def made() -> Schedule:
    """A schedule with most primitives."""
    s = Schedule(CHAIN)
    packed = s.pack("T", "B", 1, 4)
    assert packed == "B_packed"
    rows, row = s.split("i_1", 4)
    lanes, lane = s.split("j_1", 4)
    s.do("reorder", (rows, lanes, row, lane))
    s.do("compute_at", "T", lanes)
    s.do("set_scope", "T", Scope.REGISTER)
    s.do("permute", "T", (1, 0))
    s.do("reorder", ("v_k_t", "v_i_t", "v_j_t"))
    s.do("decompose_reduction", "T", "v_k_t")
    s.do("vectorize", "v_j_t")
    s.do("unroll", "v_i_t")
    s.do("vectorize", lane)
    s.do("parallel", s.fuse(rows, lanes))
    return s


def test_replay_gives_an_equal_function() -> None:
    s = made()
    assert s.origin is CHAIN
    assert replay(CHAIN, s.trace) == s.func
    check_same(CHAIN, s.func)


def test_replay_on_another_function_checks_every_step() -> None:
    with pytest.raises(ScheduleError, match=r"^\[schedule\] matmul: there is no block 'T'; blocks are C$"):
        replay(MATMUL, made().trace)


def test_a_trace_prints(golden) -> None:
    s = made()
    golden("\n".join(map(str, s.trace)) + "\n\n" + show(s.func))


def test_names_are_chosen_so_that_they_are_new() -> None:
    s = Schedule(MATMUL)
    assert s.split("i", 2) == ("i_o", "i_i")
    assert s.split("i_o", 2) == ("i_o_o", "i_o_i")
    assert s.fuse("i_o_o", "i_o_i") == "i_o_o_i_o_i"
    assert s.cache_write("C") == "C_local"
    assert replay(MATMUL, s.trace) == s.func


def test_a_refused_step_changes_nothing() -> None:
    s = Schedule(MATMUL)
    with pytest.raises(ScheduleError):
        s.do("vectorize", "i")
    assert s.func is MATMUL
    assert s.trace == ()


def test_an_unknown_primitive() -> None:
    with pytest.raises(ScheduleError, match=r"^\[schedule\] there is no primitive 'skew'; there are cache_write, "):
        replay(MATMUL, (Step("skew", ("i",)),))
