"""compute_at and decompose_reduction: meaning, printed result, and what they refuse."""

import pytest
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, STENCIL, check_same
from tests.schedule.test_staging import OVERWRITTEN, refuses

from tilewright.expr.buffer import Scope
from tilewright.expr.nodes import Var
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.kinds import parallel, unroll, vectorize
from tilewright.schedule.loops import peel, reorder, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.staging import cache_write, clone_producer, set_scope

M = Var("M", 1, 64)


def tiled(rows: int, lanes: int) -> Func:
    """CHAIN with its consumer cut into tiles."""
    func = split(split(CHAIN, "i_1", rows), "j_1", lanes)
    return reorder(func, ("i_1_o", "j_1_o", "i_1_i", "j_1_i"))


@pytest.mark.parametrize("loop", ["i_1_o", "j_1_o", "i_1_i", "j_1_i"])
@pytest.mark.parametrize(("rows", "lanes"), [(4, 3), (5, 4), (1, 9), (8, 16)])
def test_compute_at_keeps_meaning(loop: str, rows: int, lanes: int) -> None:
    check_same(CHAIN, compute_at(tiled(rows, lanes), "T", loop))


def test_compute_at_an_exact_tile(golden) -> None:
    golden(show(compute_at(tiled(1, 3), "T", "j_1_o")))


def test_compute_at_a_tail(golden) -> None:
    golden(show(compute_at(tiled(4, 3), "T", "i_1_o")))


def test_compute_at_a_tail_that_may_be_computed_too() -> None:
    wide = parse("""
func wide(A: float32[16], Y: float32[9]):
    alloc T: float32[9]
    for i in serial(9):
        block T(v: 9 = i):
            T[v] = A[v] * 2.0
    for j in serial(9):
        block Y(w: 9 = j):
            Y[w] = T[w]
""")
    func = compute_at(split(wide, "j", 8), "T", "j_o")
    assert "block T(v: 16 = j_o * 8 + v_t):" in show(func)
    check_same(wide, func)


def test_a_division_by_data_keeps_its_guard() -> None:
    wide = parse("""
func wide(A: int32[16], B: int32[16], Y: int32[9]):
    alloc T: int32[9]
    for i in serial(9):
        block T(v: 9 = i):
            T[v] = A[v] // B[v]
    for j in serial(9):
        block Y(w: 9 = j):
            Y[w] = T[w]
""")
    func = compute_at(split(wide, "j", 8), "T", "j_o")
    assert "where j_o * 8 + v_t < 9:" in show(func)
    check_same(wide, func)


@pytest.mark.parametrize("factor", [1, 3, 4, 64])
def test_a_region_that_starts_before_the_first_element(factor: int) -> None:
    func = compute_at(split(STENCIL, "j", factor), "T", "j_o")
    check_same(STENCIL, func, verified=False)


