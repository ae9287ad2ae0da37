"""Loops that end with the last whole tile: what they become, that they compute the same, and which are left alone."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.codegen import emit_llvm
from tilewright.errors import VerifyError
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Block, For, Func, walk
from tilewright.loops.parser import parse
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.lower.trim_loops import trim_loops
from tilewright.machine import Target
from tilewright.verify.trimmed_loops import with_whole_loops
from tilewright.verify.verifier import verify

TILES = """
func tiles(X: float32[N], Y: float32[N // 3 * 3]; N: 3..90):
    for o in parallel((N // 3 + 3) // 4):
        for t in serial(4):
            for r in unrolled(3):
                for k in serial(2):
                    block Y(a: N // 3 * 3 = o * 12 + t * 3 + r, reduce v: 2 = k) where o * 12 + t * 3 + r < N // 3 * 3:
                        init Y[a] = 0.0
                        Y[a] = Y[a] + X[a]
"""

LEVELS = (
    TILES.replace("(N // 3 + 3) // 4", "(N + 15) // 18")
    .replace("        for t in serial(4):", "        for p in serial(2):\n         for t in serial(3):")
    .replace("o * 12 + t * 3", "o * 18 + p * 9 + t * 3")
)

LANES = """
func vectors(X: float32[197], W: float32[3], Y: float32[197]):
    alloc S: float32[16] in register
    for o in parallel(2):
        for t in serial(7):
            for l in vectorized(16):
                block start(a: 197 = o * 112 + t * 16 + l) where o * 112 + t * 16 + l < 197:
                    S[a - o * 112 - t * 16] = 0.0
            for k in serial(3):
                for l1 in vectorized(16):
                    block S(a1: 197 = o * 112 + t * 16 + l1, reduce r: 3 = k) where o * 112 + t * 16 + l1 < 197:
                        S[a1 - o * 112 - t * 16] = S[a1 - o * 112 - t * 16] + X[a1] * W[r]
            for l2 in vectorized(16):
                block Y(a2: 197 = o * 112 + t * 16 + l2) where o * 112 + t * 16 + l2 < 197:
                    Y[a2] = S[a2 - o * 112 - t * 16]
"""

ROWS = """
func rows(X: float32[28, 8], W: float32[8], Y: float32[28]):
    alloc S: float32[10] in stack
    for o in parallel(3):
        for r in serial(10):
            for k in serial(8):
                block S(a: 28 = o * 10 + r, reduce v: 8 = k) where o * 10 + r < 28:
                    init S[a - o * 10] = 0.0
                    S[a - o * 10] = S[a - o * 10] + X[a, v] * W[v]
        for q in serial(5):
            for u in unrolled(2):
                block Y(b: 28 = o * 10 + q * 2 + u) where o * 10 + q * 2 + u < 28:
                    Y[b] = S[b - o * 10]
"""

ELEMENTWISE = """
func tiles(X: float32[N], Y: float32[N]; N: 1..90):
    for o in parallel((N + 11) // 12):
        for t in serial(12):
            block Y(a: N = o * 12 + t) where o * 12 + t < N:
                Y[a] = X[a] + 1.0
"""


def loops_of(func: Func) -> dict[str, str]:
    return {s.var.name: str(s.extent) for s, _ in walk(func.body) if isinstance(s, For)}


def predicates(func: Func) -> list[str]:
    return [str(s.predicate) for s, _ in walk(func.body) if isinstance(s, Block)]


def test_a_loop_ends_with_the_last_whole_tile() -> None:
    trimmed = trim_loops(parse(TILES))
    assert loops_of(trimmed)["t"] == "min(N // 3 - o * 4, 4)"
    assert predicates(trimmed) == ["True"]
    verify(trimmed)


def test_levels_end_from_the_outside_to_the_inside() -> None:
    trimmed = trim_loops(parse(LEVELS))
    assert loops_of(trimmed)["p"] == "min((N + 6) // 9 - o * 2, 2)"
    assert loops_of(trimmed)["t"] == "min(N // 3 - o * 6 - p * 3, 3)"
    assert predicates(trimmed) == ["True"]
    verify(trimmed)


def test_no_vector_of_a_literal_size_is_empty() -> None:
    func = parse(LANES)
    trimmed = trim_loops(func)
    assert loops_of(trimmed)["t"] == "min(o * (-7) + 13, 7)"
    assert predicates(trimmed) == predicates(func)
    x, w, results = np.arange(197, dtype=np.float32), np.array([1, 2, 4], np.float32), list[np.ndarray]()
    lowered = [lower_kernel(func, Target.parse(level)).func for level in ("x86-64-v3", "x86-64-v4")]
    for f in (func, trimmed, *lowered):
        verify(f)
        y = np.full(197, np.nan, np.float32)
        interpret(f, {"X": x, "W": w, "Y": y}, {})
        results.append(y)
    np.testing.assert_array_equal(results, [x * 7] * len(results))


def test_rows_of_a_literal_size_end_with_the_last_one() -> None:
    func = parse(ROWS)
    trimmed = trim_loops(func)
    assert loops_of(trimmed)["r"] == "min(o * (-10) + 28, 10)"
    assert loops_of(trimmed)["q"] == "5"  # its tiles may be partial
    assert predicates(trimmed) == ["True", "o * 10 + q * 2 + u < 28"]
    verify(trimmed)
    rng = np.random.default_rng(5)
    x, w = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((28, 8), (8,)))
    for f in (func, trimmed, lower_kernel(func, Target.parse("x86-64-v4")).func):
        y = np.full(28, np.nan, np.float32)
        interpret(f, {"X": x, "W": w, "Y": y}, {})
        np.testing.assert_array_equal(y, x @ w)


def test_no_masked_load_of_a_literal_size_is_guarded() -> None:
    text = str(emit_llvm([parse(LANES)], [], Target.parse("x86-64-v4")))
    assert "masked.load" in text
    assert "tilewright_zeros" not in text


@pytest.mark.parametrize("source", [TILES, LEVELS])
def test_trimmed_loops_compute_the_same(source: str) -> None:
    func = parse(source)
    for size in (3, 5, 11, 12, 13, 17, 18, 19, 36, 37, 90):
        x, results = np.arange(size, dtype=np.float32), list[np.ndarray]()
        for f in (func, trim_loops(func)):
            y = np.full(size // 3 * 3, np.nan, np.float32)
            interpret(f, {"X": x, "Y": y}, {func.symbols[0]: size})
            results.append(y)
        np.testing.assert_array_equal(results[0], x[: len(results[0])] * 2)
        np.testing.assert_array_equal(results[1], results[0])


@pytest.mark.parametrize("source", [
    TILES.replace("< N // 3 * 3", "< N"),  # a tile may be partial itself
    TILES.replace("t in serial(4)", "t in unrolled(4)"),
    TILES.replace("; N: 3..90", "").replace("N // 3", "29").replace("[N]", "[88]"),
    ELEMENTWISE,
    LANES.replace("197", "220"),  # the last tile has all vectors, too
    LANES.replace("o in parallel(2)", "o in vthread(2)"),  # virtual threads are sunk into loops of the same size only
])  # fmt: skip
def test_other_loops_are_left_alone(source: str) -> None:
    func = parse(source)
    assert trim_loops(func) is func


def test_a_block_without_the_predicate_keeps_the_loop() -> None:
    func = parse(
        TILES.replace("3 * 3];", "3 * 3], Z: float32[400];")
        + """
            for c in serial(3):
                block Z(d: 400 = o * 12 + t * 3 + c):
                    Z[d] = 1.0
"""
    )
    assert loops_of(func)["t"] == loops_of(trim_loops(func))["t"] == "4"


STAGED = """
func staged(X: float32[61], W: float32[3], Y: float32[61]):
    alloc S: float32[24] in stack
    for o in parallel(3):
        for t in serial(6):
            for k in serial(3):
                for l in vectorized(4):
                    block S(a: 61 = o * 24 + t * 4 + l, reduce r: 3 = k) where o * 24 + t * 4 + l < 61:
                        init S[a - o * 24] = 0.0
                        S[a - o * 24] = S[a - o * 24] + X[a] * W[r]
        for t2 in serial(6):
            for l2 in vectorized(4):
                block Y(b: 61 = o * 24 + t2 * 4 + l2) where o * 24 + t2 * 4 + l2 < 61:
                    Y[b] = S[b - o * 24]
"""


def test_a_copy_of_an_iteration_that_there_is_not_is_rejected() -> None:
    """In a fourth tile of 24 the trimmed loop is empty, and the copy of its last iteration would store before S."""
    func = lower_kernel(parse(STAGED), Target.parse("x86-64-v3")).func
    verify(func)
    assert isinstance(func.body, For)
    with pytest.raises(VerifyError, match="S"):
        verify(func.with_body(replace(func.body, extent=func.body.extent + 1)))


def test_the_verifier_sees_whole_loops() -> None:
    whole = with_whole_loops(trim_loops(parse(TILES)))
    assert loops_of(whole)["t"] == "4"
    assert predicates(whole) == ["t < N // 3 - o * 4"]
    func = parse(TILES)
    assert with_whole_loops(func) is func


PER_LANE = """
func lanes(X: float32[61], W: float32[8], V: float32[1], Y: float32[61]):
    for l in serial(1):
        for k in serial(8):
            block V(a: 1 = l, reduce r: 8 = k):
                init V[a] = 0.0
                V[a] = V[a] + W[r]
    for i in vectorized(16):
        for t in serial(4):
            block Y(b: 61 = i * 4 + t) where i * 4 + t < 61:
                Y[b] = X[b] + 1.0
"""


def test_lanes_share_a_loop_of_one_size() -> None:
    """A loop that ended at another iteration in every lane would be executed lane by lane."""
    func = parse(PER_LANE)
    assert trim_loops(func) is func
