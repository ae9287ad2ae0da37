"""Dead lanes of masked register tiles: when they are recognised, and that their stores have no blend."""

import numpy as np
import pytest
from tests.codegen.native import TARGETS, Native, check, compare

from tilewright.codegen import emit_llvm
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.lower.dead_lanes import dead_lane_buffers
from tilewright.machine import Target

TILE = """
func tile(X: float32[8, N], W: float32[4, 8], Y: float32[4, N]; N: 1..1000):
    alloc T: float32[4, 32] in register
    for o in serial((N + 31) // 32):
        for a in unrolled(4):
            for b in vectorized(32):
                block first(v: 4 = a, w: N = o * 32 + b) where o * 32 + b < N:
                    T[v, w - o * 32] = 0.0
        for k in serial(8):
            for c in unrolled(4):
                for d in vectorized(32):
                    block T(v2: 4 = c, w2: N = o * 32 + d, reduce r: 8 = k) where o * 32 + d < N:
                        T[v2, w2 - o * 32] = T[v2, w2 - o * 32] + X[r, w2] * W[v2, r]
        for e in unrolled(4):
            for f in vectorized(32):
                block Y(v3: 4 = e, w3: N = o * 32 + f) where o * 32 + f < N:
                    Y[v3, w3] = T[v3, w3 - o * 32]
"""


def tile(*changes: tuple[str, str]) -> Func:
    """The tile with parts of its text replaced."""
    text = TILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text)


def test_masked_tile_has_dead_lanes() -> None:
    assert dead_lane_buffers(tile()) == {"T"}


@pytest.mark.parametrize(
    "changes",
    [
        [("where o * 32 + f < N", "where o * 32 + f + 1 < N")],
        [("block first(v: 4 = a, w: N = o * 32 + b) where o * 32 + b < N", "block first(v: 4 = a, w: N = o * 32 + b)")],
        [("for a in unrolled(4)", "for a in unrolled(3)"), ("v: 4 = a", "v: 3 = a")],
        [("T: float32[4, 32]", "T: float32[4, 40]")],
        [("T: float32[4, 32]", "T: float32[4, 31]")],
        [("in register", "in stack")],
        [("T[v3, w3 - o * 32]", "T[v3, 31 + o * 32 - w3]")],
    ],
    ids=["other mask", "no mask", "rows left over", "lanes left over", "lanes outside", "stack", "read backwards"],
)
def test_lanes_that_may_be_read_are_live(changes: list[tuple[str, str]]) -> None:
    assert dead_lane_buffers(tile(*changes)) == frozenset()


def test_mask_that_varies_in_the_reduction_keeps_lanes_live() -> None:
    func = parse("""
func sums(X: float32[N], Y: float32[32]; N: 1..1000):
    alloc T: float32[32] in register
    for a in vectorized(32):
        block first(v: 32 = a):
            T[v] = 0.0
    for o in serial((N + 31) // 32):
        for b in vectorized(32):
            block T(w: 32 = b, reduce r: (N + 31) // 32 = o) where o * 32 + b < N:
                T[w] = T[w] + exp(X[r * 32 + w])
    for c in vectorized(32):
        block Y(u: 32 = c):
            Y[u] = T[u]
""")
    assert dead_lane_buffers(func) == frozenset()
    rng = np.random.default_rng(7)
    for target in TARGETS:
        native = Native(func, target=target)
        for n in (1, 32, 45, 100):
            arrays = {"X": rng.standard_normal(n).astype(np.float32), "Y": np.zeros(32, np.float32)}
            compare(native, arrays, {"N": n})


def test_no_blend_in_a_tile_with_dead_lanes() -> None:
    """A blend would keep the previous tile live, and take twice the registers."""
    dead, blended = (
        emit_llvm([f], [], Target.parse("x86-64-v4")).count("= select  <")
        for f in (tile(), tile(("in register", "in stack")))
    )
    assert dead == 0 < blended


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_tile_with_dead_lanes_is_correct(target: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((8, n), (4, 8)))
    check(tile(), {"X": x, "W": w, "Y": np.full((4, n), 99, np.float32)}, {"N": n}, target)


