"""Empty reductions: their elements get the value of init under any order and tiling of loops."""

import numpy as np
import pytest
from tests.loops.scheduled_matmuls import MATMUL, SCHEDULED_MATMULS

from tilewright.loops.empty_reductions import initialize_empty_reductions
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func, blocks
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.tile import tile
from tilewright.verify.verifier import verify


def result(func: Func, m: int, k: int, seed: int | None) -> np.ndarray:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, 5)))
    c = np.full((m, 5), np.nan, np.float32)
    interpret(func, {"A": a, "B": b, "C": c}, {"M": m, "K": k}, seed=seed)
    np.testing.assert_array_equal(c, a @ b + np.float32(0.5))
    return c


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("form", SCHEDULED_MATMULS)
def test_elements_of_empty_reductions_get_their_init(form: str, seed: int | None) -> None:
    func = SCHEDULED_MATMULS[form]()
    verify(func)
    for m in (0, 1, 5):
        for k in (0, 1, 4, 7):
            result(func, m, k, seed)


def test_inits_are_inserted_before_tiles(golden) -> None:
    golden(show(initialize_empty_reductions(tile(MATMUL, ("i", "k"), (4, 3)))))


def test_nonempty_reductions_are_unchanged() -> None:
    func = parse(show(MATMUL).replace("K: 0..64", "K: 1..64"))
    assert initialize_empty_reductions(func) is func
    assert len(blocks(initialize_empty_reductions(MATMUL).body)) == 2