def test_a_part_of_the_domain_is_counted_from_its_first_element(golden) -> None:
    func = clone_producer(peel(CHAIN, "i_1", M // 2), "T", "Y_2")
    func = compute_at(compute_at(func, "T", "i_1"), "T_3", "i_1_2")
    golden(show(func))
    check_same(CHAIN, func)


def test_reduction_loops_stay_whole_even_with_one_iteration() -> None:
    single = parse("""
func single(A: float32[8, 1], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        for k in serial(1):
            block T(v: 8 = i, reduce r: 1 = k):
                init T[v] = 0.0
                T[v] = T[v] + A[v, r]
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = T[w]
""")
    func = compute_at(single, "T", "j")
    assert "for r_t in serial(1):" in show(func)
    check_same(single, decompose_reduction(func, "T", "r_t"))


SHEARED = parse("""
func sheared(A: float32[16], Y: float32[4, 4]):
    alloc T: float32[16]
    for i in serial(16):
        block T(v: 16 = i):
            T[v] = A[v]
    for q in serial(1):
        for j in serial(4):
            for k in serial(4 - j):
                block Y(w_j: 4 = j, w_k: 4 = k):
                    Y[w_j, w_k] = T[w_k * 2 + w_j]
""")
"""The region ends with the last k of the first j, although the index grows with both."""

QUARTERS = parse("""
func quarters(A: float32[4], Y: float32[16]):
    alloc T: float32[4]
    for i in serial(4):
        block T(v: 4 = i):
            T[v] = A[v]
    for j in serial(16):
        block Y(w: 16 = j):
            Y[w] = T[w // 4]
""")

HALVES = parse("""
func halves(A: float32[8], Y: float32[16]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(16):
        block Y(w: 16 = j):
            Y[w] = T[w // 2]
""")

TWICE = parse("""
func twice(A: float32[8], Y: float32[4]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(4):
        block Y(w: 4 = j):
            Y[w] = T[w] + T[w + 4]
""")

GATHER = parse("""
func gather(A: float32[8], I: int64[4], Y: float32[4]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(4):
        block Y(w: 4 = j):
            Y[w] = T[I[w]]
""")

MIRROR = parse("""
func mirror(A: float32[9], Y: float32[9]):
    alloc T: float32[9]
    for i in serial(9):
        block T(v: 9 = i):
            T[v] = A[v]
    for j in serial(9):
        block Y(w: 9 = j):
            Y[w] = T[8 - w]
""")

PARTIAL = parse("""
func partial(A: float32[8], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i) where i < 5:
            T[v] = A[v]
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = select(w < 5, T[w], 0.0)
""")


@pytest.mark.parametrize(("func", "factor"), [(HALVES, 4), (HALVES, 3), (QUARTERS, 4), (MIRROR, 3), (MIRROR, 4)])
def test_regions_of_indices_that_are_not_plain(func: Func, factor: int) -> None:
    check_same(func, compute_at(split(func, "j", factor), "T", "j_o"), verified=False)


def test_the_region_of_a_loop_with_a_changing_extent() -> None:
    func = compute_at(SHEARED, "T", "q")
    assert "alloc T: float32[7]" in show(func)
    check_same(SHEARED, func, verified=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: compute_at(MATMUL, "C", "i"),
            "compute_at of 'C' in loop 'i': it writes 'C', which is not internal",
        ),
        (
            lambda: compute_at(compute_at(ROWS, "T", "i_1"), "T", "i_1"),
            "compute_at of 'T' in loop 'i_1': it is inside the loop already",
        ),
        (
            lambda: compute_at(peel(ROWS, "i", 4), "T", "i_1"),
            "compute_at of 'T' in loop 'i_1': block 'T_2' writes 'T' too",
        ),
        (
            lambda: compute_at(peel(ROWS, "i_1", 4), "T", "i_1"),
            "compute_at of 'T' in loop 'i_1': block 'Y_2' reads 'T' outside the loop",
        ),
        (
            lambda: compute_at(parallel(ROWS, "i_1"), "T", "i_1"),
            "compute_at of 'T' in loop 'i_1': loop 'i_1' is parallel; its iterations would share 'T'",
        ),
        (
            lambda: compute_at(vectorize(ROWS, "i_1"), "T", "i_1"),
            "compute_at of 'T' in loop 'i_1': loop 'i_1' is vectorized; its iterations would share 'T'",
        ),
        (
            lambda: compute_at(OVERWRITTEN, "T", "l"),
            "compute_at of 'T' in loop 'l': block 'S_again' writes 'S', which it reads",
        ),
        (
            lambda: compute_at(split(QUARTERS, "j", 3), "T", "j_o"),
            "compute_at of 'T' in loop 'j_o': index (j_i + j_o * 3) // 4 takes (j_o * 3 + 2) // 4 - j_o * 3 // 4 + 1 "
            "values, which depends on 'j_o'",
        ),
        (
            lambda: compute_at(TWICE, "T", "j"),
            "compute_at of 'T' in loop 'j': accesses need different regions of 'T'",
        ),
        (lambda: compute_at(GATHER, "T", "j"), "compute_at of 'T' in loop 'j': index I[j] depends on data"),
        (
            lambda: compute_at(PARTIAL, "T", "j"),
            "compute_at of 'T' in loop 'j': its predicate i < 5 does more than guard a tail",
        ),
        (lambda: compute_at(CHAIN, "Y", "i"), "compute_at of 'Y' in loop 'i': it writes 'Y', which is not internal"),
        (
            lambda: compute_at(cache_write(SCALE, "Y"), "Y", "i"),
            "compute_at of 'Y' in loop 'i': it is inside the loop already",
        ),
    ],
)
def test_compute_at_refuses(make, message: str) -> None:
    refuses(make, message)


