"""What comes out: golden LLVM text, the same bytes in every process, good machine code, foreign architectures."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from tests.codegen.native import TARGETS, check

from tilewright.codegen import assembly, compile_object, emit_llvm
from tilewright.loops.parser import parse
from tilewright.machine import Target

SMALL = """
func axpy(X: float32[N], Y: float32[N]; N: 1..1000):
    for o in parallel((N + 7) // 8):
        for l in vectorized(8):
            block Y(v: N = o * 8 + l) where o * 8 + l < N:
                Y[v] = Y[v] + X[v] * 2.0
"""


def tile(rows: int, lanes: int) -> str:
    """A register tile of a matrix product."""
    return f"""
func gemm(A: float32[{rows * 4}, 128], B: float32[128, {lanes * 2}], C: float32[{rows * 4}, {lanes * 2}]):
    alloc T: float32[{rows}, {lanes}] in register
    for io in parallel(4):
        for jo in serial(2):
            for i0 in unrolled({rows}):
                for j0 in vectorized({lanes}):
                    block start(a0: {rows} = i0, b0: {lanes} = j0):
                        T[a0, b0] = 0.0
            for k in serial(128):
                for i1 in unrolled({rows}):
                    for j1 in vectorized({lanes}):
                        block T(a: {rows} = i1, b: {lanes} = j1, m: {rows * 4} = io * {rows} + i1, n: {lanes * 2} = jo * {lanes} + j1, reduce r: 128 = k):
                            T[a, b] = T[a, b] + A[m, r] * B[r, n]
            for i2 in unrolled({rows}):
                for j2 in vectorized({lanes}):
                    block C(a2: {rows} = i2, b2: {lanes} = j2, m2: {rows * 4} = io * {rows} + i2, n2: {lanes * 2} = jo * {lanes} + j2):
                        C[m2, n2] = max(T[a2, b2], 0.0)
"""  # noqa: E501


PADDED = """
func conv(X: float32[64, 58, 14], W: float32[64, 3, 3, 32], Y: float32[56, 14, 32]):
    alloc T: float32[14, 32] in register
    for h in parallel(56):
        for i0 in unrolled(14):
            for j0 in vectorized(32):
                block start(a0: 14 = i0, b0: 32 = j0):
                    T[a0, b0] = 0.0
        for c in serial(64):
            for p in serial(3):
                for q in serial(3):
                    for i1 in unrolled(14):
                        for j1 in vectorized(32):
                            block T(a: 14 = i1, b: 32 = j1, y: 56 = h, reduce vc: 64 = c, reduce vp: 3 = p, reduce vq: 3 = q):
                                T[a, b] = T[a, b] + select(y + vp >= 1 and y + vp < 57 and a + vq >= 1 and a + vq < 15, X[vc, y + vp - 1, a + vq - 1], 0.0) * W[vc, vp, vq, b]
        for i2 in unrolled(14):
            for j2 in vectorized(32):
                block Y(a2: 14 = i2, b2: 32 = j2, y2: 56 = h):
                    Y[y2, a2, b2] = T[a2, b2]
"""  # noqa: E501


EDGES = """
func edges(A: float32[M, 9], B: float32[9, N * 2], C: float32[M, N]; M: 1..100, N: 1..100):
    alloc T: float32[4, 16] in register
    for io in parallel((M + 3) // 4):
        for jo in serial((N + 15) // 16):
            for i0 in unrolled(4):
                for j0 in vectorized(16):
                    block start(a0: 4 = i0, b0: 16 = j0):
                        T[a0, b0] = 0.0
            for k in serial(9):
                for i1 in unrolled(4):
                    for j1 in vectorized(16):
                        block T(a: 4 = i1, b: 16 = j1, m: M = io * 4 + i1, n: N = jo * 16 + j1, reduce r: 9 = k) where io * 4 + i1 < M and jo * 16 + j1 < N:
                            T[a, b] = T[a, b] + A[m, r] * B[r, n * 2]
            for i2 in unrolled(4):
                for j2 in vectorized(16):
                    block C(a2: 4 = i2, b2: 16 = j2, m2: M = io * 4 + i2, n2: N = jo * 16 + j2) where io * 4 + i2 < M and jo * 16 + j2 < N:
                        C[m2, n2] = T[a2, b2]
"""  # noqa: E501

CONCAT = """
func concat(A: float32[3, 6, 20], B: float32[3, 6, 20], D: float32[3, 6, 20], Y: float32[9, 6, 40]):
    for i in parallel(9):
        for h in serial(6):
            for o in serial(3):
                for l in vectorized(16):
                    block Y(a: 9 = i, b: 6 = h, c: 40 = o * 16 + l) where o * 16 + l < 40:
                        Y[a, b, c] = select(a < 6, select(a < 3, A[a, b, c // 2], B[a - 3, b, c // 2]), D[a - 6, b, c // 2])
"""  # noqa: E501


def hot_loop(text: str, instruction: str) -> list[str]:
    """The instructions of the innermost loop with most of an instruction: from a label to the jump back to it."""
    best: list[str] = []
    lines = [line.strip() for line in text.splitlines()]
    for start, line in enumerate(lines):
        label = re.fullmatch(r"(\.LBB\w+):.*", line)
        if label is None:
            continue
        for end in range(start + 1, len(lines)):
            if re.match(r"\.LBB\w+:", lines[end]):
                break
            if re.match(rf"(j\w+|b\.?\w*|cb\w+)\s.*{re.escape(label[1])}$", lines[end]):
                body = [x for x in lines[start + 1 : end] if x and not x.startswith((".", "#", "//"))]
                if sum(instruction in x for x in body) > sum(instruction in x for x in best):
                    best = body
                break
    return best


@pytest.mark.parametrize("name", ["x86-64-v4", "aarch64"])
def test_llvm_text(name: str, golden: Callable[[str], None]) -> None:
    golden(emit_llvm([parse(SMALL)], [], Target.parse(name)))


SCRIPT = """
import hashlib, sys
from tests.codegen.test_module import PADDED, SMALL, tile
from tilewright.codegen import compile_object, emit_llvm
from tilewright.loops.parser import parse
from tilewright.machine import Target
target = Target.parse(sys.argv[1])
text = emit_llvm([parse(SMALL), parse(tile(6, 32)), parse(PADDED)], [], target)
print(hashlib.sha256(text.encode()).hexdigest(), hashlib.sha256(compile_object(text, target)).hexdigest())
"""


def test_two_processes_produce_the_same_bytes() -> None:
    command = [sys.executable, "-c", SCRIPT, "x86-64-v4"]
    places = [{"PYTHONHASHSEED": seed, "PYTHONPATH": "src:."} for seed in ("1", "2")]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, env=env) for env in places]
    assert runs[0].stdout == runs[1].stdout
    target = Target.parse("x86-64-v4")
    text = emit_llvm([parse(SMALL), parse(tile(6, 32)), parse(PADDED)], [], target)
    here = (hashlib.sha256(text.encode()).hexdigest(), hashlib.sha256(compile_object(text, target)).hexdigest())
    assert tuple(runs[0].stdout.split()) == here


@pytest.mark.parametrize(
    ("target", "rows", "lanes", "register"),
    [("x86-64-v4", 14, 32, "zmm"), ("x86-64-v4", 9, 48, "zmm"), ("x86-64-v3", 6, 16, "ymm")],
)
def test_a_register_tile_stays_in_registers(target: str, rows: int, lanes: int, register: str) -> None:
    chosen = Target.parse(target)
    text = assembly(emit_llvm([parse(tile(rows, lanes))], [], chosen), chosen)
    loop = hot_loop(text, "vfmadd")
    per_vector = chosen.lanes(32)
    fused = [x for x in loop if "vfmadd" in x]
    assert len(fused) == rows * lanes // per_vector
    assert all(x.count(register) == 3 or "{1to" in x for x in fused)
    assert not any("%rsp" in x or "%rbp" in x for x in loop), loop
    # per row a broadcast, per vector of B a load, and the counter
    assert len(loop) <= len(fused) + rows + lanes // per_vector + 4


def test_padding_costs_the_inner_loop_nothing_but_its_edges() -> None:
    chosen = Target.parse("x86-64-v4")
    loop = hot_loop(assembly(emit_llvm([parse(PADDED)], [], chosen), chosen), "vfmadd")
    assert sum("vfmadd" in x for x in loop) == 28
    assert not any("(%rsp)" in x for x in loop), loop
    assert sum(x.startswith("cmov") for x in loop) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_padded_tiles_are_right_at_every_border(target: str) -> None:
    func = parse(PADDED.replace("64", "3"))
    rng = np.random.default_rng(2)
    shapes = {"X": (3, 58, 14), "W": (3, 3, 3, 32), "Y": (56, 14, 32)}
    check(func, {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}, target=target, threads=(2,))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 31), (6, 32), (13, 40)])
def test_tiles_at_the_edges_check_rows_and_lanes(target: str, rows: int, columns: int) -> None:
    rng = np.random.default_rng(3)
    shapes = {"A": (rows, 9), "B": (9, columns * 2), "C": (rows, columns)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    check(parse(EDGES), arrays, {"M": rows, "N": columns}, target, threads=(2,))


@pytest.mark.parametrize("target", TARGETS)
def test_chains_of_selects_are_decided_before_the_loop(target: str) -> None:
    rng = np.random.default_rng(4)
    arrays = {n: rng.standard_normal((3, 6, 20)).astype(np.float32) for n in ("A", "B", "D")}
    check(parse(CONCAT), {**arrays, "Y": np.zeros((9, 6, 40), np.float32)}, target=target)


def test_aarch64_code_uses_fused_vectors() -> None:
    target = Target.parse("aarch64")
    text = assembly(emit_llvm([parse(tile(6, 16))], [], target), target)
    loop = hot_loop(text, "fmla")
    assert sum("fmla" in x for x in loop) == 24
    assert not any("[sp" in x for x in loop)
    assert compile_object(emit_llvm([parse(SMALL)], [], target), target)[:4] == b"\x7fELF"


@pytest.mark.parametrize("target", TARGETS)
def test_rounding_is_fused_only_where_multiplication_meets_addition(target: str) -> None:
    chosen = Target.parse(target)
    source = SMALL.replace("Y[v] + X[v] * 2.0", "(Y[v] + 1.0) * X[v]")
    text = emit_llvm([parse(source)], [], chosen)
    assert "fadd contract" in text
    assert "fmul contract" in text
    assert "fast" not in text
    assert "nnan" not in text
    assert "vfmadd" not in assembly(text, chosen)
