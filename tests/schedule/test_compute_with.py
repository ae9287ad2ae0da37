"""compute_with: semantics, printed result, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import check
from tests.schedule.functions import applied, check_same, refuses

from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel, vectorize
from tilewright.schedule.compute_with import compute_with
from tilewright.schedule.loop_transforms import reorder, split
from tilewright.verify.verifier import verify

TWO_RESULTS = parse("""
func f(X: float32[M, 20], B: float32[M], C: float32[M, 20]; M: 1..30):
    for i in serial(M):
        for k in serial(20):
            block B(v: M = i, reduce r: 20 = k):
                init B[v] = 0.0
                B[v] = B[v] + X[v, r]
    for i_2 in serial(M):
        for j in serial(20):
            block C(w: M = i_2, x: 20 = j):
                C[w, x] = X[w, x] * B[w]
""")
"""Sums of rows, and rows multiplied by them; both are results."""

SIBLINGS = parse("""
func f(X: float32[24, 20], B: float32[24, 20], C: float32[24, 20]):
    for i in serial(24):
        for j in serial(20):
            block B(v: 24 = i, w: 20 = j):
                B[v, w] = X[v, w] + 1.0
    for i_2 in serial(24):
        for j_2 in serial(20):
            block C(v_2: 24 = i_2, w_2: 20 = j_2):
                C[v_2, w_2] = X[v_2, w_2] * 2.0
""")
"""Two results of one operand."""

STENCIL = parse("""
func f(X: float32[24], B: float32[24], C: float32[24]):
    for i in serial(24):
        block B(v: 24 = i):
            B[v] = X[v] + 1.0
    for i_2 in serial(24):
        block C(w: 24 = i_2):
            C[w] = B[23 - w] * 2.0
""")

IN_BETWEEN = parse("""
func f(X: float32[24], B: float32[24], C: float32[24], D: float32[24]):
    for i in serial(24):
        block B(v: 24 = i):
            B[v] = X[v] + 1.0
    for i_2 in serial(24):
        block C(w: 24 = i_2):
            C[w] = B[w] * 2.0
    for i_3 in serial(24):
        block D(x: 24 = i_3):
            D[x] = X[x] * 2.0
""")


def test_compute_with(golden) -> None:
    golden(show(applied(TWO_RESULTS, "compute_with", "B", "i_2")))


@pytest.mark.parametrize("concurrent", [False, True])
def test_results_that_the_later_nest_reads(concurrent: bool) -> None:
    func = parallel(TWO_RESULTS, "i_2") if concurrent else TWO_RESULTS
    check_same(TWO_RESULTS, compute_with(func, "B", "i_2"))


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 30))
def test_tiles_with_tails(rows: int, factor: int) -> None:
    func = TWO_RESULTS
    for loop in ("i", "i_2"):
        func = split(func, loop, rows)
    func = split(func, "j", factor)
    moved = compute_with(func, "B", "i_2_o")
    verify(moved)
    check_same(TWO_RESULTS, moved)
    verify(parallel(moved, "i_2_o"))


def test_siblings_share_all_loops() -> None:
    moved = compute_with(SIBLINGS, "B", "j_2")
    check_same(SIBLINGS, moved)
    tiled = split(split(split(SIBLINGS, "j", 8), "j_2", 8), "i", 5)
    order = reorder(split(tiled, "i_2", 5), ("i_2_o", "j_2_o", "i_2_i", "j_2_i"))
    order = reorder(order, ("i_o", "j_o", "i_i", "j_i"))
    moved = vectorize(vectorize(compute_with(order, "B", "i_2_i"), "j_i"), "j_2_i")
    check_same(SIBLINGS, moved)
    rng = np.random.default_rng(3)
    arrays = {p.name: rng.standard_normal((24, 20), dtype=np.float32) for p in moved.params}
    check(parallel(moved, "i_2_o"), arrays)


@pytest.mark.parametrize(
    ("func", "block", "loop", "message"),
    [
        (TWO_RESULTS, "C", "i", "it comes after its new place"),
        (TWO_RESULTS, "B", "k", "it is inside the loop already"),
        (
            TWO_RESULTS,
            "B",
            "j",
            "elements of 'B' that block 'C' uses are not proved to belong to one iteration of loop 'j'",
        ),
        (
            STENCIL,
            "B",
            "i_2",
            "elements of 'B' that block 'C' uses are not proved to belong to one iteration of loop 'i_2'",
        ),
        (IN_BETWEEN, "B", "i_3", "block 'C' uses 'B' outside the loop"),
        (split(SIBLINGS, "i_2", 5), "B", "i_2_o", "its loop 'i' has 24 iterations, loop 'i_2_o' has 5"),
        (
            vectorize(SIBLINGS, "j_2"),
            "B",
            "j_2",
            "loop 'j_2' is vectorized; use compute_with before loop 'j_2' becomes vectorized",
        ),
        (parallel(SIBLINGS, "i"), "B", "i_2", "its loop 'i' is parallel, expected a serial loop"),
        (split(SIBLINGS, "j_2", 20), "B", "j_2_i", "it has 2 loops, fewer than the 3 that it would share"),
    ],
)
def test_refusals(func: Func, block: str, loop: str, message: str) -> None:
    refuses(lambda: compute_with(func, block, loop), f"compute_with of {block!r} in loop {loop!r}: {message}")


def test_other_blocks_in_the_nest_are_refused() -> None:
    text = show(SIBLINGS).replace("func f(X: ", "func f(D: float32[24, 20], X: ")
    text += """    for i_3 in serial(24):
        for j_3 in serial(20):
            block D(v_3: 24 = i_3, w_3: 20 = j_3):
                D[v_3, w_3] = X[v_3, w_3] * 2.0
"""
    func = compute_with(parse(text), "B", "i_2")
    refuses(lambda: compute_with(func, "B", "i_3"), "compute_with of block 'B': other blocks share its loops")


def test_operands_that_the_later_nest_writes_are_refused() -> None:
    func = parse("""
func f(X: float32[24], B: float32[24]):
    for i in serial(24):
        block B(v: 24 = i):
            B[v] = X[v] + 1.0
    for i_2 in serial(24):
        block X(w: 24 = i_2):
            X[w] = 2.0
""")
    refuses(
        lambda: compute_with(func, "B", "i_2"),
        "compute_with of 'B' in loop 'i_2': block 'X' writes 'X', which it reads",
    )
