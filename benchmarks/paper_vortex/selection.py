"""What a choice costs (Vortex, Fig. 14), and what the library costs once per machine."""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks.one_thread import one_thread_machine
from benchmarks.paper_vortex.cases import Gemm
from benchmarks.paper_vortex.kernels import CaseKernel, case_kernel
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.measure.native_functions import NativeFunctions
from tilewright.optimize.construct.optimizer import problem_for
from tilewright.optimize.construct.run_time_cost import run_time_cost, select_cheapest
from tilewright.optimize.construct.variants import axis_extents
from tilewright.optimize.vortex.analyser import Analyser
from tilewright.optimize.vortex.library import library
from tilewright.optimize.vortex.optimizer import Vortex
from tilewright.tile.problem import problems_at
from tilewright.tile.program import TileProgram

CANDIDATES = (64, 128, 256, 512, 1024, 2048, 4096)
"""Of the library, judged by the analyser as the paper does at run time."""

PROGRAMS = (2, 4, 8, 16, 32, 64)
"""Of a kernel, chosen among in native code."""

CHOICES = 10_000
"""Evaluations of a selector in one call."""

CASE = Gemm(256, 2304, 768, 476)
REPEATS = 21


def analyser_microseconds() -> dict[str, float]:
    """Time of judging so many candidates by the analyser, in Python and NumPy."""
    machine, kernel = one_thread_machine(), case_kernel(CASE, False)
    problem = problem_for(kernel.task)
    assert problem is not None
    states = Vortex(machine).states(problem, kernel.task, machine)
    sketch, sizes = max(states, key=lambda s: len(s[1]))
    result: dict[str, float] = {}
    for count in CANDIDATES:
        some = np.resize(sizes, (count, *sizes.shape[1:]))
        times = [_elapsed_seconds(lambda x=some: Analyser(machine).times(problem, sketch, x)) for _ in range(REPEATS)]
        result[str(count)] = median(times) * 1e6
    return result


def selector_nanoseconds() -> dict[str, float]:
    """Time of choosing among so many programs in native code, where many choices follow each other."""
    machine, kernel = one_thread_machine(), case_kernel(CASE, True)
    programs = _distinct_programs(kernel, machine, max(PROGRAMS))
    samples = kernel.task.samples
    assert samples is not None
    on_grid = [p for p in problems_at(kernel.task.func, kernel.task.constants, samples.grid) if p is not None]
    costs = [run_time_cost(p, on_grid, Analyser(machine)) for p in programs]
    extents = axis_extents(kernel.task)
    selectors = {n: select_cheapest(costs[:n], extents) for n in PROGRAMS if n <= len(costs)}
    return {str(n): _choice_nanoseconds(e, kernel) for n, e in selectors.items()}


def library_seconds() -> dict[str, Any]:
    """Size and time of the library."""
    machine = one_thread_machine()
    library.cache_clear()
    seconds = _elapsed_seconds(lambda: library(machine, 32))
    candidates = library(machine, 32)
    return {"tiling strategies": candidates.tiling_strategies, "register tiles": len(candidates.register_tiles),
            "cache buffers": len(candidates.cache_buffers), "links": len(candidates.links),
            "seconds": seconds}  # fmt: skip


def _distinct_programs(kernel: CaseKernel, machine: Machine, count: int) -> list[TileProgram]:
    problem = problem_for(kernel.task)
    assert problem is not None
    sketch, sizes = max(Vortex(machine).states(problem, kernel.task, machine), key=lambda s: len(s[1]))
    places = np.linspace(0, len(sizes) - 1, count).astype(int)
    return [TileProgram.of(problem, sketch, sizes[k]) for k in places]


def _choice_nanoseconds(selector: Expr, kernel: CaseKernel) -> float:
    """Time of one evaluation, for numbers of rows that follow each other."""
    (rows,) = kernel.sizes
    i = Axis(Var("i"), const(CHOICES))
    body = substitute(selector, {rows: rows + i.var})
    stage = Computation(Buffer("y", (const(CHOICES),), int64), (i,), (), body)
    func = replace(lower_to_loops("choose", [stage], [stage.output], tuple(kernel.sizes)), name="choose")
    native = NativeFunctions([func], Target.host())
    call = native.bound("choose", [np.zeros(CHOICES, np.int64)], [kernel.sizes[v] for v in func.symbols])
    return min(_elapsed_seconds(call) for _ in range(REPEATS)) * 1e9 / CHOICES


def _elapsed_seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
