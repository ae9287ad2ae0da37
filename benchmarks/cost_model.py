"""How well the cost model orders programs: predicted and measured times of programs of every kind of operator.

    python -m benchmarks.cost_model [--kinds NAME,...] [--cases NAME,...] [--programs 20] [--verbose] [--plot FILE]

Programs of one kernel are drawn from everything that construction would score, evenly over the range of predicted times
up to four times the best one. They run in turns on one thread; the fastest run of each counts, as a shared machine only
ever adds time. The first table has a line per kernel: the rank correlation (Spearman's) of prediction and measurement,
the median of measured over predicted, the spread of what was measured, and how the program that the model likes best
compares with the best of those drawn. The second one has the mean correlation of the kernels of each kind, of all and
of those whose programs differ by more than what a measurement errs.
"""

import argparse
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.common import plots, report
from benchmarks.common.statistics import rank_correlation
from benchmarks.operators.cases import all_cases
from benchmarks.paper_gensor.clock import Clock
from tilewright.cost.analytical import times
from tilewright.cost.chain import time_of
from tilewright.driver.compile import make_compilation
from tilewright.driver.offline import split_offline
from tilewright.loops.ir import Func, blocks
from tilewright.machine import Target
from tilewright.machine.stored import machine_for
from tilewright.optimize.construct.chains import chain_problem, lower_chain, scored_steps, together_of
from tilewright.optimize.construct.gensor import Annealing, walks
from tilewright.optimize.construct.optimizer import Program, Ranked, problem_for, spaces
from tilewright.optimize.interface import Task
from tilewright.schedule.trace import Schedule
from tilewright.tile.chain import ChainProgram
from tilewright.tile.lower import lower
from tilewright.tile.program import TileProgram

KINDS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("gemm_m512_k512_n512", "gemm_m128_k768_n768", "gemm_m37_k768_n2304", "gemm_m512_k512_n512_tab"),
    "small gemm": ("gemm_m64_k64_n64", "gemm_m1_k768_n3072", "gemm_m1_k2048_n1000", "gemm_m4096_k1024_n4"),
    "convolution": ("conv_1x64x56x56_o64_k3_s1", "conv_1x256x14x14_o256_k3_s1", "conv_1x64x56x56_o256_k1_s1",
                    "conv_1x512x7x7_o512_k3_s1"),
    "depthwise": ("dw_1x144x56x56_o144_k3_s1", "dw_1x192x28x28_o192_k3_s1", "dw_1x192x28x28_o192_k3_s2",
                  "dw_1x960x7x7_o960_k3_s1"),
    "pooling": ("maxpool_1x64x112x112_k3_s2", "maxpool_1x256x56x56_k2_s2", "averagepool_1x512x28x28_k3_s1",
                "averagepool_1x128x56x56_k2_s2"),
    "row chain": ("softmax_12x128x128", "softmax_64x1000", "layernorm_128x768", "layernorm_512x1024"),
    "reduction": ("reducesum_rows_1024x1024", "reducesum_columns_1024x1024", "reducemean_256x56x56",
                  "globalaveragepool_2048x7x7"),
    "transpose": ("transpose_0213_128x12x64", "transpose_nhwc_256x56x56", "transpose_1024x1024",
                  "transpose_1000x777"),
}  # fmt: skip
"""Kernels by kind, named as in `benchmarks.operators.cases`."""

WORST = 4.0
"""Programs that the model takes to be this many times slower than the best are not drawn."""

MOST_DRAWN = 2000
"""Programs of a chain that are scored at random, as the combinations of its steps are many."""

ROUNDS, ROUND_SECONDS = 8, 0.003

HEADER = ("kind", "kernel", "programs", "rank correlation", "measured / predicted", "slowest / fastest",
          "chosen / best")  # fmt: skip


KIND_HEADER = ("kind", "kernels", "rank correlation", "told apart", "their rank correlation")

APART = 1.3
"""Kernels of which the slowest program drawn takes at least so many times as long as the fastest: their programs can be
told apart by measuring on a shared machine."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of operators, by comma")
    parser.add_argument("--cases", help="kernels, by comma, instead of all of the kinds")
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--verbose", action="store_true", help="print every program")
    parser.add_argument("--plot", type=Path, help="write a picture of all programs into this SVG file")
    options = parser.parse_args()
    chosen = None if options.cases is None else options.cases.split(",")
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for kind in options.kinds.split(","):
        for name in KINDS[kind]:
            if chosen is not None and name not in chosen:
                continue
            result = compared(task_of(name), options.programs)
            found.setdefault(kind, {})[name] = result
            print(" ".join(row(kind, name, result)), flush=True)
            if options.verbose:
                each = sorted(zip(result["measured"], result["predicted"], result["names"], strict=True))
                print("\n".join(f"{m / 1e3:10.1f} us, predicted {p / 1e3:10.1f}: {text}" for m, p, text in each))
    print(report.markdown_table(HEADER, [row(k, n, x) for k, group in found.items() for n, x in group.items()]))
    print()
    print(report.markdown_table(KIND_HEADER, [kind_row(kind, list(group.values())) for kind, group in found.items()]))
    if options.plot is not None:
        options.plot.write_text(picture({kind: list(group.values()) for kind, group in found.items()}))


def task_of(name: str) -> Task:
    """The kernel of a case that does most.

    Raises:
        ValueError: there is no such case.
    """
    case = next((c for c in all_cases() if c.name == name), None)
    if case is None:
        raise ValueError(f"there is no operator {name!r}")
    kernels = make_compilation(case.model()).kernels
    most = max(kernels, key=lambda k: _points(k.origin))
    # the first parameter is fed, the last one is the result, what lies between are weights
    return Task(most.origin, frozenset(b.name for b in most.origin.params[1:-1]), Target.host())


def _points(func: Func) -> int:
    """Iterations of a kernel's busiest block; its sizes are literal."""
    return max(prod(int(str(i.extent)) for i in b.iters) for b in blocks(func.body))


