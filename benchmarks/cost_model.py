"""How well the cost model orders programs: predicted and measured times of programs drawn from walks.

    python -m benchmarks.cost_model [--cases NAME,...] [--programs 20] [--verbose]

Programs of one kernel run in turns on one thread; the fastest run of each counts, as a shared machine only ever adds
time. The table has the rank correlation of prediction and measurement, the median of measured over predicted, and how
the program that the model likes best compares with the best of those drawn.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchmarks.common import report
from benchmarks.operators.cases import all_cases
from tilewright.cost.analytical import times
from tilewright.driver.compile import make_compilation
from tilewright.driver.offline import split_offline
from tilewright.loops.ir import Func
from tilewright.machine import Target
from tilewright.machine.stored import machine_for
from tilewright.measure.functions import NativeFunctions, with_workspace
from tilewright.optimize.construct.gensor import Annealing, walks
from tilewright.optimize.construct.optimizer import spaces
from tilewright.optimize.interface import Task
from tilewright.tile.lower import lower
from tilewright.tile.problem import problem_of
from tilewright.tile.program import TileProgram

CASES = ("gemm_m512_k512_n512,gemm_m37_k768_n2304,gemm_m128_k768_n768,conv_1x64x56x56_o64_k3_s1,"
         "conv_1x256x14x14_o256_k3_s1,conv_1x64x56x56_o256_k1_s1,dw_1x144x56x56_o144_k3_s1,dw_1x192x28x28_o192_k3_s2,"
         "maxpool_1x64x112x112_k3_s2,averagepool_1x512x28x28_k3_s1")  # fmt: skip
WORST = 4.0
"""Programs that the model takes to be this many times slower than the best are not drawn."""

ROUNDS = 8
SECONDS = 0.003

Array = np.ndarray


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--verbose", action="store_true", help="print every program")
    options = parser.parse_args()
    rows: list[list[str]] = []
    for case in (c for c in all_cases() if c.name in options.cases.split(",")):
        for kernel in make_compilation(case.model()).kernels:
            task = Task(kernel.origin, frozenset(b.name for b in kernel.origin.params[1:-1]), Target.host())
            drawn = draw(task, options.programs)
            if len(drawn) > 2:
                rows.append(row(f"{case.name}", drawn, task, options.verbose))
                print(" ".join(rows[-1]), flush=True)
    header = ["kernel", "programs", "rank correlation", "measured / predicted", "chosen / best"]
    print(report.markdown_table(header, rows))


def draw(task: Task, count: int) -> list[tuple[float, TileProgram]]:
    """Programs with their predicted nanoseconds, the best one first, the others at random."""
    problem = problem_of(task.func, task.constants)
    if problem is None or not problem.reduce or not problem.spatial:
        return []
    machine = machine_for(task.target).with_cores(1)
    found: list[tuple[float, TileProgram]] = []
    for space, forms in spaces(problem, task, machine).items():
        states = walks(space, Annealing(), 0).found()
        for form in forms:
            predicted = times(problem, form, states, machine).total
            found += [
                (float(t), TileProgram(problem, form, tuple(tuple(int(x) for x in level) for level in s)))
                for t, s in zip(predicted, states, strict=True)
            ]
    found.sort(key=lambda x: x[0])
    near = [x for x in found if x[0] < WORST * found[0][0]]
    picked = np.random.default_rng(0).choice(len(near), min(count, len(near)), replace=False)
    return [near[k] for k in sorted({0, *(int(k) for k in picked)})]


def row(name: str, drawn: list[tuple[float, TileProgram]], task: Task, verbose: bool) -> list[str]:
    """One line of the table."""
    funcs = {f"p{k}": split_offline(lower(p, task.func).func, task.constants).func for k, (_, p) in enumerate(drawn)}
    measured = measure(funcs)
    predicted = np.array([t for t, _ in drawn])
    found = np.array([measured[n] for n in funcs])
    if verbose:
        for k in np.argsort(found):
            print(f"{found[k] / 1e3:10.1f} us, predicted {predicted[k] / 1e3:10.1f}: {drawn[k][1]}")
    correlation = np.corrcoef(found.argsort().argsort(), predicted.argsort().argsort())[0, 1]
    middle, chosen = np.median(found / predicted), found[0] / found.min()
    return [name, str(len(drawn)), f"{correlation:.2f}", f"{middle:.2f}", f"{chosen:.2f}"]


def measure(funcs: Mapping[str, Func]) -> dict[str, float]:
    """Nanoseconds of the fastest run of each function, on one thread."""
    named = {n: replace(f, name=n) for n, f in funcs.items()}
    native = NativeFunctions(list(named.values()), Target.host())
    rng = np.random.default_rng(0)
    arrays: dict[str, list[Array]] = {}
    for n, f in named.items():
        shapes = [[int(str(x)) for x in b.shape] for b in with_workspace(f).params]
        arrays[n] = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    best = dict.fromkeys(named, float("inf"))
    for _ in range(ROUNDS):
        for n in named:
            end = time.perf_counter() + SECONDS
            while True:
                start = time.perf_counter()
                native.call(n, arrays[n])
                now = time.perf_counter()
                best[n] = min(best[n], (now - start) * 1e9)
                if now > end:
                    break
    return best


if __name__ == "__main__":
    main()
