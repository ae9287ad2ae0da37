"""inline and reverse_inline: semantics, printed result, refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import Native, compare
from tests.schedule.functions import (
    BLUR,
    CHAIN,
    GATHER,
    OVERWRITTEN,
    PARTIAL,
    ROWS,
    SCALE,
    STENCIL,
    SUMS,
    TRANSPOSED,
    TWO_STEPS,
    applied,
    check_same,
    refuses,
    run,
)

from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel, vectorize
from tilewright.schedule.cache import cache_read, cache_write, pack
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.inline import inline
from tilewright.schedule.loop_transforms import peel, reorder, split
from tilewright.schedule.reverse_compute_at import reverse_compute_at
from tilewright.schedule.reverse_inline import reverse_inline

# inline


def test_inline(golden) -> None:
    golden(show(applied(BLUR, "inline", "T")))


MIXED = parse("""
func mixed(A: float32[N, 6], B: float32[6], Y: float32[N, 6]; N: 1..64):
    alloc P: float32[6, N]
    alloc Q: float32[N, 6]
    alloc R: float32[N]
    for i in serial(N):
        for j in serial(6):
            block P(p_i: N = i, p_j: 6 = j):
                P[p_j, p_i] = A[p_i, p_j] * 2.0
    for i_1 in serial(N):
        for j_1 in serial(6):
            block Q(q_i: N = i_1, q_j: 6 = j_1):
                Q[q_i, q_j] = P[q_j, q_i] + B[q_j]
    for i_2 in serial(N):
        for k in serial(6):
            block R(r_i: N = i_2, reduce r_k: 6 = k):
                init R[r_i] = Q[r_i, 0]
                R[r_i] = R[r_i] + Q[r_i, r_k] * P[r_k, r_i]
    for i_3 in serial(N):
        for j_3 in serial(6):
            block Y(y_i: N = i_3, y_j: 6 = j_3):
                Y[y_i, y_j] = R[y_i] + select(3 <= y_j, Q[y_i, y_j - 3], P[y_j, y_i])
""")


def test_inline_into_a_reduction_and_an_epilogue() -> None:
    func = applied(MIXED, "inline", "P")
    assert "alloc P" not in show(func)
    check_same(MIXED, applied(func, "inline", "Q"))


@pytest.mark.parametrize("order", [("P", "Q"), ("Q", "P")])
def test_the_order_does_not_matter(order: tuple[str, str]) -> None:
    func = MIXED
    for name in order:
        func = inline(func, name)
    check_same(MIXED, func)
    assert show(func) == show(inline(inline(MIXED, "P"), "Q"))


def test_inline_after_the_loops_were_changed() -> None:
    func = parallel(vectorize(split(split(MIXED, "i", 4), "j", 3), "j_i"), "i_o")
    func = split(func, "j_3", 4)
    check_same(MIXED, inline(func, "P"))


def test_indirect_index() -> None:
    gather = parse(show(GATHER).replace("T[I[w]]", "T[max(0, min(I[w], 7))]"))
    assert "Y[w] = A[max(0, min(I[w], 7))]" in show(applied(gather, "inline", "T"))


def test_an_inlined_index() -> None:
    func = parse("""
func indexed(I: int64[4], A: float32[8], Y: float32[4]):
    alloc J: int64[4]
    for i in serial(4):
        block J(v: 4 = i):
            J[v] = max(0, min(I[v], 7))
    for j in serial(4):
        block Y(w: 4 = j):
            Y[w] = A[max(0, min(J[w], 7))]
""")
    check_same(func, inline(func, "J"))


def test_packed_copy_is_inlined_again() -> None:
    func = pack(CHAIN, "T", "B", 1, 4)
    check_same(CHAIN, inline(func, "B_packed_pack"))


@settings(max_examples=40)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=3), st.integers(1, 5))
def test_readers_at_any_offset(offsets: list[int], factor: int) -> None:
    reads = " + ".join(f"select(0 <= w + {c} and w + {c} < N, T[w + {c}], 1.0)".replace("+ -", "- ") for c in offsets)
    func = parse(f"""
func stencil(A: float32[N], Y: float32[N]; N: 1..64):
    alloc T: float32[N]
    for i in serial(N):
        block T(v: N = i):
            T[v] = select(1 <= v, A[v - 1], 2.0) * 3.0
    for j in serial(N):
        block Y(w: N = j):
            Y[w] = {reads}