def compared(task: Task, count: int) -> dict[str, Any]:
    """Predicted and measured nanoseconds of programs of one kernel, the one first that the model likes best.

    Returns:
        "predicted", "measured" and "names" by program; "correlation" of ranks, "ratio" of measured to predicted (its
        median), "spread": the slowest over the fastest, "chosen": the first over the fastest.
    """
    drawn = draw(task, count)
    funcs = {f"p{k}": split_offline(scheduled(p, task).func, task.constants).func for k, (_, p) in enumerate(drawn)}
    best = Clock(funcs).fastest(ROUNDS, ROUND_SECONDS)
    measured, predicted = [best[n] for n in funcs], [t for t, _ in drawn]
    return {
        "predicted": predicted, "measured": measured, "names": [str(p) for _, p in drawn],
        "correlation": rank_correlation(measured, predicted),
        "ratio": median(m / p for m, p in zip(measured, predicted, strict=True)),
        "spread": max(measured) / min(measured), "chosen": measured[0] / min(measured),
    }  # fmt: skip


def scheduled(program: Program, task: Task) -> Schedule:
    """A program's loops on one thread."""
    if isinstance(program, ChainProgram):
        return lower_chain(program, task, False)
    return lower(program, task.func, False)


def draw(task: Task, count: int) -> list[Ranked]:
    """Programs with their predicted nanoseconds, the best one first, the others evenly over the range of times."""
    found = sorted([*_tile_programs(task), *_chain_programs(task)], key=lambda x: x[0])
    near = [x for x in found if x[0] < WORST * found[0][0]]
    wanted = np.geomspace(near[0][0], near[-1][0], count)
    predicted = np.array([t for t, _ in near])
    picked = {0, *(int(np.abs(predicted - t).argmin()) for t in wanted)}
    others = [k for k in range(len(near)) if k not in picked]
    more = np.random.default_rng(0).choice(len(others), min(len(others), max(0, count - len(picked))), replace=False)
    return [near[k] for k in sorted({*picked, *(others[int(k)] for k in more)})]


def _tile_programs(task: Task) -> list[Ranked]:
    problem = problem_for(task)
    if problem is None:
        return []
    machine = machine_for(task.target).with_cores(1)
    found: list[Ranked] = []
    for space, forms in spaces(problem, task, machine).items():
        states = walks(space, Annealing(), 0).found()
        for form in forms:
            predicted = times(problem, form, states, machine).total
            found += [(float(t), TileProgram.of(problem, form, s)) for t, s in zip(predicted, states, strict=True)]
    return found


def _chain_programs(task: Task) -> list[Ranked]:
    """Random combinations of the tiles of a chain's steps."""
    chain = chain_problem(task)
    if chain is None:
        return []
    machine = machine_for(task.target).with_cores(1)
    rng = np.random.default_rng(0)
    found: dict[str, Ranked] = {}
    choices = together_of(chain)
    for together in choices:
        rows, steps = scored_steps(chain, task.target, machine, together)
        for _ in range(MOST_DRAWN // len(choices)):
            drawn = [step[int(rng.integers(len(step)))] for step in steps]
            program = ChainProgram(rows, tuple(p for _, p in drawn))
            work = [np.array([t]) for t, _ in drawn]
            found[str(program)] = (float(time_of(rows, [p.problem for _, p in drawn], work, machine).total[0]), program)
    return list(found.values())


def row(kind: str, name: str, found: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    return [kind, name, str(len(found["measured"])), f"{found['correlation']:.2f}", f"{found['ratio']:.2f}",
            f"{found['spread']:.1f}", f"{found['chosen']:.2f}"]  # fmt: skip


def kind_row(kind: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line of the table of kinds: mean correlations of all kernels, and of those whose programs differ."""
    apart = [x["correlation"] for x in found if x["spread"] >= APART]
    every = fmean(x["correlation"] for x in found)
    return [kind, str(len(found)), f"{every:.2f}", str(len(apart)), f"{fmean(apart):.2f}" if apart else "-"]


def picture(kinds: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Predicted against measured microseconds of all programs, one colour per kind of operator."""
    groups = {
        kind: [(p / 1e3, m / 1e3) for x in found for p, m in zip(x["predicted"], x["measured"], strict=True)]
        for kind, found in kinds.items()
    }
    return plots.scatter("The cost model", "predicted microseconds", "measured microseconds", groups)


if __name__ == "__main__":
    main()
