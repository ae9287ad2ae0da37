"""reverse_compute_at: semantics, printed result, refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import Native, compare
from tests.schedule.functions import (
    CHAIN,
    MATRICES,
    ROWS,
    SCALE,
    STENCIL,
    TRANSPOSED,
    TWO_STEPS,
    applied,
    check_same,
    refuses,
    run,
    tiled_producer,
)

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel
from tilewright.schedule.cache import cache_write
from tilewright.schedule.loop_transforms import fuse, peel, reorder
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.reverse_compute_at import reverse_compute_at
from tilewright.schedule.staging import set_scope
from tilewright.schedule.store_at import store_at


def test_reverse_compute_at(golden) -> None:
    golden(show(applied(ROWS, "reverse_compute_at", "Y", "i")))


def test_a_tile_with_tails(golden) -> None:
    golden(show(applied(tiled_producer(4, 4), "reverse_compute_at", "Y", "j_o")))


@pytest.mark.parametrize("loop", ["i_o", "j_o", "i_i", "j_i"])
@pytest.mark.parametrize(("rows", "lanes"), [(4, 3), (5, 4), (1, 9), (8, 16)])
@pytest.mark.parametrize("concurrent", [False, True])
def test_reverse_compute_at_preserves_semantics(loop: str, rows: int, lanes: int, concurrent: bool) -> None:
    func = tiled_producer(rows, lanes)
    check_same(CHAIN, reverse_compute_at(parallel(func, "i_o") if concurrent else func, "Y", loop))


@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(1, 9), st.permutations(["i_o", "i_i", "j_o", "j_i"]), st.integers(0, 3))
def test_any_order_of_the_loops_around_the_reduction(rows: int, lanes: int, order: list[str], at: int) -> None:
    for outer, inner in (
        ("i_o", "i_i"),
        ("j_o", "j_i"),
    ):  # tile loops outside: the covered part is a box
        o, i = sorted((order.index(outer), order.index(inner)))
        order[o], order[i] = outer, inner
    func = reorder(tiled_producer(rows, lanes), (*order, "k"))
    check_same(CHAIN, reverse_compute_at(func, "Y", order[at]))


def test_reduction_after_a_reduction() -> None:
    """The second product runs for a row as soon as that row of the first is complete."""
    func = applied(MATRICES, "reverse_compute_at", "C", "i")
    assert "for w_j_t in serial(4):" in show(func)
    check_same(MATRICES, store_at(func, "T", "i"))


def test_loops_that_were_fused() -> None:
    check_same(CHAIN, reverse_compute_at(fuse(tiled_producer(4, 3), "i_o", "j_o"), "Y", "i_o_j_o"))


def test_two_producers_of_one_consumer() -> None:
    func = reverse_compute_at(TWO_STEPS, "S", "i")
    func = applied(func, "reverse_compute_at", "Y", "i")
    check_same(TWO_STEPS, func)


def test_after_a_decomposed_reduction() -> None:
    func = decompose_reduction(tiled_producer(4, 4), "T", "j_i")
    for loop in ("i_i", "j_o"):
        check_same(CHAIN, reverse_compute_at(func, "Y", loop))


def test_the_copy_of_a_result_follows_its_tile() -> None:
    func = cache_write(tiled_producer(4, 4), "Y")
    copied = reverse_compute_at(func, "Y", "j_o")
    check_same(CHAIN, copied)


def test_it_runs_natively() -> None:
    func = store_at(reverse_compute_at(tiled_producer(4, 4), "Y", "j_o"), "T", "i_o")
    func = set_scope(func, "T", MemoryScope.STACK)
    native = Native(parallel(func, "i_o"))
    for size in (1, 7, 16):
        compare(native, run(CHAIN, {"M": size}), {"M": size})


SHIFTED = parse("""
func shifted(A: float32[8], Y: float32[8]):
    alloc T: float32[16]
    for i in serial(4):
        for x in serial(2):
            block T(v: 8 = i + x * 4):
                T[v] = A[v]
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = T[w]
""")
"""An iteration of i writes two elements that are four apart."""

LATER = parse("""
func later(A: float32[8], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for l in serial(8):
        block T_again(u: 8 = l):
            T[u] = T[u] + 1.0
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = T[w]
""")

LAST_WINS = parse("""
func last_wins(A: float32[8], Y: float32[1]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(8):
        block Y(w: 8 = j):
            Y[0] = T[w]
""")


@pytest.mark.parametrize("loop", ["i", "j"])
def test_a_transposing_consumer(loop: str) -> None:
    applied(TRANSPOSED, "reverse_compute_at", "Y", loop)


def test_unread_part_of_the_producer() -> None:
    part = parse("""
func part(A: float32[9], Y: float32[5]):
    alloc T: float32[9]
    for i in serial(9):
        block T(v: 9 = i):
            T[v] = A[v]
    for j in serial(5):
        block Y(w: 5 = j):
            Y[w] = T[w]
""")
    assert "where i < 5" in show(applied(part, "reverse_compute_at", "Y", "i"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: reverse_compute_at(ROWS, "Y", "k"),
            "'Y' in loop 'k': 'T' is incomplete there: block 'T' reduces over loop 'k'; "
            "move it into a loop outside of the reduction",
        ),
        (
            lambda: reverse_compute_at(reorder(CHAIN, ("k", "i", "j")), "Y", "i"),
            "'Y' in loop 'i': 'T' is incomplete there: block 'T' reduces over loop 'k'; "
            "move it into a loop outside of the reduction",
        ),
        (
            lambda: reverse_compute_at(MATRICES, "C", "j"),
            "'C' in loop 'j': elements of 'T' that it reads are not proved to belong to one iteration of loop 'j'",
        ),
        (
            lambda: reverse_compute_at(STENCIL, "Y", "i"),
            "'Y' in loop 'i': it reads nothing that the loop writes ('T') at its plain spatial variables",
        ),
        (
            lambda: reverse_compute_at(SHIFTED, "Y", "i"),
            "'Y' in loop 'i': elements of 'T' that it reads are not proved to belong to one iteration of loop 'i'",
        ),
        (
            lambda: reverse_compute_at(LATER, "Y", "i"),
            "'Y' in loop 'i': block 'T_again' writes 'T', which it reads, after the loop",
        ),
        (
            lambda: reverse_compute_at(LAST_WINS, "Y", "i"),
            "'Y' in loop 'i': 'w' is not an index of 'Y', which it writes",
        ),
        (
            lambda: reverse_compute_at(ROWS, "T", "i_1"),
            "'T' in loop 'i_1': it comes before its new place",
        ),
        (lambda: reverse_compute_at(SCALE, "Y", "i"), "'Y' in loop 'i': it is inside the loop already"),
        (
            lambda: reverse_compute_at(peel(ROWS, "i", 4), "Y", "i"),
            "'Y' in loop 'i': block 'T_2' writes 'T', which it reads, after the loop",
        ),
        (
            lambda: reverse_compute_at(peel(ROWS, "i", 4), "Y", "i_2"),
            "'Y' in loop 'i_2': block 'Y': binding i_2 + 4 of 'w_i' covers 4..7, expected 0..7 once",
        ),
        (
            lambda: reverse_compute_at(reorder(tiled_producer(4, 3), ("i_i", "i_o")), "Y", "i_i"),
            "'Y' in loop 'i_i': elements of 'T' that it reads are not proved to belong to one iteration of loop 'i_i'",
        ),
    ],
)
def test_reverse_compute_at_refuses(make, message: str) -> None:
    refuses(make, f"reverse_compute_at of {message}")
