"""compute_at: semantics, printed result, refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.functions import (
    BLUR,
    CHAIN,
    GATHER,
    MATMUL,
    OVERWRITTEN,
    PARTIAL,
    ROWS,
    SCALE,
    SOFTMAX,
    STENCIL,
    applied,
    check_same,
    refuses,
    tiled_consumer,
)

from tilewright.expr.nodes import MemoryScope, Symbol
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel, unroll, vectorize
from tilewright.schedule.cache import cache_write
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import peel, reorder, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.staging import clone_producer, set_scope

M = Symbol("M", 1, 64)


@pytest.mark.parametrize("loop", ["i_1_o", "j_1_o", "i_1_i", "j_1_i"])
@pytest.mark.parametrize(("rows", "lanes"), [(4, 3), (5, 4), (1, 9), (8, 16)])
def test_compute_at_preserves_semantics(loop: str, rows: int, lanes: int) -> None:
    check_same(CHAIN, compute_at(tiled_consumer(rows, lanes), "T", loop))


def test_compute_at_an_exact_tile(golden) -> None:
    golden(show(compute_at(tiled_consumer(1, 3), "T", "j_1_o")))


def test_compute_at_a_tail(golden) -> None:
    golden(show(compute_at(tiled_consumer(4, 3), "T", "i_1_o")))


def test_unguarded_tail_where_reads_are_in_bounds() -> None:
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


def test_division_by_data_keeps_its_guard() -> None:
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
    applied(split(STENCIL, "j", factor), "compute_at", "T", "j_o")


def test_shrunk_domain_starts_at_its_first_element(golden) -> None:
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

DISTANT = parse("""
func distant(A: float32[8], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = T[w] + T[7 - w]
""")

SPREAD = parse("""
func spread(A: float32[8], Y: float32[4]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(4):
        block Y(w: 4 = j):
            Y[w] = T[w] + T[w * 2]
""")

OUTSIDE = parse("""
func outside(A: float32[1], Y: float32[2]):
    alloc T: float32[1]
    for i in serial(1):
        block T(v: 1 = i):
            T[v] = A[v] + 1.0
    for j in serial(1):
        block Y(w: 2 = 0):
            Y[w] = select(1 <= w, T[w - 1], 0.0)
    block Z(u: 2 = 1):
        Y[u] = A[u - 1]
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


@pytest.mark.parametrize(("func", "factor"), [(HALVES, 4), (HALVES, 3), (QUARTERS, 4), (MIRROR, 3), (MIRROR, 4)])
def test_regions_of_composite_indices(func: Func, factor: int) -> None:
    check_same(func, compute_at(split(func, "j", factor), "T", "j_o"))


def test_the_region_of_a_loop_with_a_changing_extent() -> None:
    func = compute_at(SHEARED, "T", "q")
    assert "alloc T: float32[7]" in show(func)
    check_same(SHEARED, func, verified=False)  # its consumer does not write all of Y


# several accesses: the box around them


TWO_READERS = parse("""
func two_readers(A: float32[N, 5], Y: float32[N], Z: float32[N]; N: 1..64):
    alloc T: float32[N]
    for i in serial(N):
        for k in serial(5):
            block T(v: N = i, reduce r: 5 = k):
                init T[v] = 0.0
                T[v] = T[v] + A[v, r]
    for j in serial((N + 3) // 4):
        for a in serial(4):
            block Y(w: N = j * 4 + a) where j * 4 + a < N:
                Y[w] = T[w]
        for b in serial(4):
            block Z(u: N = j * 4 + b) where j * 4 + b < N:
                Z[u] = select(2 <= u, T[u - 2], 1.0)
""")


@pytest.mark.parametrize("factor", [1, 2, 3, 7, 16])
def test_a_stencil_of_three_points(factor: int) -> None:
    func = applied(split(BLUR, "j", factor), "compute_at", "T", "j_o")
    assert f"alloc T: float32[{factor + 2}]" in show(func)


def test_a_stencil_in_the_innermost_loop(golden) -> None:
    golden(show(applied(split(BLUR, "j", 4), "compute_at", "T", "j_i")))


def test_two_readers_need_the_box_around_both(golden) -> None:
    golden(show(applied(TWO_READERS, "compute_at", "T", "j")))


def test_accesses_at_a_constant_distance() -> None:
    func = applied(TWICE, "compute_at", "T", "j")
    assert "alloc T: float32[5]" in show(func)


def test_consecutive_stencils() -> None:
    chain = parse("""
func chain(A: float32[N], Y: float32[N]; N: 1..64):
    alloc S: float32[N]
    alloc T: float32[N]
    for i in serial(N):
        block S(s: N = i):
            S[s] = A[s] * 2.0
    for k in serial(N):
        block T(v: N = k):
            T[v] = S[v] + select(v + 1 < N, S[v + 1], 0.0)
    for j in serial(N):
        block Y(w: N = j):
            Y[w] = T[w] + select(1 <= w, T[w - 1], 0.0)
""")
    func = compute_at(split(chain, "j", 4), "T", "j_o")
    func = applied(func, "compute_at", "S", "j_o")
    assert "alloc S: float32[6]" in show(func)
    check_same(chain, func)


@settings(max_examples=60)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=4), st.integers(1, 6), st.sampled_from(["j_o", "j_i"]))
def test_any_set_of_offsets(offsets: list[int], factor: int, loop: str) -> None:
    reads = " + ".join(f"select(0 <= w + {c} and w + {c} < N, T[w + {c}], 1.0)".replace("+ -", "- ") for c in offsets)
    stencil = parse(f"""
func stencil(A: float32[N], Y: float32[N]; N: 1..64):
    alloc T: float32[N]
    for i in serial(N):
        block T(v: N = i):
            T[v] = A[v] * 3.0
    for j in serial(N):
        block Y(w: N = j):
            Y[w] = {reads}
""")
    check_same(stencil, compute_at(split(stencil, "j", factor), "T", loop))


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
            lambda: compute_at(parallel(BLUR, "j"), "T", "j"),
            "compute_at of 'T' in loop 'j': block 'T': iterations of parallel loop 'j' may write the same element: "
            "T[v]",
        ),
        (
            lambda: compute_at(vectorize(ROWS, "i_1"), "T", "i_1"),
            "compute_at of 'T' in loop 'i_1': loop 'i_1' is vectorized; its iterations would share 'T'; use "
            "compute_at before loop 'i_1' becomes vectorized",
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
            lambda: compute_at(DISTANT, "T", "j"),
            "compute_at of 'T' in loop 'j': accesses need different regions of 'T': it is not known which of j and "
            "j * (-1) + 7 is larger; move the producer into a loop further outside",
        ),
        (
            lambda: compute_at(SPREAD, "T", "j"),
            "compute_at of 'T' in loop 'j': indices j, j * 2 take j + 1 values, which depends on 'j'",
        ),
        (
            lambda: compute_at(OUTSIDE, "T", "j"),
            "compute_at of 'T' in loop 'j': no iteration of the loop needs an element of 'T'",
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


def test_parallel_iterations_keep_distinct_parts_of_memory(golden) -> None:
    func = parallel(SOFTMAX, "i_2")
    for block in ("S", "E"):
        func = compute_at(func, block, "i_2")
    golden(show(func))
    check_same(SOFTMAX, func)


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_parallel_tiles_keep_distinct_parts_of_memory(rows: int) -> None:
    """The last tile is partial; on the stack every thread has its own tile."""
    func = parallel(split(CHAIN, "i_1", rows), "i_1_o")
    shared = compute_at(func, "T", "i_1_o")
    assert [str(b) for b in shared.allocs] == ["T: float32[M, 9]"]
    check_same(CHAIN, shared)
    assert [str(b) for b in compute_at(shared_serial(rows), "T", "i_1_o").allocs] != ["T: float32[M, 9]"]


def shared_serial(rows: int) -> Func:
    """The same tiles in a serial loop."""
    return split(CHAIN, "i_1", rows)


def test_accumulators_in_registers(golden) -> None:
    func = compute_at(tiled_consumer(2, 4), "T", "j_1_o")
    func = set_scope(func, "T", MemoryScope.REGISTER)
    func = decompose_reduction(reorder(func, ("v_k_t", "v_i_t", "v_j_t")), "T", "v_k_t")
    func = vectorize(unroll(vectorize(func, "v_j_t"), "v_i_t"), "j_1_i")
    golden(show(parallel(func, "i_1_o")))
    check_same(CHAIN, parallel(func, "i_1_o"))
