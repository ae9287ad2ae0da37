"""Online reductions, whose partial sums are rescaled, and disjoint iterations."""

import pytest

from tilewright.errors import VerifyError
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, For, Func, walk
from tilewright.loops.parser import parse
from tilewright.verify import coverage, races
from tilewright.verify.verifier import verify


def running(between: str, kind: str = "serial") -> Func:
    """A sum over chunks of rows, with a block before each chunk."""
    return parse(f"""
func running(A: float32[N, 12], Y: float32[N]; N: 1..64):
    for i in serial(N):
        block Y_init(u: N = i):
            Y[u] = 0.0
        for ko in {kind}(3):
            block Y_change(w: N = i):
                Y[w] = {between}
            for ki in serial(4):
                block Y(v: N = i, reduce r: 12 = ko * 4 + ki):
                    Y[v] = Y[v] + A[v, r]
""")


@pytest.mark.parametrize("change", ["Y[w] / 2.0", "select(Y[w] < 0.0, 0.0, Y[w])", "exp(Y[w])"])
def test_partial_sums_may_be_rescaled_between_k_blocks(change: str) -> None:
    verify(running(change))


@pytest.mark.parametrize("start", ["0.0", "A[w, 0]"])
def test_reinitialisation_between_k_blocks_is_rejected(start: str) -> None:
    with pytest.raises(VerifyError, match=r"'Y' is initialised again inside the reduction"):
        verify(running(start))


def test_accumulation_between_k_blocks_must_not_repeat_points() -> None:
    with pytest.raises(
        VerifyError, match=r"iterations of loop 'ko' accumulate the same points into one element of 'Y'"
    ):
        verify(running("Y[w] + A[w, 0]"))


def test_parallel_k_blocks_of_an_online_reduction_race() -> None:
    with pytest.raises(VerifyError, match=r"iterations of parallel loop 'ko' may write the same element: Y\[w\]"):
        verify(running("Y[w] / 2.0", "parallel"))


def elements_apart(text: str, buffer: str) -> dict[str, bool]:
    """Per loop, whether elements of a buffer belong to one iteration of it."""
    func = parse(text)
    nests = [BlockContext.of(s, loops) for s, loops in walk(func.body) if isinstance(s, Block)]
    accumulator = next(b for b in (*func.params, *func.allocs) if b.name == buffer)
    return {
        s.var.name: races.iterations_are_disjoint(s, accumulator, nests)
        for s, _ in walk(func.body)
        if isinstance(s, For)
    }


def test_iterations_are_disjoint() -> None:
    text = """
func tiles(A: float32[N, 9], Y: float32[N, 9]; N: 1..64):
    alloc T: float32[N, 9]
    for io in serial((N + 3) // 4):
        for k in serial(3):
            for ii in serial(4):
                for j in serial(9):
                    block T(v: N = io * 4 + ii, w: 9 = j) where io * 4 + ii < N:
                        T[v, w] = A[v, w]
        for x in serial(4):
            for y in serial(9):
                block Y(a: N = io * 4 + x, b: 9 = y) where io * 4 + x < N:
                    Y[a, b] = T[a, b] + T[a, 0]
"""
    apart = elements_apart(text, "T")
    assert apart == {"io": True, "k": False, "ii": True, "j": True, "x": True, "y": False}
    assert elements_apart(text, "Y") == dict.fromkeys(apart, True)


def test_a_loop_of_one_iteration_is_disjoint() -> None:
    text = """
func one(A: float32[], Y: float32[4]):
    for n in serial(1):
        for i in serial(4):
            block Y(v: 4 = i):
                Y[v] = A[]
"""
    assert elements_apart(text, "A") == {"n": True, "i": False}


@pytest.mark.parametrize(
    ("binding", "extent", "where", "message"),
    [
        ("i", "9", "", "binding i of 'v' covers 0..7, expected 0..8 once"),
        ("i + 1", "9", "", "binding i + 1 of 'v' covers 1..8, expected 0..8 once"),
        ("i // 2", "4", "", "binding i // 2 of 'v' covers 0..3, some of them repeatedly, expected 0..3 once"),
        ("i", "8", " where i < 5", "binding i of 'v' covers 0..4, expected 0..7 once"),
    ],
)
def test_incomplete_and_repeated_covers_are_reported(binding: str, extent: str, where: str, message: str) -> None:
    func = parse(f"""
func part(A: float32[9], Y: float32[9]):
    for i in serial(8):
        block Y(v: {extent} = {binding}){where}:
            Y[v] = A[v]
""")
    ((block, loops),) = ((s, loops) for s, loops in walk(func.body) if isinstance(s, Block))
    assert [f.what for f in coverage.find_incomplete_cover(BlockContext.of(block, loops))] == [message]
