"""How well the cost model orders programs: predicted and measured times of programs drawn from walks.

    python -m benchmarks.cost_model [--cases NAME,...] [--programs 20] [--verbose] [--plot FILE]

Programs of one kernel run in turns on one thread; the fastest run of each counts, as a shared machine only ever adds
time. The table has the rank correlation of prediction and measurement, the median of measured over predicted, and how
the program that the model likes best compares with the best of those drawn.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import plots, report
from benchmarks.common.statistics import rank_correlation
from benchmarks.paper_gensor.clock import Clock
from benchmarks.paper_gensor.operators import names, operator
from tilewright.cost.analytical import times
from tilewright.driver.offline import split_offline
from tilewright.machine.stored import machine_for
from tilewright.optimize.construct.gensor import Annealing, walks
from tilewright.optimize.construct.optimizer import spaces
from tilewright.optimize.interface import Task
from tilewright.tile.lower import lower
from tilewright.tile.problem import problem_of
from tilewright.tile.program import TileProgram

WORST = 4.0
"""Programs that the model takes to be this many times slower than the best are not drawn."""

ROUNDS, ROUND_SECONDS = 8, 0.003

HEADER = ("kernel", "programs", "rank correlation", "measured / predicted", "chosen / best")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(names()))
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--verbose", action="store_true", help="print every program")
    parser.add_argument("--plot", type=Path, help="write a picture of all programs into this SVG file")
    options = parser.parse_args()
    found: dict[str, Mapping[str, Any]] = {}
    for name in options.cases.split(","):
        found[name] = compared(operator(name).task, options.programs)
        print(" ".join(row(name, found[name])), flush=True)
        if options.verbose:
            each = sorted(zip(found[name]["measured"], found[name]["predicted"], found[name]["names"], strict=True))
            print("\n".join(f"{m / 1e3:10.1f} us, predicted {p / 1e3:10.1f}: {text}" for m, p, text in each))
    print(report.markdown_table(HEADER, [row(name, result) for name, result in found.items()]))
    if options.plot is not None:
        kinds = {operator(n).kind for n in found}
        options.plot.write_text(picture({k: [x for n, x in found.items() if operator(n).kind == k] for k in kinds}))


def compared(task: Task, count: int) -> dict[str, Any]:
    """Predicted and measured nanoseconds of programs of one kernel, the one first that the model likes best.

    Returns:
        "predicted", "measured" and "names" by program; "correlation" of ranks, "ratio" of measured to predicted (its
        median), "chosen": the time of the first over that of the fastest.
    """
    drawn = draw(task, count)
    funcs = {f"p{k}": split_offline(lower(p, task.func, parallel=False).func, task.constants).func
             for k, (_, p) in enumerate(drawn)}  # fmt: skip
    best = Clock(funcs).fastest(ROUNDS, ROUND_SECONDS)
    measured, predicted = [best[n] for n in funcs], [t for t, _ in drawn]
    return {
        "predicted": predicted, "measured": measured, "names": [str(p) for _, p in drawn],
        "correlation": rank_correlation(measured, predicted),
        "ratio": median(m / p for m, p in zip(measured, predicted, strict=True)),
        "chosen": measured[0] / min(measured),
    }  # fmt: skip


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


def row(name: str, found: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    return [name, str(len(found["measured"])), f"{found['correlation']:.2f}", f"{found['ratio']:.2f}",
            f"{found['chosen']:.2f}"]  # fmt: skip


def picture(kinds: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Predicted against measured microseconds of all programs, one colour per kind of operator."""
    groups = {
        kind: [(p / 1e3, m / 1e3) for x in found for p, m in zip(x["predicted"], x["measured"], strict=True)]
        for kind, found in kinds.items()
    }
    return plots.scatter("The cost model", "predicted microseconds", "measured microseconds", groups)


if __name__ == "__main__":
    main()
