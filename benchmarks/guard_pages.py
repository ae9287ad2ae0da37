"""Times of kernels whose arrays lie between guard pages, relative to the same kernels with accessible surroundings.

    python -m benchmarks.guard_pages [--groups gemm_large,depthwise] [--cases NAME,...] [--models NAME,...] [--slower
    1.1]
                               [--static]

An access under a mask that reaches a page that is not present takes hundreds of cycles, each time, and what lies
behind an array is chance: so no kernel may lose by it. Every array of a kernel begins behind an absent page and, in
turns, ends before one; absent pages can't be read, so that a kernel that reads what it must not ends the process.
Kernels that take more than `--slower` times as long as with room are measured again and listed, and the exit status
is 1.

`--static` measures nothing: it reads the code of all kernels, for AVX-512 and for AVX2, and lists masked accesses that
are not known to have an active lane.
"""

import argparse
import ctypes
import mmap
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from onnx import ModelProto

from benchmarks.masked_accesses import masked_accesses
from benchmarks.operators.cases import all_cases
from benchmarks.zoo.model import build_model
from benchmarks.zoo.models import MODELS
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Const, Expr, Var, const
from tilewright.expr.traversal import free_vars
from tilewright.loops.private_memory import workspace_of
from tilewright.lower.kernel_variants import programs_of
from tilewright.machine import Target
from tilewright.machine.alignment import BUFFER_ALIGNMENT
from tilewright.measure.native_functions import NativeFunctions

DEFAULT_GROUPS = "gemm_large,gemm_small,conv_resnet50,depthwise,memory"
ROUNDS_FIRST, ROUNDS_RETRY = 7, 25
"""Blocks of each way; more before a kernel is listed."""

BLOCK_NS = 4e6
STATIC_TARGETS = {"x86-64-v4": "zen4", "x86-64-v3": "zen3"}

NO_ACCESS = 0
_libc = ctypes.CDLL(None, use_errno=True)


