"""Compiled modules: golden LLVM text, deterministic bytes, machine code quality, other architectures."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.assembly_text import hot_loop
from tests.codegen.native import TARGETS, check
from tests.codegen.native_routine import make_segment
from tests.codegen.programs import PADDED, SMALL, tile

from tilewright.codegen import assembly, compile_object, emit_llvm
from tilewright.codegen.module import emit_kernel_module, optimize_module
from tilewright.codegen.segment import KernelCall
from tilewright.expr.nodes import const
from tilewright.graph.buffer_location import InputLocation, OutputLocation
from tilewright.loops.parser import parse
from tilewright.machine import Target
from tilewright.routine.routine import Elements, routine

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


@pytest.mark.parametrize("name", ["x86-64-v4", "aarch64"])
def test_llvm_text(name: str, golden: Callable[[str], None]) -> None:
    golden(emit_llvm([parse(SMALL)], [], Target.parse(name)))


SCRIPT = """
import hashlib, sys
from tests.codegen.programs import PADDED, SMALL, tile
from tilewright.codegen import compile_object, emit_llvm
from tilewright.loops.parser import parse
from tilewright.machine import Target
target = Target.parse(sys.argv[1])
text = emit_llvm([parse(SMALL), parse(tile(6, 32)), parse(PADDED)], [], target)
print(hashlib.sha256(text.encode()).hexdigest(), hashlib.sha256(compile_object(text, target)).hexdigest())
"""


def test_bytes_are_equal_across_processes() -> None:
    command = [sys.executable, "-c", SCRIPT, "x86-64-v4"]
    environments = [{"PYTHONHASHSEED": seed, "PYTHONPATH": "src:."} for seed in ("1", "2")]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, env=env) for env in environments]
    assert runs[0].stdout == runs[1].stdout
    target = Target.parse("x86-64-v4")
    text = emit_llvm([parse(SMALL), parse(tile(6, 32)), parse(PADDED)], [], target)
    here = (hashlib.sha256(text.encode()).hexdigest(), hashlib.sha256(compile_object(text, target)).hexdigest())
    assert tuple(runs[0].stdout.split()) == here


@pytest.mark.parametrize(
    ("target", "rows", "lanes", "register"),
    [("x86-64-v4", 14, 32, "zmm"), ("x86-64-v4", 9, 48, "zmm"), ("x86-64-v3", 6, 16, "ymm")],
)
def test_register_tile_stays_in_registers(target: str, rows: int, lanes: int, register: str) -> None:
    chosen = Target.parse(target)
    text = assembly(emit_llvm([parse(tile(rows, lanes))], [], chosen), chosen)
    loop = hot_loop(text, "vfmadd")
    per_vector = chosen.lanes(32)
    fused = [x for x in loop if "vfmadd" in x]
    assert len(fused) == rows * lanes // per_vector
    assert all(x.count(register) == 3 or "{1to" in x for x in fused)
    assert not any("%rsp" in x or "%rbp" in x for x in loop), loop
    # a broadcast per row, a load per vector of B, and the counter
    assert len(loop) <= len(fused) + rows + lanes // per_vector + 4


def test_padding_is_unswitched_out_of_the_inner_loop() -> None:
    chosen = Target.parse("x86-64-v4")
    loop = hot_loop(assembly(emit_llvm([parse(PADDED)], [], chosen), chosen), "vfmadd")
    assert sum("vfmadd" in x for x in loop) == 28
    assert not any("(%rsp)" in x for x in loop), loop
    assert sum(x.startswith("cmov") for x in loop) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_padded_tiles_are_correct_at_borders(target: str) -> None:
    func = parse(PADDED.replace("64", "3"))
    rng = np.random.default_rng(2)
    shapes = {"X": (3, 58, 14), "W": (3, 3, 3, 32), "Y": (56, 14, 32)}
    check(func, {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}, target=target, threads=(2,))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 31), (6, 32), (13, 40)])
def test_edge_tiles_are_correct(target: str, rows: int, columns: int) -> None:
    rng = np.random.default_rng(3)
    shapes = {"A": (rows, 9), "B": (9, columns * 2), "C": (rows, columns)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    check(parse(EDGES), arrays, {"M": rows, "N": columns}, target, threads=(2,))


@pytest.mark.parametrize("target", TARGETS)
def test_nested_selects_are_unswitched(target: str) -> None:
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
def test_only_multiply_add_is_contracted(target: str) -> None:
    chosen = Target.parse(target)
    source = SMALL.replace("Y[v] + X[v] * 2.0", "(Y[v] + 1.0) * X[v]")
    text = emit_llvm([parse(source)], [], chosen)
    assert "fadd contract" in text
    assert "fmul contract" in text
    assert "fast" not in text
    assert "nnan" not in text
    assert "vfmadd" not in assembly(text, chosen)


SERIAL = """
func serial_copy(A: float32[64, N], Y: float32[64, N]; N: 1..100000):
    for i in parallel(64):
        for j in serial(N):
            block Y(a: 64 = i, b: N = j):
                Y[a, b] = A[a, b] + 1.0
"""


@routine()
def add_one(x: Elements, out: Elements) -> int:
    for i in range(len(x)):
        out[i] = x[i] + 1
    return 0


def test_kernels_beside_routines_are_not_vectorized_by_llvm() -> None:
    target, kernel = Target.parse("x86-64-v3"), parse(SERIAL)
    segment = make_segment((add_one, [np.zeros(64, np.float32)], [np.zeros(64, np.float32)], []))
    call = KernelCall("serial_copy", (InputLocation(1), OutputLocation(1)), (const(1000),))
    segment = replace(segment, calls=(*segment.calls, call), output_shapes=(*segment.output_shapes, (const(64000),)))

    def vectors(text: str) -> dict[str, bool]:
        """Whether functions that add floats add vectors of them."""
        functions = optimize_module(text, target).functions
        return {f.name: " x float>" in str(f) for f in functions if "fadd" in str(f)}

    apart = vectors(emit_kernel_module(kernel, "serial_copy", target))
    beside = vectors(emit_llvm([kernel], [segment], target))
    assert not any(apart.values())
    assert {name: beside.pop(name) for name in apart} == apart
    # the routine is inlined into the segment's functions
    assert all(beside.values())
    assert "llvm.loop" not in emit_llvm([kernel], [], target)
