"""split, fuse, reorder, peel: semantics, printed result, refusals."""

import pytest
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, SUMS, WIDE, check_same

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Symbol, Var
from tilewright.loops.ir import Func, LoopKind
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import bind, parallel, unroll, vectorize
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import fuse, peel, reorder, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.tails import Tail
from tilewright.verify.verifier import verify

M, N = Symbol("M", 1, 64), Symbol("N", 1, 64)


@pytest.mark.parametrize("loop", ["i", "j", "k"])
@pytest.mark.parametrize("factor", [1, 2, 3, 5, 16])
def test_split_preserves_semantics(loop: str, factor: int) -> None:
    check_same(MATMUL, split(MATMUL, loop, factor))


def test_split_twice_preserves_semantics() -> None:
    check_same(MATMUL, split(split(MATMUL, "i", 6), "i_i", 4))


def test_split_with_a_tail(golden) -> None:
    golden(show(split(SCALE, "i", 4)))


def test_split_without_a_tail(golden) -> None:
    golden(show(split(SCALE, "j", 3)))


def test_split_of_a_parallel_loop_keeps_threads_outside() -> None:
    func = split(parallel(SCALE, "i"), "i", 4)
    assert "for i_o in parallel((N + 3) // 4):" in show(func)
    assert "for i_i in serial(4):" in show(func)
    check_same(SCALE, func)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: split(SCALE, "i", 0), "split of loop 'i': factor must be at least 1, got 0"),
        (lambda: split(SCALE, "x", 2), "scale: there is no loop 'x'; loops are i, j"),
        (lambda: split(SCALE, "i", 2, ("j", "ii")), "split of loop 'i': name 'j' is already used"),
        (lambda: split(SCALE, "i", 2, ("p", "p")), "split of loop 'i': name 'p' is already used"),
        (
            lambda: split(vectorize(SCALE, "j"), "j", 2),
            "split of loop 'j': the loop is vectorized already; split it before `vectorize`",
        ),
    ],
)
def test_split_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


def test_fuse(golden) -> None:
    func = fuse(MATMUL, "i", "j")
    golden(show(func))
    check_same(MATMUL, func)


def test_fuse_of_a_symbolic_inner_loop() -> None:
    check_same(MATMUL, fuse(reorder(MATMUL, ("j", "i")), "j", "i"))


TRIANGLE = parse("""
func triangle(A: float32[6], Y: float32[6, 6]):
    for i in serial(6):
        for j in serial(6 - i):
            block Y(v_i: 6 = i, v_j: 6 = j):
                Y[v_i, v_j] = A[v_i]
""")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fuse(MATMUL, "i", "k"), "fuse of loops 'i' and 'k': 'k' is not directly inside 'i'"),
        (lambda: fuse(ROWS, "k", "T"), "fuse of loops 'k' and 'T': 'T' is not directly inside 'k'"),
        (lambda: fuse(parallel(SCALE, "i"), "i", "j"), "fuse of loops 'i' and 'j': kinds differ: parallel and serial"),
        (
            lambda: fuse(MATMUL, "j", "k"),
            "fuse of loops 'j' and 'k': block 'C' is spatial in one and reduces over the other",
        ),
        (lambda: fuse(TRIANGLE, "i", "j"), "fuse of loops 'i' and 'j': the extent of 'j' depends on 'i'"),
        (lambda: fuse(MATMUL, "i", "j", "k"), "fuse of loops 'i' and 'j': name 'k' is already used"),
    ],
)
def test_fuse_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


SHARED = """
func shared(A: float32[6, 5], Y: float32[6, 5]):
    alloc T: float32[5]
    for i in serial(6):
        for j in serial(5):
            block T(v: 6 = i, w: 5 = j):
                T[w] = A[v, w]
            block Y(x: 6 = i, y: 5 = j):
                Y[x, y] = T[y] + T[4 - y]
"""
"""Iterations of i read what others of i wrote, through a buffer in memory."""

USED_AFTERWARDS = """
    for k in serial(5):
        block Y_2(z: 6 = 0, u: 5 = k):
            Y[z, u] = T[u]
"""


def test_reorder_around_blocks_that_share_a_buffer_in_memory() -> None:
    """Every iteration writes what it reads of T, whatever the order."""
    func = parse(SHARED.replace("T[4 - y]", "A[x, 4 - y]"))
    check_same(func, reorder(func, ("j", "i")))


def test_reorder_around_blocks_with_independent_iterations() -> None:
    func = reorder(compute_at(CHAIN, "T", "j_1"), ("j_1", "i_1"))
    assert show(func).index("for j_1") < show(func).index("for i_1")
    check_same(CHAIN, func)


@pytest.mark.parametrize("order", ["kij", "kji", "ji", "ikj", "ki", "ij"])
def test_reorder_preserves_semantics(order: str) -> None:
    check_same(MATMUL, reorder(MATMUL, tuple(order)))