class GuardedMemory:
    """Memory of whole small pages with one more on either side, which is absent or touched."""

    def __init__(self, size: int, absent: bool) -> None:
        page = mmap.PAGESIZE
        self.mapped_bytes = -(-size // page) * page
        self.memory = mmap.mmap(-1, self.mapped_bytes + 2 * page)
        self.memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.data = np.frombuffer(self.memory, np.uint8)
        self.data[:] = 0
        for start in (0, page + self.mapped_bytes) if absent else ():
            if _libc.mprotect(ctypes.c_void_p(self.data.ctypes.data + start), ctypes.c_size_t(page), NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")

    def array(self, size: int, at_end: bool) -> np.ndarray:
        """`size` bytes behind the first page, or as close before the last one as their alignment allows."""
        start = mmap.PAGESIZE + ((self.mapped_bytes - size) // BUFFER_ALIGNMENT * BUFFER_ALIGNMENT if at_end else 0)
        return self.data[start : start + size]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: a model, the ranges of its symbols, and their sizes when kernels are measured."""

    label: str
    model: ModelProto | str
    ranges: Mapping[str, str]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A kernel and how many times as long it takes with arrays that begin behind, or end before, absent pages."""

    model: str
    kernel: str
    nanoseconds: float
    after_guard: float
    before_guard: float


def random_view(view: np.ndarray, buffer: Buffer, rng: np.random.Generator) -> np.ndarray:
    """An array of a buffer's type over bytes, with random numbers."""
    array = view.view(buffer.dtype.numpy)
    if array.dtype.kind == "f":
        array[:] = rng.standard_normal(array.size).astype(array.dtype)
    elif array.dtype.kind == "b":
        array[:] = rng.integers(0, 2, array.size)
    else:
        array[:] = rng.integers(1, 100, array.size).astype(array.dtype)
    return array


def measure(native: NativeFunctions, name: str, sizes: Sequence[int], rounds: int) -> tuple[float, float, float]:
    """Nanoseconds of one function with room, and the ratios of `Slowdown`."""
    func, rng = native.funcs[name], np.random.default_rng(5)
    known: Mapping[Var, Expr] = {s: const(n) for s, n in zip(func.symbols, sizes, strict=True)}
    rooms = [workspace_of(func, b, const(1)) for b in func.params]
    shapes = [tuple(literal_value(substitute(n, known)) for n in b.shape) for b in rooms]
    runs: dict[str, Callable[[], None]] = {}
    kept: list[GuardedMemory] = []
    for at_end in (False, True):
        for absent in (False, True):
            arrays: list[np.ndarray] = []
            for buffer, shape in zip(func.params, shapes, strict=True):
                size = prod(shape) * buffer.dtype.bytes
                kept.append(GuardedMemory(size, absent))
                arrays.append(random_view(kept[-1].array(size, at_end), buffer, rng).reshape(shape))
            which = "ends" if at_end else "begins"
            runs[which if absent else f"{which} with room"] = call(native, name, arrays, sizes)
    times = time_in_turns(runs, rounds)
    begins, ends = (times[k] / times[f"{k} with room"] for k in ("begins", "ends"))
    return min(times.values()), begins, ends


def call(native: NativeFunctions, name: str, arrays: Sequence[np.ndarray], sizes: Sequence[int]) -> Callable[[], None]:
    """A call of a function, on one thread."""
    return lambda: native.call(name, arrays, sizes)


def time_in_turns(runs: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Nanoseconds of one call of each, the fastest of several blocks in turns, by the thread's own clock: what others
    take of the processor does not count."""
    best = dict.fromkeys(runs, float("inf"))
    times = {name: max(1, int(BLOCK_NS / max(thread_time(run, 2), 1.0))) for name, run in runs.items()}
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], thread_time(run, times[name]))
    return best


def thread_time(run: Callable[[], None], times: int) -> float:
    """Nanoseconds of the thread for one of several calls."""
    start = time.thread_time_ns()
    for _ in range(times):
        run()
    return (time.thread_time_ns() - start) / times


def literal_value(e: Expr) -> int:
    """The value of an expression without variables."""
    if not isinstance(e, Const):
        raise TypeError(f"{e} is no number")
    return int(e.value)


def measure_model(subject: Subject, slower: float) -> Iterator[Slowdown]:
    """The findings of all kernels of a model; alike kernels once."""
    compilation = make_compilation(subject.model, CompileOptions(shapes=subject.ranges))
    bound = {u.compiled.name: u for u in compilation.units if isinstance(u, BoundKernel)}
    programs = {
        f"{name}.v{k}": (replace(func, name=f"{name}.v{k}"), unit)
        for name, unit in bound.items()
        for k, func in enumerate(programs_of(unit.compiled.func))
    }
    native = NativeFunctions([func for func, _ in programs.values()], compilation.target)
    for name, (func, unit) in programs.items():
        known: Mapping[Var, Expr] = {v: const(subject.sizes.get(v.name, 8)) for e in unit.symbols for v in free_vars(e)}
        sizes = dict(zip(unit.compiled.func.symbols, unit.symbols, strict=True))
        numbers = [literal_value(substitute(sizes[v], known)) for v in func.symbols]
        ratios = measure(native, name, numbers, ROUNDS_FIRST)
        if max(ratios[1:]) > slower:
            ratios = measure(native, name, numbers, ROUNDS_RETRY)
        yield Slowdown(subject.label, name, *ratios)


def check_static(subject: Subject) -> int:
    """Prints the masked accesses of a model's kernels that are not known to have an active lane; how many there are."""
    count = 0
    for target, machine in STATIC_TARGETS.items():
        options = CompileOptions(shapes=subject.ranges, target=target, machine=machine)
        text = make_compilation(subject.model, options).llvm()
        accesses = list(masked_accesses(text))
        width = Target.parse(target).vector_bits
        unknown = [a.line for a in accesses if not a.reason or a.bits > width]
        counts = f"{len(accesses)} masked accesses, {len(unknown)} of them not known"
        print(f"{subject.label} for {target}: {counts}", flush=True)
        for line in unknown[:5]:
            print(f"    {line}")
        count += len(unknown)
    return count


def chosen_subjects(options: argparse.Namespace) -> Iterator[Subject]:
    """The operators and models that the command line names."""
    groups = [] if options.models and not options.cases else options.groups.split(",")
    names = options.cases.split(",") if options.cases else None
    for case in all_cases():
        if case.name in names if names is not None else case.group in groups:
            yield Subject(case.name, case.model(), {}, {})
    for model in MODELS.values():
        if options.models == "all" or model.name in options.models.split(","):
            build_model(model)
            yield Subject(model.name, str(model.path), model.ranges, model.shapes[-1])


def main() -> int:
    """Checks and reports; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default=DEFAULT_GROUPS, help=f"classes of operators (default: {DEFAULT_GROUPS})")
    parser.add_argument("--cases", help="only these operators, separated by commas")
    parser.add_argument("--models", default="", help="of the zoo, separated by commas, or all; without operators")
    parser.add_argument("--slower", type=float, default=1.1, help="the ratio from which on a kernel is listed")
    parser.add_argument("--static", action="store_true", help="read the code, measure nothing")
    options = parser.parse_args()
    if options.static:
        return 1 if sum(check_static(x) for x in chosen_subjects(options)) else 0
    slow = count = 0
    for subject in chosen_subjects(options):
        for slowdown in measure_model(subject, options.slower):
            count += 1
            if max(slowdown.after_guard, slowdown.before_guard) > options.slower:
                slow += 1
                print(f"{slowdown.model} {slowdown.kernel}: {slowdown.nanoseconds / 1e3:.1f} us, behind an absent page "
                      f"{slowdown.after_guard:.2f}, before one {slowdown.before_guard:.2f} times as long",
                      flush=True)  # fmt: skip
    print(f"{count} kernels, {slow} more than {options.slower} times as long between absent pages")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
