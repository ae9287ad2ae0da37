"""Register pressure of reductions, from the assembly: no accumulator is spilled in the innermost loop."""

import re

import numpy as np
import pytest
from tests.codegen.native import TARGETS, check

from tilewright.codegen import assembly, emit_llvm
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.machine import Target

UNROLLED = """
func unrolled(A: float32[9, 132], B: float32[3, 132, 16], Y: float32[9, 48]):
    alloc T: float32[9, 48] in register
    for a in unrolled(9):
        for b in vectorized(48):
            block first(v: 9 = a, w: 48 = b):
                T[v, w] = 0.0
    for k in serial(66):
        for s in unrolled(2):
            for c in unrolled(9):
                for d in vectorized(48):
                    block T(v2: 9 = c, w2: 48 = d, reduce r: 132 = k * 2 + s):
                        T[v2, w2] = T[v2, w2] + A[v2, r] * B[w2 // 16, r, w2 % 16]
    for e in unrolled(9):
        for f in vectorized(48):
            block Y(v3: 9 = e, w3: 48 = f):
                Y[v3, w3] = T[v3, w3]
"""
"""A tile of 27 accumulators, three operands and one broadcast for 32 registers, two steps per iteration."""

BLOCKED = """
func blocked(A: float32[9, 261], B: float32[261, 48], Y: float32[9, N]):
    alloc S: float32[9, 48] in stack
    alloc T: float32[9, 48] in register
    for a in unrolled(9):
        for b in vectorized(48):
            block start(v: 9 = a, w: N = b) where b < N:
                S[v, w] = 0.0
    for q in serial(2):
        for a1 in unrolled(9):
            for b1 in vectorized(48):
                block first(v1: 9 = a1, w1: N = b1) where b1 < N:
                    T[v1, w1] = 0.0
        for k in serial(100):
            for c in unrolled(9):
                for d in vectorized(48):
                    block sum(v2: 9 = c, w2: N = d, reduce r: 200 = q * 100 + k) where d < N:
                        T[v2, w2] = T[v2, w2] + A[v2, r] * B[r, w2]
        for c1 in unrolled(9):
            for d1 in vectorized(48):
                block add(v3: 9 = c1, w3: N = d1, reduce p: 2 = q) where d1 < N:
                    S[v3, w3] = S[v3, w3] + T[v3, w3]
    for a4 in unrolled(9):
        for b4 in vectorized(48):
            block again(v4: 9 = a4, w4: N = b4) where b4 < N:
                T[v4, w4] = 0.0
    for k5 in serial(61):
        for c5 in unrolled(9):
            for d5 in vectorized(48):
                block rest(v5: 9 = c5, w5: N = d5, reduce r5: 61 = k5) where d5 < N:
                    T[v5, w5] = T[v5, w5] + A[v5, r5 + 200] * B[r5 + 200, w5]
    for e in unrolled(9):
        for f in vectorized(48):
            block Y(v6: 9 = e, w6: N = f) where f < N:
                Y[v6, w6] = S[v6, w6] + T[v6, w6]
"""
"""The same tile with K-blocking: the sums of a block in registers, the total on the stack; N columns of 48 exist."""

PARTIAL = """
func partial(A: float32[9, 161], B: float32[161, 48], Y: float32[9, 48]):
    alloc S: float32[9, 48] in stack
    alloc T: float32[9, 48] in register
    for a in unrolled(9):
        for b in vectorized(48):
            block start(v: 9 = a, w: 48 = b):
                S[v, w] = 0.0
    for q in serial(2):
        for a1 in unrolled(9):
            for b1 in vectorized(48):
                block first(v1: 9 = a1, w1: 48 = b1):
                    T[v1, w1] = 0.0
        for k in serial(100):
            for c in unrolled(9):
                for d in vectorized(48):
                    block sum(v2: 9 = c, w2: 48 = d, o: 2 = q, reduce r: 100 = k):
                        T[v2, w2] = T[v2, w2] + select(r + o * 100 < 161, A[v2, r + o * 100] * B[r + o * 100, w2], 0.0)
        for c1 in unrolled(9):
            for d1 in vectorized(48):
                block add(v3: 9 = c1, w3: 48 = d1, reduce p: 2 = q):
                    S[v3, w3] = S[v3, w3] + T[v3, w3]
    for e in unrolled(9):
        for f in vectorized(48):
            block Y(v6: 9 = e, w6: 48 = f):
                Y[v6, w6] = S[v6, w6]
"""
"""The same tile over the tiles of a sum, of which the last one is partial: beyond its end the terms are 0."""


def innermost(func: Func, target: str) -> list[list[str]]:
    """The instructions of every loop with multiply-adds and without inner branches."""
    written = Target.parse(target)
    lines = [x.strip() for x in assembly(emit_llvm([func], [], written), written).splitlines()]
    start: dict[str, int] = {}
    loops: list[list[str]] = []
    for k, line in enumerate(lines):
        if label := re.match(r"(\.L\w+):", line):
            start[label[1]] = k
        elif (jump := re.match(r"j\w+\s+(\.L\w+)", line)) and jump[1] in start:
            body = lines[start[jump[1]] + 1 : k]
            if any("vfmadd" in x for x in body) and not any(re.match(r"j|\.L\w+:", x) for x in body):
                loops.append(body)
    return loops


def idle(body: list[str]) -> list[str]:
    """Spills and moves: stack accesses, and copies of vectors, masked ones included."""
    return [x for x in body if "(%rsp)" in x or re.match(r"vmov\w+\s+%[xyz]mm\d+, %[xyz]mm\d+", x)]


@pytest.mark.parametrize("text", [UNROLLED, *(BLOCKED.replace("N", n) for n in ("48", "43"))],
                         ids=["unrolled", "blocked", "blocked, masked"])  # fmt: skip
def test_accumulators_stay_in_registers(text: str) -> None:
    loops = innermost(parse(text), "x86-64-v4")
    assert loops
    assert [idle(body) for body in loops] == [[]] * len(loops)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", ["48", "43"])
def test_k_blocked_accumulators_stay_in_registers(target: str, columns: str) -> None:
    rng = np.random.default_rng(int(columns))
    arrays = {"A": rng.standard_normal((9, 261)).astype(np.float32),
              "B": rng.standard_normal((261, 48)).astype(np.float32),
              "Y": np.full((9, int(columns)), 9, np.float32)}  # fmt: skip
    check(parse(BLOCKED.replace("N", columns)), arrays, target=target)


def test_terms_beyond_the_end_of_a_sum_keep_no_product_from_its_addition() -> None:
    target = Target.parse("x86-64-v4")
    text = assembly(emit_llvm([parse(PARTIAL)], [], target), target)
    assert "vfmadd" in text
    assert "vmulps" not in text


@pytest.mark.parametrize("target", TARGETS)
def test_terms_beyond_the_end_of_a_sum_count_nothing(target: str) -> None:
    rng = np.random.default_rng(161)
    arrays = {"A": rng.standard_normal((9, 161)).astype(np.float32),
              "B": rng.standard_normal((161, 48)).astype(np.float32), "Y": np.full((9, 48), 9, np.float32)}  # fmt: skip
    check(parse(PARTIAL), arrays, target=target)
