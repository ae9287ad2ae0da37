"""Partly constant masks over several registers: no inactive lane is accessed."""

import numpy as np
import pytest
from tests.codegen.native import TARGETS, check

from tilewright.codegen import emit_llvm
from tilewright.loops.parser import parse
from tilewright.machine import Target
from tilewright.schedule.schedule import Schedule

PADDED = """
func padded(A: {0}[n, {1}], Y: {0}[n, 2, {2}]; n: 1..64):
    for i in serial(n):
        for side in serial(2):
            for j in serial({2}):
                block Y(v: n = i, w: 2 = side, x: {2} = j):
                    Y[v, w, x] = select(w < 1 and x < {1}, A[v, x], {0}(0.0))
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("elements", "padded", "lanes"), [(4, 5, 8), (8, 9, 16), (8, 16, 16), (3, 29, 32)])
def test_uniform_condition_with_a_lane_condition(
    target: str, dtype: str, elements: int, padded: int, lanes: int
) -> None:
    s = Schedule(parse(PADDED.format(dtype, elements, padded)))
    s.split("j", lanes, names=("o", "l"))
    s.vectorize("l")
    for loop in ("i", "side", "o"):
        s.parallel(loop)
    rng = np.random.default_rng(0)
    arrays = {"A": rng.standard_normal((2, elements)).astype(dtype), "Y": np.full((2, 2, padded), 9).astype(dtype)}
    check(s.func, arrays, {"n": 2}, target)


NARROWED = """
func narrowed(A: {0}[{2}], Y: {1}[{2}]):
    for i in serial({2}):
        block Y(v: {2} = i):
            Y[v] = cast({1}, A[v] + {0}({3}))
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("wide", "narrow"),
    [("int32", "int16"), ("int32", "int8"), ("int32", "uint8"), ("int64", "int32"), ("int64", "int8"),
     ("int16", "int8"), ("float32", "bfloat16"), ("float32", "float16"), ("float64", "float32")],
)  # fmt: skip
@pytest.mark.parametrize(("size", "lanes"), [(33, 16), (17, 8), (9, 4), (3, 2), (33, 32), (13, 6)])
def test_masked_store_of_one_truncated_lane(target: str, wide: str, narrow: str, size: int, lanes: int) -> None:
    """The last vector, of one element, writes nothing after it."""
    one = "1.0" if wide.startswith("float") else "1"
    s = Schedule(parse(NARROWED.format(wide, narrow, size, one)))
    s.split("i", lanes, names=("o", "l"))
    s.vectorize("l")
    rng = np.random.default_rng(0)
    dtype = next(b.dtype for b in s.func.params if b.name == "Y").numpy
    arrays = {"A": rng.integers(0, 9, size).astype(wide), "Y": np.full(size, 9).astype(dtype)}
    check(s.func, arrays, target=target)


ACROSS = """
func across(X: float32[ROWS, 32], Y: float32[32, ROWS]):
    alloc T: float32[ROWS, 32] in stack
    for i in unrolled(ROWS):
        for l in vectorized(32):
            block T(a: ROWS = i, b: 32 = l):
                T[a, b] = X[a, b] * 2.0
    for c in serial(32):
        for r in vectorized(ROWS):
            block Y(d: 32 = c, e: ROWS = r):
                Y[d, e] = exp(T[e, d]) + 1.0
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [3, 6, 14, 16, 28])
def test_transposed_reads_are_correct(rows: int, target: str) -> None:
    rng = np.random.default_rng(rows)
    arrays = {"X": rng.standard_normal((rows, 32)).astype(np.float32), "Y": np.full((32, rows), 9, np.float32)}
    check(parse(ACROSS.replace("ROWS", str(rows))), arrays, target=target)


@pytest.mark.parametrize("rows", [3, 6, 14, 28])
def test_transposed_reads_are_vectorized(rows: int) -> None:
    """Non-contiguous elements of a private buffer need no mask: the buffer is padded."""
    text = emit_llvm([parse(ACROSS.replace("ROWS", str(rows)))], [], Target.parse("x86-64-v4"))
    assert "store float " not in text
    assert "masked.store" in text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "first", "other", "change"),
    [("uint8", "0", "1", "- uint8(1)"), ("int8", "100", "0", "+ int8(100)"), ("uint16", "0", "1", "- uint16(1)"),
     ("int16", "32767", "0", "+ int16(1)"), ("uint32", "0", "1", "- uint32(1)"),
     ("int32", "2147483647", "0", "+ int32(1)")],
)  # fmt: skip
def test_lane_constants_wrap(target: str, dtype: str, first: str, other: str, change: str) -> None:
    """Conditions are folded per lane, but only those whose arithmetic cannot overflow."""
    func = parse(f"""
func wraps(X: float32[16], Y: float32[16]):
    for l in vectorized(16):
        block Y(v: 16 = l):
            Y[v] = select(select(v < 4, {dtype}({first}), {dtype}({other})) {change} > {dtype}(5), X[v], 0.0)
""")
    x = np.random.default_rng(2).standard_normal(16).astype(np.float32)
    check(func, {"X": x, "Y": np.full(16, 9, np.float32)}, target=target)
