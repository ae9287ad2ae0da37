"""Throughput of FMA loops with loads on one core, split into clock frequency and FMAs per cycle.

    python -m benchmarks.microkernels [--seconds 0.4] [--cases multiply-adds,tile]

Every kernel is a loop in assembly, so that nothing depends on a compiler. It runs long enough for the clock to settle;
then, in the same function, a chain of multiplications of integers follows that is timed too. Each waits for the one
before, three cycles on every processor that has AVX-512, so that their time is the clock that the loop has left behind.
Loop and chain together tell multiply-adds per cycle, which is what the pipeline does, and cycles per second, which it
has no influence on.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import llvmlite.binding as llvm
import numpy as np

from benchmarks.common import report
from tilewright.codegen import compile_object
from tilewright.machine import Target
from tilewright.measure.aligned_array import aligned_array
from tilewright.runtime.linker import link_functions

REGISTERS, LANES = 32, 16
CLOCK_MULTIPLIES, CYCLES_PER_MULTIPLY = 2000, 3
"""Dependent integer multiplications after a loop, and the latency of each in cycles."""

WARMUP_NANOSECONDS = 60_000
"""Approximate run time of a loop before its clock is measured."""

TURNS = 5
STEPS = 128
"""Default steps of a loop, whose operands stay in the L1 cache."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One loop.

    Attributes:
        name: in the table.
        group: what it shows.
        body: instructions of one step; r8 and r9 are the two operands.
        multiply_adds, loads: vector instructions among them.
        steps: before it starts again at the operands' beginning.
    """

    name: str
    group: str
    body: tuple[str, ...]
    multiply_adds: int
    loads: int
    steps: int = STEPS


def multiply_adds_with_loads(count: int, label: str, load: str) -> Kernel:
    """24 FMAs between registers with independent loads spread among them."""
    body: list[str] = []
    for k in range(24):
        body.append(f"vfmadd231ps zmm{k}, zmm{28 + k % 2}, zmm30")
        body += [load] * ((k + 1) * count // 24 - k * count // 24)
    name = f"24 multiply-adds, {count} x {label}" if count else "24 multiply-adds"
    return Kernel(name, "multiply-adds", tuple(body), 24, count)


def register_tile(rows: int, vectors: int, steps: int = STEPS, embedded: bool = False, shift: int = 0) -> Kernel:
    """A register tile: `vectors` loads of one operand and `rows` broadcasts of the other per step.

    Args:
        rows, vectors: its size.
        steps: of the reduction.
        embedded: broadcasts are operands of the multiply-adds instead of instructions.
        shift: bytes by which vectors miss the beginning of a cache line.
    """
    sums, vectors_read = rows * vectors, [f"zmm{rows * vectors + v}" for v in range(vectors)]
    body = [f"vmovups {z}, [r9 + {64 * v + shift}]" for v, z in enumerate(vectors_read)]
    for r in range(rows):
        row = f"dword ptr [r8 + {4 * r}]"
        spread = f"zmm{sums + vectors + r % (REGISTERS - sums - vectors)}"
        if not embedded:
            body.append(f"vbroadcastss {spread}, {row}")
        for v, z in enumerate(vectors_read):
            factor = f"{z}, {row}{{1to16}}" if embedded else f"{spread}, {z}"
            body.append(f"vfmadd231ps zmm{r * vectors + v}, {factor}")
    body += [f"add r9, {64 * vectors}", f"add r8, {4 * rows}"]
    size = steps * (4 * rows + 64 * vectors) >> 10
    kind = ", broadcasts embedded" if embedded else ", vectors across lines" if shift else ""
    loads = vectors + rows * (vectors if embedded else 1)
    return Kernel(f"{rows} x {LANES * vectors} over {size} KiB{kind}", "tile", tuple(body), sums, loads, steps)


def kernels() -> tuple[Kernel, ...]:
    """All loops of the table."""
    vector, element = "vmovups zmm25, [r9]", "vbroadcastss zmm25, dword ptr [r9]"
    counts = (8, 11, 16)
    return (
        multiply_adds_with_loads(0, "", ""), *(multiply_adds_with_loads(n, "vectors", vector) for n in counts),
        *(multiply_adds_with_loads(n, "broadcasts", element) for n in counts), multiply_adds_with_loads(16,
        "integers", "mov rax, [r9]"),
        multiply_adds_with_loads(16, "nop", "nop"),
        register_tile(14, 2), register_tile(8, 2), register_tile(9, 3), register_tile(8, 3), register_tile(6, 4),
        register_tile(5, 5),
        register_tile(14, 2, embedded=True), register_tile(6, 4, embedded=True), register_tile(14, 2, shift=16),
        register_tile(6, 4, shift=16),
        register_tile(14, 2, 1024), register_tile(6, 4, 1024),
    )  # fmt: skip


def assembly(name: str, kernel: Kernel) -> str:
    """The function `name(times, A, B, out)`: out[0]: ticks of the loop, out[1]: of the dependency chain after it."""
    ticks = ["lfence", "rdtsc", "shl rdx, 32", "or rax, rdx", "lfence"]
    lines = ["push rbx", "mov r11, rdx", *(f"vpxord zmm{k}, zmm{k}, zmm{k}" for k in range(REGISTERS))]
    lines += [*ticks, "mov rbx, rax", "1:", "mov r8, rsi", "mov r9, r11", f"mov r10d, {kernel.steps}", ".p2align 6"]
    lines += ["2:", *kernel.body, "dec r10d", "jnz 2b", "dec rdi", "jnz 1b", *ticks, "sub rax, rbx", "mov [rcx], rax"]
    lines += [
        *ticks,
        "mov rbx, rax",
        f"mov r10d, {CLOCK_MULTIPLIES // 100}",
        "3:",
        *["imul r8, r11"] * 100,
        "dec r10d",
        "jnz 3b",
    ]
    lines += [*ticks, "sub rax, rbx", "mov [rcx + 8], rax", "vzeroupper", "pop rbx", "ret"]
    head = [".intel_syntax noprefix", ".text", f".globl {name}", ".p2align 6", f"{name}:"]
    return "\n".join(f'module asm "{x}"' for x in (*head, *lines, ".att_syntax prefix"))


class MicroBenchmark:
    """All kernels, linked into this process, with operands that fit the largest."""

    def __init__(self, selected: Sequence[Kernel]) -> None:
        target = Target.host()
        if target.arch != "x86_64" or target.vector_bits < LANES * 32:
            raise SystemExit(f"these loops are written for x86-64 with AVX-512; this is {target.name}")
        llvm.initialize_native_asmparser()
        self.kernels = {f"kernel{k}": kernel for k, kernel in enumerate(selected)}
        code = "\n".join(assembly(name, kernel) for name, kernel in self.kernels.items())
        self.library = link_functions(compile_object(code, target), list(self.kernels), "micro-kernels")
        kinds = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.calls = {n: ctypes.CFUNCTYPE(None, *kinds)(self.library.addresses[n]) for n in self.kernels}
        self.a, self.b = aligned_array((1 << 16,)), aligned_array((1 << 18,))
        rng = np.random.default_rng(0)
        self.a[...], self.b[...] = (rng.uniform(-1, 1, x.size).astype(np.float32) for x in (self.a, self.b))
        self.out = np.zeros(2, np.int64)

    def call(self, name: str) -> tuple[float, float, float]:
        """Nanoseconds per tick, ticks of the loop per multiply-add, ticks per cycle."""
        kernel = self.kernels[name]
        times = max(1, WARMUP_NANOSECONDS // (kernel.steps * kernel.multiply_adds // 6))
        start = time.perf_counter_ns()
        self.calls[name](times, self.a.ctypes.data, self.b.ctypes.data, self.out.ctypes.data)
        spent = time.perf_counter_ns() - start
        loop, chain = (float(x) for x in self.out)
        done = times * kernel.steps * kernel.multiply_adds
        return spent / (loop + chain), loop / done, chain / (CLOCK_MULTIPLIES * CYCLES_PER_MULTIPLY)

    def measure(self, seconds: float) -> Mapping[str, tuple[float, float, float]]:
        """GFLOP/s, GHz and FMAs per cycle by kernel: medians without the first third of every turn."""
        rates: dict[str, list[tuple[float, float, float]]] = {n: [] for n in self.kernels}
        for _ in range(TURNS):
            for name in self.kernels:
                rows: list[tuple[float, float, float]] = []
                end = time.perf_counter() + seconds / TURNS
                while time.perf_counter() < end or len(rows) < 3:
                    tick, each, cycle = self.call(name)
                    rows.append((2.0 * LANES / (each * tick), 1.0 / (cycle * tick), cycle / each))
                rates[name] += rows[len(rows) // 3 :]
        return {n: _column_medians(rows) for n, rows in rates.items()}


def _column_medians(rows: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    """The median of every column."""
    rate, clock, issued = (median(column) for column in zip(*rows, strict=True))
    return rate, clock, issued


HEADER = ["loop", "loads per multiply-add", "GFLOP/s", "of the first", "GHz behind it", "multiply-adds per cycle"]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.4, help="of every loop")
    parser.add_argument("--cases", default="multiply-adds,tile", help="groups of loops")
    options = parser.parse_args()
    first, *rest = kernels()
    bench = MicroBenchmark([first, *(k for k in rest if k.group in options.cases.split(","))])
    rates = bench.measure(options.seconds)
    peak = rates["kernel0"][0]
    rows = [
        [k.name, f"{k.loads / k.multiply_adds:.2f}", f"{speed:.0f}", f"{speed / peak:.0%}", f"{ghz:.2f}", f"{each:.2f}"]
        for k, (speed, ghz, each) in zip(bench.kernels.values(), rates.values(), strict=True)
    ]
    print(report.markdown_table(HEADER, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