# decompose_reduction


@pytest.mark.parametrize("loop", ["i", "j", "k"])
def test_decompose_reduction_keeps_meaning(loop: str) -> None:
    check_same(MATMUL, decompose_reduction(MATMUL, "C", loop))


@pytest.mark.parametrize("loop", ["k", "i", "j_i"])
def test_decompose_reduction_of_reordered_and_guarded_loops(loop: str) -> None:
    func = reorder(split(split(MATMUL, "j", 4), "k", 2), ("k_o", "i", "k_i", "j_o", "j_i"))
    check_same(MATMUL, decompose_reduction(func, "C", "k_o"))
    if loop == "j_i":
        refuses(
            lambda: decompose_reduction(func, "C", "j_i"),
            "decompose_reduction of 'C': it reduces over 'k_i', outside 'j_i'",
        )


def test_decompose_reduction_keeps_the_kinds_of_loops(golden) -> None:
    func = unroll(vectorize(reorder(split(MATMUL, "j", 4), ("i", "j_o", "k", "j_i")), "j_i"), "k")
    func = decompose_reduction(func, "C", "k")
    golden(show(func))
    check_same(MATMUL, func)


DIAGONAL = parse("""
func diagonal(A: float32[4, 5], Y: float32[4]):
    for f in serial(20):
        block Y(v: 4 = f // 5, reduce r: 5 = f % 5):
            init Y[v] = 0.0
            Y[v] = Y[v] + A[v, r]
""")


def test_a_staged_accumulator_is_initialised_in_every_tile() -> None:
    func = compute_at(tiled(4, 3), "T", "j_1_o")
    for loop in ("v_i_t", "v_j_t", "v_k_t"):
        order = (loop, *(x for x in ("v_i_t", "v_j_t", "v_k_t") if x != loop))
        check_same(CHAIN, decompose_reduction(reorder(func, order), "T", order[0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: decompose_reduction(SCALE, "Y", "j"), "decompose_reduction of 'Y': it has no init"),
        (
            lambda: decompose_reduction(reorder(MATMUL, ("k", "i", "j")), "C", "i"),
            "decompose_reduction of 'C': it reduces over 'k', outside 'i'",
        ),
        (
            lambda: decompose_reduction(CHAIN, "T", "i_1"),
            "decompose_reduction of 'T': loop 'i_1' is not around it",
        ),
        (
            lambda: decompose_reduction(compute_at(ROWS, "T", "i_1"), "T", "i_1"),
            "decompose_reduction of 'T': block 'Y' uses 'T' there too",
        ),
        (
            lambda: decompose_reduction(DIAGONAL, "Y", "f"),
            "decompose_reduction of 'Y': loop 'f' drives spatial variable 'v' too",
        ),
        (
            lambda: decompose_reduction(peel(MATMUL, "k", 3), "C_2", "k_2"),
            "decompose_reduction of 'C_2': reduction k_2 + 3 does not start at 0: another part initialises it",
        ),
    ],
)
def test_decompose_reduction_refuses(make, message: str) -> None:
    refuses(make, message)


def test_an_init_is_not_moved_out_of_a_loop_that_starts_again() -> None:
    again = parse("""
func again(A: float32[6], Y: float32[]):
    for n in serial(3):
        for k in serial(6):
            block Y(reduce v: 6 = k):
                init Y[] = 0.0
                Y[] = Y[] + A[v]
""")
    check_same(again, decompose_reduction(again, "Y", "k"), verified=False)
    refuses(
        lambda: decompose_reduction(again, "Y", "n"),
        "decompose_reduction of 'Y': iterations of 'n' write the same element of 'Y'",
    )


def test_accumulators_in_registers(golden) -> None:
    func = compute_at(tiled(2, 4), "T", "j_1_o")
    func = set_scope(func, "T", Scope.REGISTER)
    func = decompose_reduction(reorder(func, ("v_k_t", "v_i_t", "v_j_t")), "T", "v_k_t")
    func = vectorize(unroll(vectorize(func, "v_j_t"), "v_i_t"), "j_1_i")
    golden(show(parallel(func, "i_1_o")))
    check_same(CHAIN, parallel(func, "i_1_o"))
