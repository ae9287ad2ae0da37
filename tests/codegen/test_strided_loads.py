"""Strided loads: taps of one row share their loads, and nothing outside of the row's buffer is read."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir
from tests.codegen.native import TARGETS, check

from tilewright.codegen import emit_llvm
from tilewright.codegen.module import assembly
from tilewright.codegen.strided_loads import MAX_STRIDE, ReadMargin, RegisterStream, constant_stride, load_start
from tilewright.loops.parser import parse
from tilewright.machine import Target

WINDOWS = """
func windows(X: KIND[3, SIZE], W: KIND[TAPS], Y: KIND[3, OUT]):
    alloc S: KIND[LANES] in register
    STAGE
    for r in serial(3):
        for o in serial(BLOCKS):
            for i in vectorized(LANES):
                block S_init(c: 3 = r, d: OUT = o * LANES + i) where o * LANES + i < OUT:
                    S[d - o * LANES] = ZERO
            for t in unrolled(TAPS):
                for l in vectorized(LANES):
                    block S(a: 3 = r, b: OUT = o * LANES + l, reduce k: TAPS = t) where o * LANES + l < OUT:
                        S[b - o * LANES] = S[b - o * LANES] + FROM[a, b * STRIDE + k * DILATION] * W[k]
            for j in vectorized(LANES):
                block Y(e: 3 = r, f: OUT = o * LANES + j) where o * LANES + j < OUT:
                    Y[e, f] = S[f - o * LANES]
"""
"""Windows along rows, read in place or from a copy on the stack."""

COPY = """for p in serial(3):
        for q in serial(SIZE):
            block T(g: 3 = p, h: SIZE = q):
                T[g, h] = X[g, h]"""

ZEROS = {"float32": "0.0", "float64": "float64(0.0)", "float16": "float16(0.0)", "int8": "int8(0)"}


def windows(stride: int, dilation: int, taps: int, out: int, lanes: int, kind: str, staged: bool) -> str:
    """The text of the windows; the last of a row ends with it."""
    size = (out - 1) * stride + (taps - 1) * dilation + 1
    text = WINDOWS.replace("    STAGE\n", f"    alloc T: KIND[3, SIZE] in stack\n    {COPY}\n" if staged else "")
    numbers = {"SIZE": size, "TAPS": taps, "OUT": out, "LANES": lanes, "BLOCKS": -(-out // lanes), "STRIDE": stride}
    words = {"KIND": kind, "ZERO": ZEROS[kind], "DILATION": dilation, "FROM": "T" if staged else "X", **numbers}
    for word, value in words.items():
        text = text.replace(word, str(value))
    return text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", list(ZEROS))
@pytest.mark.parametrize(
    ("stride", "dilation", "taps", "out", "lanes"),
    [(2, 1, 3, 32, 16), (2, 1, 3, 28, 32), (2, 2, 5, 33, 16), (3, 1, 5, 32, 16), (4, 1, 7, 48, 16), (4, 3, 3, 20, 8)],
)
def test_strided_windows_are_correct_and_in_bounds(
    target: str, kind: str, stride: int, dilation: int, taps: int, out: int, lanes: int
) -> None:
    rng = np.random.default_rng(stride)
    for staged in (False, True):
        func = parse(windows(stride, dilation, taps, out, lanes, kind, staged))
        arrays = {b.name: rng.integers(-3, 4, [int(str(n)) for n in b.shape]).astype(kind) for b in func.params}
        check(func, arrays, target=target, rtol=1e-2 if kind == "float16" else 1e-5, threads=(1,))


def reads(text: str, target: str) -> int:
    """The number of instructions that read the first argument, without those of the last pair."""
    lines = assembly(emit_llvm([parse(text)], [], Target.parse(target)), Target.parse(target)).splitlines()
    return sum(bool(re.search(r"\(%rdi[,)]", x)) and "lea" not in x for x in lines)


def test_taps_share_loads() -> None:
    one_tap, three_taps = (
        reads(windows(2, 1, taps, 32, 32, "float32", False).replace("[3, ", "[1, ").replace("3 =", "1 =")
              .replace("serial(3)", "serial(1)"), "x86-64-v4") for taps in (1, 3)
    )  # fmt: skip
    assert one_tap == 4
    # the vectors of the first tap, one more of the second, and two for the end of the third
    assert three_taps <= 7


@given(
    stride=st.integers(2, MAX_STRIDE),
    log_each=st.integers(1, 4),
    registers=st.sampled_from([1, 2, 4]),
    index=st.integers(-9, 70),
    before=st.integers(0, 70),
    behind=st.integers(0, 40),
)
@settings(deadline=None)
def test_deinterleaved_elements(
    stride: int, log_each: int, registers: int, index: int, before: int, behind: int
) -> None:
    each = 1 << log_each
    lanes = each * registers
    start = load_start(stride, lanes, ReadMargin(index, before, behind))
    assert 0 <= start <= before
    last = start + stride * (lanes - 1)
    builder = Shuffles()
    starts = [min(s, last + 1 + behind - each) for s in range(0, last + 1, each)]
    stream = RegisterStream(tuple((s, Numbers(range(s, s + each))) for s in starts), each)  # pyright: ignore[reportArgumentType]
    phase = stream.phase(builder, stride, start % stride, start // stride + lanes)  # pyright: ignore[reportArgumentType]
    load = phase.every_nth(builder, 1, start // stride, lanes)  # pyright: ignore[reportArgumentType]
    numbers = [n for _, register in load.registers for n in register.numbers]
    assert numbers == [start + stride * i for i in range(lanes)]


class Numbers:
    """A vector register whose elements are their own indices."""

    def __init__(self, numbers: range | list[int]) -> None:
        self.numbers = list(numbers)


class Shuffles:
    """Stands in for a builder: shuffles indices."""

    def shuffle_vector(self, a: Numbers, b: Numbers, mask: ir.Constant) -> Numbers:
        """The result of the instruction of this name."""
        both = a.numbers + b.numbers
        lanes = [n.constant for n in mask.constant] if isinstance(mask.constant, list) else [mask.constant]
        return Numbers([both[k] for k in lanes])


@pytest.mark.parametrize(
    ("offsets", "stride"), [((0, 2, 4), 2), ((3, 6, 9), 3), ((0, 1, 2), 0), ((4, 2, 0), 0), ((0, 5), 0), ((1,), 0)]
)
def test_constant_stride(offsets: tuple[int, ...], stride: int) -> None:
    assert constant_stride(offsets) == stride


PADDED = """
func padded(X: float32[4, 14, 14], Y: float32[4, 16, 16]):
    for c in serial(4):
        for y in serial(16):
            for l in vectorized(16):
                block Y(a: 4 = c, b: 16 = y, d: 16 = l):
                    Y[a, b, d] = select(1 <= b and b < 15 and 1 <= d and d < 15, X[a, b - 1, d - 1], 0.0)
"""
"""A border of zeros: rows are in bounds or not, and always the same lanes are out of bounds."""


@pytest.mark.parametrize("target", TARGETS)
def test_padding_rows_are_read_from_zeros(target: str) -> None:
    x = np.random.default_rng(3).standard_normal((4, 14, 14)).astype(np.float32)
    check(parse(PADDED), {"X": x, "Y": np.zeros((4, 16, 16), np.float32)}, target=target, threads=(1,))


def test_constant_masks_stay_constants_under_guards() -> None:
    text = assembly(emit_llvm([parse(PADDED)], [], Target.parse("x86-64-v4")), Target.parse("x86-64-v4"))
    assert "kortest" not in text
    assert "kand" not in text
