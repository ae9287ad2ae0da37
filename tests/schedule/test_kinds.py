"""parallel, vectorize, unroll: meaning, printed result, and what they refuse."""

import pytest
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, SUMS, check_same

from tilewright.errors import ScheduleError
from tilewright.expr.buffer import Scope
from tilewright.loops.printer import show
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.kinds import parallel, unroll, vectorize
from tilewright.schedule.loops import fuse, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.staging import set_scope


def test_all_kinds(golden) -> None:
    func = unroll(vectorize(parallel(MATMUL, "i"), "j"), "k")
    golden(show(func))
    check_same(MATMUL, func)


@pytest.mark.parametrize("loop", ["i", "j"])
def test_parallel_keeps_meaning(loop: str) -> None:
    check_same(MATMUL, parallel(MATMUL, loop))


def test_parallel_of_a_fused_and_of_a_split_loop() -> None:
    check_same(MATMUL, parallel(fuse(MATMUL, "i", "j"), "i_j"))
    check_same(MATMUL, parallel(split(MATMUL, "i", 4), "i_o"))


@pytest.mark.parametrize("loops", [("i", "j"), ("j", "i")])
def test_parallel_loops_may_be_nested(loops: tuple[str, str]) -> None:
    check_same(MATMUL, parallel(parallel(MATMUL, loops[0]), loops[1]))


def test_a_reduction_may_be_vectorized() -> None:
    check_same(MATMUL, vectorize(decompose_reduction(MATMUL, "C", "k"), "k"))


def private(scope: Scope) -> object:
    return parallel(set_scope(compute_at(ROWS, "T", "i_1"), "T", scope), "i_1")


@pytest.mark.parametrize("scope", [Scope.STACK, Scope.REGISTER])
def test_a_private_buffer_does_not_race(scope: Scope) -> None:
    check_same(ROWS, private(scope))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: parallel(MATMUL, "k"),
            "parallel of loop 'k': block 'C': reduces over parallel loop 'k' (variable 'v_k')",
        ),
        (
            lambda: private(Scope.MEMORY),
            "parallel of loop 'i_1': block 'T': iterations of parallel loop 'i_1' may write the same element: T[]",
        ),
        (
            lambda: parallel(SUMS, "i"),
            "parallel of loop 'i': block 'S' reads other elements of 'Y' than it writes: its order matters",
        ),
        (
            lambda: parallel(vectorize(split(SCALE, "j", 2), "j_o"), "j_i"),
            "parallel of loop 'j_i': parallel loop 'j_i' would be inside vectorized loop 'j_o'",
        ),
        (
            lambda: set_scope(private(Scope.STACK), "T", Scope.MEMORY),
            "set_scope of 'T' to memory: block 'T': iterations of parallel loop 'i_1' may write the same element: T[]",
        ),
    ],
)
def test_parallel_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: vectorize(SCALE, "i"),
            "vectorize of loop 'i': the extent N is not a literal; split the loop first",
        ),
        (
            lambda: vectorize(vectorize(split(SCALE, "j", 2), "j_i"), "j_o"),
            "vectorize of loop 'j_o': vectorized loop 'j_i' would be inside vectorized loop 'j_o'",
        ),
        (
            lambda: vectorize(MATMUL, "k"),
            "vectorize of loop 'k': block 'C' reduces over it and has its init inside; use decompose_reduction first",
        ),
        (
            lambda: vectorize(parallel(split(SCALE, "j", 2), "j_i"), "j_o"),
            "vectorize of loop 'j_o': parallel loop 'j_i' would be inside vectorized loop 'j_o'",
        ),
        (
            lambda: vectorize(set_scope(compute_at(ROWS, "T", "i_1"), "T", Scope.STACK), "i_1"),
            "vectorize of loop 'i_1': block 'T': iterations of vectorized loop 'i_1' may write the same element: T[]",
        ),
        (
            lambda: vectorize(SUMS, "i"),
            "vectorize of loop 'i': block 'S' reads other elements of 'Y' than it writes: its order matters",
        ),
    ],
)
def test_vectorize_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: unroll(CHAIN, "i"), "unroll of loop 'i': the extent M is not a literal; split the loop first"),
        (lambda: unroll(split(CHAIN, "i", 600), "i_i"), "unroll of loop 'i_i': 600 iterations are more than 512"),
        (lambda: unroll(CHAIN, "z"), "chain: there is no loop 'z'; loops are i, j, k, i_1, j_1"),
    ],
)
def test_unroll_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"
