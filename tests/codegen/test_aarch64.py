"""Small AArch64 programs under qemu's user emulation; skipped without qemu or a cross assembler."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.codegen.native import close
from tests.codegen.programs import tile

from tilewright.codegen import compile_object, emit_llvm
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.machine import Target
from tilewright.runtime.openmp import STUBS

TOOLS = ("qemu-aarch64", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld")
pytestmark = pytest.mark.skipif(
    any(shutil.which(t) is None for t in TOOLS),
    reason=f"needs {', '.join(TOOLS)} (Debian: qemu-user, binutils-aarch64-linux-gnu)",
)
RNG = np.random.default_rng(5)

SOFTMAX = """
func softmax(X: float32[M, 50], Y: float32[M, 50]; M: 1..100):
    alloc S: float32[1] in stack
    for i in parallel(M):
        for o in serial(4):
            for l in vectorized(16):
                block S(a: M = i, reduce r: 50 = o * 16 + l) where o * 16 + l < 50:
                    init S[0] = 0.0
                    S[0] = S[0] + exp(X[a, r])
        for p in serial(4):
            for q in vectorized(16):
                block Y(b: M = i, c: 50 = p * 16 + q) where p * 16 + q < 50:
                    Y[b, c] = exp(X[b, c]) / S[0]
"""

INTEGERS = """
func integers(X: int32[37], I: int64[37], H: float16[37], B: bfloat16[37], Y: int32[37], Z: float16[37]):
    for i in vectorized(37):
        block Y(a: 37 = i):
            Y[a] = X[select(I[a] < 0, I[a] + 37, I[a])] // int32(7) + X[a] % (X[36 - a] + int32(1))
    for j in vectorized(37):
        block Z(b: 37 = j):
            Z[b] = H[b] * cast(float16, B[b]) + select(b > 3, H[b - 4], float16(0.5))
"""


def run(func: Func, arrays: dict[str, np.ndarray], symbols: dict[str, int], folder: Path) -> dict[str, np.ndarray]:
    """Links a program that calls the function once and writes all its buffers, and runs it."""
    target = Target.parse("aarch64")
    (folder / "kernel.o").write_bytes(compile_object(emit_llvm([func], [], target), target))
    (folder / "openmp.o").write_bytes(compile_object(STUBS, target))
    arguments = [*(f"={b.name}_data" for b in func.params), *(f"={symbols[s.name]}" for s in func.symbols), "=2"]
    lines = [".text", ".global _start", "_start:"]
    lines += [*(f"ldr x{k}, {a}" for k, a in enumerate(arguments)), f"bl {func.name}"]
    data = [".data"]
    for b in func.params:
        (folder / f"{b.name}.bin").write_bytes(arrays[b.name].tobytes())
        data += [".balign 64", f"{b.name}_data:", f'.incbin "{b.name}.bin"']
        lines += ["mov x0, #1", f"ldr x1, ={b.name}_data", f"ldr x2, ={arrays[b.name].nbytes}", "mov x8, #64", "svc #0"]
    lines += ["mov x0, #0", "mov x8, #93", "svc #0"]
    # as in the C library: the number of the system call, then its arguments
    offset = [f"mov x{k}, x{k + 1}" for k in range(6)]
    lines += [".global syscall", "syscall:", "mov x8, x0", *offset, "svc #0", "ret"]
    lines += [".global sched_getcpu", "sched_getcpu:", "mov x0, #0", "ret"]
    (folder / "start.s").write_text("\n".join([*lines, *data, ""]))
    for command in (
        ["aarch64-linux-gnu-as", "start.s", "-o", "start.o"],
        ["aarch64-linux-gnu-ld", "-static", "start.o", "kernel.o", "openmp.o", "-o", "program"],
    ):
        subprocess.run(command, cwd=folder, check=True)
    out = subprocess.run(["qemu-aarch64", "./program"], cwd=folder, check=True, capture_output=True).stdout
    buffers: dict[str, np.ndarray] = {}
    for b in func.params:
        size = arrays[b.name].nbytes
        buffers[b.name] = np.frombuffer(out[:size], b.dtype.numpy).reshape(arrays[b.name].shape)
        out = out[size:]
    assert not out
    return buffers


def check(func: Func, arrays: dict[str, np.ndarray], symbols: dict[str, int], folder: Path, rtol: float = 1e-5) -> None:
    expected = {n: a.copy() for n, a in arrays.items()}
    interpret(func, expected, symbols)
    for name, actual in run(func, arrays, symbols, folder).items():
        close(actual, expected[name], rtol, name)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_register_tile(tmp_path: Path) -> None:
    check(parse(tile(6, 16)), {"A": normal(24, 128), "B": normal(128, 32), "C": normal(24, 32)}, {}, tmp_path)


def test_reduction_exponential_and_masked_tails(tmp_path: Path) -> None:
    check(parse(SOFTMAX), {"X": normal(9, 50), "Y": normal(9, 50)}, {"M": 9}, tmp_path)


def test_integers_gathers_and_half_precision(tmp_path: Path) -> None:
    func = parse(INTEGERS)
    kinds = {b.name: b.dtype.numpy for b in func.params}
    arrays = {n: (RNG.standard_normal(37) * 30).astype(kinds[n]) for n in "XHBYZ"}
    arrays["H"] /= np.float16(30)
    arrays["B"] = (arrays["B"].astype(np.float32) / 30).astype(kinds["B"])
    arrays["I"] = RNG.integers(-37, 37, 37)
    check(func, arrays, {}, tmp_path, rtol=2e-3)