def test_reorder(golden) -> None:
    golden(show(reorder(MATMUL, ("k", "i"))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: reorder(MATMUL, ()), "reorder: no loops are named"),
        (lambda: reorder(MATMUL, ("i", "i")), "reorder of i, i: a loop is named twice"),
        (lambda: reorder(CHAIN, ("i", "j_1")), "reorder of i, j_1: 'j_1' not in a perfect nest with 'i'"),
        (lambda: reorder(TRIANGLE, ("j", "i")), "reorder: the extent of 'j' depends on 'i'"),
        (
            lambda: reorder(parse(SHARED), ("j", "i")),
            "reorder of j, i: block 'Y': reads T[4 - y] of buffer 'T', which this iteration of 'i' is not "
            "proved to have written: block 'T' before it writes T[j]",
        ),
        (
            lambda: reorder(parse(SHARED.replace("T[w]", "T[v]").replace("[5]\n    for", "[6]\n    for")), ("j", "i")),
            "reorder of j, i: block 'Y': may read an element that another iteration of loop 'i' writes: T[y]",
        ),
        (
            lambda: reorder(parse(SHARED + USED_AFTERWARDS), ("j", "i")),
            "reorder of j, i: block 'T': iterations of loop 'i' may write the same element: T[w]",
        ),
        (
            lambda: reorder(split(WIDE, "j", 4, None, Tail.SHIFT_INWARDS), ("k", "j_o")),
            "reorder of k, j_o: block 'C': iterations of loop 'j_i' accumulate the same points into one element of 'C'",
        ),
        (
            lambda: reorder(vectorize(split(WIDE, "j", 4, None, Tail.SHIFT_INWARDS), "j_i"), ("j_i", "j_o")),
            "reorder of j_i, j_o: block 'C': iterations of vectorized loop 'j_i' may write the same element: "
            "C[v_i, v_j]",
        ),
        (
            lambda: reorder(bind(bind(SCALE, "i", LoopKind.BLOCK_X), "j", LoopKind.THREAD_X), ("j", "i")),
            "reorder of j, i: loop 'i': block axis block_x can't be inside thread axis thread_x (loop 'j')",
        ),
        (
            lambda: reorder(split(SUMS, "i", 2), ("i_i", "i_o")),
            "reorder of i_i, i_o: block 'S' reads other elements of 'Y' than it writes: its order matters",
        ),
        (
            lambda: reorder(vectorize(parallel(SCALE, "i"), "j"), ("j", "i")),
            "reorder of j, i: parallel loop 'i' would be inside vectorized loop 'j'",
        ),
    ],
)
def test_reorder_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


def test_peel(golden) -> None:
    func = peel(SCALE, "i", N // 4 * 4)
    golden(show(func))
    check_same(SCALE, func)


def test_peel_drops_unneeded_guards() -> None:
    func = peel(split(SCALE, "i", 4), "i_o", N // 4)
    head, tail = show(func).split("for i_o_2")
    assert "where" not in head
    assert "where" in tail
    check_same(SCALE, func)


@pytest.mark.parametrize("at", [1, 3, 4])
def test_peel_of_a_reduction_preserves_semantics(at: int) -> None:
    check_same(MATMUL, peel(MATMUL, "k", at))


def test_peel_of_an_inner_loop_with_several_blocks() -> None:
    func = peel(compute_at(CHAIN, "T", "i_1"), "i_1", M // 2)
    check_same(CHAIN, func)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: peel(SCALE, "j", 7), "peel of loop 'j': cut 7 is not proved to lie in 0..6"),
        (lambda: peel(SCALE, "j", -1), "peel of loop 'j': cut -1 is not proved to lie in 0..6"),
        (lambda: peel(SCALE, "j", 6), "peel of loop 'j': cut 6 of 0..6 leaves one part empty"),
        (lambda: peel(SCALE, "j", 0), "peel of loop 'j': cut 0 of 0..6 leaves one part empty"),
        (lambda: peel(SCALE, "i", 2), "peel of loop 'i': cut 2 is not proved to lie in 0..N"),
        (
            lambda: peel(SCALE, "j", Var("q")),
            "peel of loop 'j': cut q uses 'q', which is not known outside the loop",
        ),
        (
            lambda: peel(SCALE, "i", Var("j")),
            "peel of loop 'i': cut j uses 'j', which is not known outside the loop",
        ),
        (
            lambda: peel(unroll(SCALE, "j"), "j", 2),
            "peel of loop 'j': the loop is unrolled, only a serial one can be cut",
        ),
    ],
)
def test_peel_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


def test_peeled_reduction_is_initialised_once() -> None:
    func = peel(MATMUL, "k", 3)
    with pytest.raises(ScheduleError, match=r"reduction k_2 \+ 3 does not start at 0: another part initialises it"):
        decompose_reduction(func, "C_2", "k_2")


def test_names_stay_unique() -> None:
    func: Func = MATMUL
    for loop, at in (("i", M // 2), ("j", 4), ("j_2", 2)):
        func = peel(func, loop, at)
    verify(func)
    check_same(MATMUL, func)
