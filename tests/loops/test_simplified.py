"""simplified: printed results, and the same meaning."""

import numpy as np
import pytest

from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.loops.simplified import simplified
from tilewright.schedule.loop_transforms import fuse, reorder, split
from tilewright.verify.verifier import verify

BLOCKED = parse("""
func blocked(X: float32[2, H, 4], W: float32[2, 3, 4, 8], Y: float32[H, 8]; H: 3..40):
    for h in serial(H):
        for o in serial(8):
            for c in serial(8):
                for k in serial(3):
                    block Y(v_h: H = h, v_o: 8 = o, reduce v_c: 8 = c, reduce v_k: 3 = k):
                        init Y[v_h, v_o] = 0.0
                        Y[v_h, v_o] = Y[v_h, v_o] + select(0 <= v_h + v_k - 1 and v_h + v_k - 1 < H, \
X[v_c // 4, v_h + v_k - 1, v_c % 4], 0.0) * W[v_c // 4, v_k, v_c % 4, v_o]
""")
"""A convolution whose channels are stored in blocks of 4."""


def check(before: Func, after: Func) -> None:
    verify(after)
    assert parse(show(after)) == after
    for size in (3, 8, 17):
        rng = np.random.default_rng(size)
        arrays = {
            "X": rng.integers(-3, 4, (2, size, 4)).astype(np.float32),
            "W": rng.integers(-3, 4, (2, 3, 4, 8)).astype(np.float32),
            "Y": np.zeros((size, 8), np.float32),
        }
        results = []
        for func in (before, after):
            copies = {n: a.copy() for n, a in arrays.items()}
            interpret(func, copies, {"H": size})
            results.append(copies["Y"])
        np.testing.assert_array_equal(*results)


def tiled(channels: int) -> Func:
    """Rows in tiles of 5, channels in tiles."""
    func = split(split(BLOCKED, "c", channels), "h", 5)
    return reorder(func, ("h_o", "c_o", "k", "c_i", "h_i", "o"))


def test_a_blocked_convolution_has_no_divisions(golden) -> None:
    func = simplified(tiled(4))
    check(BLOCKED, func)
    assert "//" not in show(func).split("block Y")[1]
    assert "%" not in show(func)
    golden(show(func))


@pytest.mark.parametrize("channels", [2, 3, 8])
def test_tiles_that_do_not_provide_the_digits_keep_the_divisions(channels: int) -> None:
    func = simplified(tiled(channels))
    check(BLOCKED, func)
    assert "//" in show(func).split("block Y")[1]


def test_conditions_that_follow_are_dropped(golden) -> None:
    func = parse("""
func f(A: float32[N * 4], B: float32[N * 4]; N: 1..9):
    for i in serial(N):
        for j in serial(4):
            block B(v: N * 4 = i * 4 + j) where i * 4 + j < N * 4 and 0 <= j and i * 4 + j < 30:
                B[v] = A[(v * 2 + 1) // 2]
""")
    golden(show(simplified(func)))


def test_fused_loops_give_digits() -> None:
    func = simplified(fuse(reorder(split(BLOCKED, "c", 4), ("h", "o", "c_o", "c_i", "k")), "c_o", "c_i"))
    check(BLOCKED, func)


def test_a_block_that_never_runs_keeps_its_predicate() -> None:
    func = parse("""
func f(A: float32[4], B: float32[4]):
    for i in serial(4):
        block B(v: 4 = i):
            B[v] = A[v]
    for j in serial(3):
        block C(w: 4 = j + 4) where j + 4 < 4:
            B[w] = A[w]
""")
    assert simplified(func) == func