""")
    check_same(func, inline(split(func, "j", factor), "T"))


def test_inlined_code_runs_natively() -> None:
    func = vectorize(split(inline(BLUR, "T"), "j", 4), "j_i")
    native = Native(parallel(func, "j_o"))
    for size in (1, 7, 16):
        compare(native, run(BLUR, {"N": size}), {"N": size})


UNREAD = parse("""
func unread(A: float32[8], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = A[w]
""")

IN_PLACE = parse("""
func in_place(X: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = X[v] * 2.0
    for j in serial(8):
        block X(w: 8 = j):
            X[w] = T[7 - w]
""")
"""The reader overwrites what the producer reads."""

LONGER = parse("""
func longer(A: float32[5], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(5):
        block T(v: 5 = i):
            T[v] = A[v]
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = T[w] * 0.0
""")
"""The reader reads more than was written."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: inline(CHAIN, "T"),
            "'T': block 'T' reduces over 'v_k'; use compute_at to run it in a loop of its readers",
        ),
        (lambda: inline(SCALE, "Y"), "'Y': it writes 'Y', which is not internal"),
        (
            lambda: inline(SUMS, "S"),
            "'S': block 'S' accumulates into 'Y'; use compute_at to run it in a loop of its readers",
        ),
        (lambda: inline(UNREAD, "T"), "'T': nothing reads 'T'"),
        (lambda: inline(IN_PLACE, "T"), "'T': block 'X' writes 'X', which it reads"),
        (lambda: inline(OVERWRITTEN, "T"), "'T': block 'S_again' writes 'S', which it reads"),
        (lambda: inline(peel(BLUR, "i", 1), "T"), "'T': block 'T_2' writes 'T' too"),
        (lambda: inline(PARTIAL, "T"), "'T': its predicate i < 5 does more than guard a tail"),
        (
            lambda: inline(LONGER, "T"),
            "'T': block 'Y': index w of buffer 'A' (read, dimension 0) is not proved < 5",
        ),
        (
            lambda: inline(compute_at(split(STENCIL, "j", 4), "T", "j_o"), "T"),
            "'T': block 'T' does not write at its plain iteration variables",
        ),
    ],
)
def test_inline_refuses(make, message: str) -> None:
    refuses(make, f"inline of {message}")


# reverse_inline


def test_reverse_inline(golden) -> None:
    golden(show(applied(TWO_STEPS, "reverse_inline", "Y")))


def test_a_transposing_consumer(golden) -> None:
    golden(show(applied(TRANSPOSED, "reverse_inline", "Y")))


def test_the_producer_keeps_its_schedule() -> None:
    func = parallel(vectorize(split(split(TRANSPOSED, "i", 4), "j", 2), "j_i"), "i_o")
    folded = reverse_inline(func, "Y")
    assert "for i_o in parallel" in show(folded)
    assert "for j_i in vectorized(2)" in show(folded)
    check_same(TRANSPOSED, folded)
    native = Native(folded)
    for size in (1, 7):
        compare(native, run(TRANSPOSED, {"M": size}), {"M": size})


def test_cache_write_copy_is_inlined_again() -> None:
    func = reverse_inline(cache_write(SCALE, "Y"), "Y_write")
    assert "alloc" not in show(func)
    check_same(SCALE, func)


def test_dimensions_of_one_element() -> None:
    func = parse("""
func ones(A: float32[N], Y: float32[1, N]; N: 1..64):
    alloc T: float32[N]
    for i in serial(N):
        block T(v: N = i):
            T[v] = A[v] * 2.0
    for a in serial(1):
        for j in serial(N):
            block Y(w_a: 1 = a, w: N = j):
                Y[w_a, w] = T[w] + A[w]
""")
    assert "Y[0, v] = A[v] * 2.0 + A[v]" in show(applied(func, "reverse_inline", "Y"))


BROADCAST = parse("""
func broadcast(A: float32[8], Y: float32[3, 8]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for a in serial(3):
        for j in serial(8):
            block Y(w_a: 3 = a, w: 8 = j):
                Y[w_a, w] = T[w]
""")

SHORTER = parse("""
func shorter(A: float32[8], Y: float32[5]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(5):
        block Y(w: 5 = j):
            Y[w] = T[w]
""")

BETWEEN = parse("""
func between(A: float32[8], Y: float32[8]):
    alloc T: float32[8]
    alloc S: float32[8]
    for h in serial(8):
        block S(s: 8 = h):
            S[s] = A[s] * 3.0
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = S[v] + A[v]
        block S_again(u: 8 = i):
            S[u] = 0.0
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = T[w] + S[w]
""")

REDUCED = "use reverse_compute_at to run the consumer in a loop of its producer"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: reverse_inline(CHAIN, "Y"), f"'Y': block 'T' reduces over 'v_k'; {REDUCED}"),
        (lambda: reverse_inline(ROWS, "T"), "'T': nothing before it writes what it reads"),
        (lambda: reverse_inline(MIXED, "Y"), f"'Y': block 'R' reduces over 'r_k'; {REDUCED}"),
        (lambda: reverse_inline(MIXED, "Q"), f"'Q': block 'R' reads 'P' too; {REDUCED}"),
        (
            lambda: reverse_inline(BLUR, "Y"),
            f"'Y': it does not read every element of 'T' at one point; {REDUCED}",
        ),
        (lambda: reverse_inline(BROADCAST, "Y"), f"'Y': it reads 'T' again for every 'w_a'; {REDUCED}"),
        (
            lambda: reverse_inline(SHORTER, "Y"),
            f"'Y': it does not read 'T', all of it, at its plain iteration variables; {REDUCED}",
        ),
        (
            lambda: reverse_inline(IN_PLACE, "X"),
            "'X': block 'T' uses 'X' before it",
        ),
        (lambda: reverse_inline(BETWEEN, "Y"), "'Y': block 'S' writes 'S' too"),
        (
            lambda: reverse_inline(reverse_compute_at(ROWS, "Y", "i"), "Y"),
            f"'Y': block 'T' reduces over 'v_k'; {REDUCED}",
        ),
        (
            lambda: reverse_inline(cache_read(ROWS, "T", "A"), "T"),
            "'T': block 'T' reduces over 'v_k'; use inline to substitute its producer",
        ),
        (
            lambda: reverse_inline(reorder(TRANSPOSED, ("j", "i")), "T"),
            "'T': nothing before it writes what it reads",
        ),
    ],
)
def test_reverse_inline_refuses(make, message: str) -> None:
    refuses(make, f"reverse_inline of {message}")
