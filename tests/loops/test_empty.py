"""Reductions over nothing: their elements get the value of init, however the loops are ordered and cut."""

import numpy as np
import pytest

from tilewright.loops.empty_reductions import initialize_empty_reductions
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func, blocks
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel
from tilewright.schedule.loop_transforms import fuse, peel, reorder, split, split_parts
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.tails import Tail
from tilewright.schedule.tile import tile
from tilewright.verify.verifier import verify

MATMUL = parse("""
func matmul(A: float32[M, K], B: float32[K, 5], C: float32[M, 5]; M: 0..64, K: 0..64):
    for i in serial(M):
        for j in serial(5):
            for k in serial(K):
                block C(v_i: M = i, v_j: 5 = j, reduce v_k: K = k):
                    init C[v_i, v_j] = 0.5
                    C[v_i, v_j] = C[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]
""")

FORMS = {
    "as it is": lambda: MATMUL,
    "reduction outside": lambda: reorder(MATMUL, ("k", "i", "j")),
    "reduction between": lambda: reorder(MATMUL, ("i", "k", "j")),
    "guarded tiles": lambda: tile(MATMUL, ("i", "j", "k"), (4, 2, 3)),
    "tiles with remainders": lambda: tile(MATMUL, ("i", "j", "k"), (4, 2, 3), None, Tail.REMAINDER),
    "masked": lambda: split(MATMUL, "j", 4, None, Tail.MASK),
    "parts": lambda: split_parts(MATMUL, "k", 4),
    "fused": lambda: fuse(MATMUL, "i", "j"),
    "cut": lambda: peel(MATMUL, "k", MATMUL.symbols[1] // 2),
    "parallel": lambda: parallel(reorder(MATMUL, ("j", "i")), "j"),
    "decomposed": lambda: decompose_reduction(MATMUL, "C", "k"),
    "decomposed tiles": lambda: decompose_reduction(tile(MATMUL, ("i", "k"), (4, 3)), "C", "k_o"),
}


def result(func: Func, m: int, k: int, seed: int | None) -> np.ndarray:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, 5)))
    c = np.full((m, 5), np.nan, np.float32)
    interpret(func, {"A": a, "B": b, "C": c}, {"M": m, "K": k}, seed=seed)
    np.testing.assert_array_equal(c, a @ b + np.float32(0.5))
    return c


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("form", FORMS)
def test_elements_get_their_init(form: str, seed: int | None) -> None:
    func = FORMS[form]()
    verify(func)
    for m in (0, 1, 5):
        for k in (0, 1, 4, 7):
            result(func, m, k, seed)


def test_what_runs_is_well_formed(golden) -> None:
    golden(show(initialize_empty_reductions(tile(MATMUL, ("i", "k"), (4, 3)))))


def test_reductions_that_are_not_empty_stay_as_they_are() -> None:
    func = parse(show(MATMUL).replace("K: 0..64", "K: 1..64"))
    assert initialize_empty_reductions(func) is func
    assert len(blocks(initialize_empty_reductions(MATMUL).body)) == 2
