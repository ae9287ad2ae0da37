"""decompose_reduction: semantics, printed result, refusals."""

import pytest
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, check_same, refuses, tiled_consumer

from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import unroll, vectorize
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import peel, reorder, split
from tilewright.schedule.reduction import decompose_reduction


@pytest.mark.parametrize("loop", ["i", "j", "k"])
def test_decompose_reduction_preserves_semantics(loop: str) -> None:
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
    func = compute_at(tiled_consumer(4, 3), "T", "j_1_o")
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
            "decompose_reduction of 'T': loop 'i_1' does not enclose it",
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


def test_init_stays_inside_a_restarting_loop() -> None:
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