RANGES = """
func ranges(X: float32[8, N], Y: float32[2, N]; N: 1..1000):
    alloc T: float32[32] in register
    for o in serial((N + 31) // 32):
        for q in serial(1):
            for b in vectorized(32):
                block first(w: N = o * 32 + b) where o * 32 + b < N:
                    T[w - o * 32] = X[0, w]
            for f in vectorized(32):
                block Y(w1: N = o * 32 + f) where o * 32 + f < N:
                    Y[0, w1] = T[w1 - o * 32]
        for q2 in serial(1):
            for b2 in vectorized(32):
                block again(w2: N = o * 32 + b2) where o * 32 + b2 < N - 1:
                    T[w2 - o * 32] = X[1, w2]
            for f2 in vectorized(32):
                block Z(w3: N = o * 32 + f2) where o * 32 + f2 < N - 1:
                    Y[1, w3] = T[w3 - o * 32]
"""


def test_each_live_range_has_its_own_mask() -> None:
    assert dead_lane_buffers(parse(RANGES)) == {"T"}


MIXED = """
func mixed(X: float32[8, N], Y: float32[2, N]; N: 1..1000):
    alloc T: float32[32] in register
    for o in serial((N + 31) // 32):
        for b in vectorized(32):
            block first(w: N = o * 32 + b) where o * 32 + b < N:
                T[w - o * 32] = X[0, w]
        for q in serial(2):
            for f in vectorized(32):
                block Y(w1: N = o * 32 + f, i: 2 = q) where o * 32 + f < N:
                    Y[i, w1] = T[w1 - o * 32]
            for b2 in vectorized(32):
                block again(w2: N = o * 32 + b2) where o * 32 + b2 < N - 1:
                    T[w2 - o * 32] = X[1, w2]
"""


def test_loop_across_live_ranges_keeps_lanes_live() -> None:
    """The second iteration reads, under the first mask, what was written under the second."""
    assert dead_lane_buffers(parse(MIXED)) == frozenset()


TWO = """
func two(X: int64[3, 16], M: int64[16], Y: int64[3, 16]; K: 0..3, P: 1..16, Q: 1..16):
    alloc T: int64[16] in register
    for a in vectorized(16):
        block A(w: 16 = a) where a < P:
            T[w] = X[0, w]
    for b in vectorized(16):
        block RA(w1: 16 = b) where b < P:
            Y[0, w1] = T[w1]
    for c in vectorized(16):
        block B(w2: 16 = c) where c < Q:
            T[w2] = X[1, w2]
    for d in vectorized(16):
        block RB(w3: 16 = d) where d < Q:
            Y[1, w3] = T[w3]
"""

THIRD = {
    "begins in a loop that may not run": """
    for z in serial(K):
        for e in vectorized(16):
            block C(w4: 16 = e, zz: K = z) where e < P:
                T[w4] = X[2, w4]
    for f in vectorized(16):
        block RC(w5: 16 = f) where f < P:
            Y[2, w5] = T[w5]
""",
    "read in a predicate": """
    for e in vectorized(16):
        block RC(w5: 16 = e) where 0 < T[e]:
            Y[2, w5] = int64(7)
""",
    "read in an index": """
    for e in serial(16):
        block RC(w5: 16 = e):
            Y[2, T[w5] % 16] = int64(7)
""",
    "mask that a store changes": """
    for c4 in vectorized(16):
        block C(w4: 16 = c4) where 0 < M[c4]:
            T[w4] = X[2, w4]
    for d4 in vectorized(16):
        block S(w5: 16 = d4):
            M[w5] = int64(1)
    for e in vectorized(16):
        block RC(w6: 16 = e) where 0 < M[e]:
            Y[2, w6] = T[w6]
""",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("third", THIRD)
def test_lanes_read_from_an_earlier_live_range_are_live(third: str, target: str) -> None:
    """Values of the first live range are read under a mask wider than the second range's."""
    func = parse(TWO + THIRD[third].lstrip("\n"))
    assert dead_lane_buffers(func) == frozenset()
    rng = np.random.default_rng(len(third))
    arrays = {"X": rng.integers(1, 99, (3, 16)), "M": rng.integers(0, 2, 16), "Y": np.zeros((3, 16), np.int64)}
    check(func, arrays, {"K": 0, "P": 16, "Q": 5}, target)


def test_two_live_ranges_have_dead_lanes() -> None:
    assert dead_lane_buffers(parse(TWO)) == {"T"}
