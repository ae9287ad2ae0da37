"""Command line of the experiments of Vortex' paper.

    python -m benchmarks.paper_vortex [--parts cases,sweep] [--cases 60] [--points 24] [--scale 1.0] [--seconds 60]
                                      [--again]

Parts, in their order: `offline` (the library of this machine), `selection` (what a choice costs, by number of
programs), `sweep` (a product by rows against programs that were constructed at samples), `cases` (programs of dynamic
sizes against the oracle at single shapes). All run on one thread. Every result is kept as soon as it is known, so that
a run that was stopped, or that stops itself after `--seconds`, goes on where it was.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.common.experiments import Experiment, is_of_these_sources, run_experiments
from benchmarks.common.report import RESULTS
from benchmarks.common.result_store import ResultStore
from benchmarks.one_thread import one_thread_machine
from benchmarks.paper_vortex import selection, tables
from benchmarks.paper_vortex.cases import Gemm, draw_cases
from benchmarks.paper_vortex.duel import chosen_program, run_duel
from benchmarks.paper_vortex.kernels import case_kernel
from benchmarks.paper_vortex.timer import CaseTimer, Entrant
from tilewright.optimize.vortex.dietcode import DietCode
from tilewright.optimize.vortex.optimizer import Vortex
from tilewright.tile.shape_samples import ShapeSamples

MODULE = "benchmarks.paper_vortex"

SWEEP_SAMPLES = (128, 149, 170, 192, 213, 234, 255)
"""Rows at which the sample-driven baseline constructs programs."""

SWEEP_ROWS = 384
SWEEP_COLUMNS, SWEEP_TERMS = 768, 2304


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run was asked for: numbers of cases and of points of the sweep, the oracle's share of candidates, seed."""

    cases: int
    points: int
    scale: float
    seed: int


def main() -> int:
    """Measures what is missing; the status is 3 where something is left."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--cases", type=int, default=60, help="cases drawn from all suites (default 60)")
    parser.add_argument("--points", type=int, default=24, help="numbers of rows of the sweep (default 24)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the oracle's 48 + 48 candidates (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of cases and random candidates (default 0)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--again", action="store_true", help="measure also what is known")
    options = parser.parse_args()
    parts = options.parts.split(",")
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        print(f"unknown parts: {', '.join(unknown)}", file=sys.stderr)
        return 2
    run = RunOptions(options.cases, options.points, options.scale, options.seed)
    store, deadline = ResultStore(RESULTS / "paper_vortex.json"), time.monotonic() + options.seconds
    left = 0
    for part in parts:
        left += run_experiments(
            part, PARTS[part](run), store, MODULE, lambda r: not options.again and is_of_these_sources(r), deadline
        )
    print(tables.markdown(store))
    print(f"{left} results are left; run the same command again" if left else "complete", file=sys.stderr)
    return 3 if left else 0


def _offline(run: RunOptions) -> Iterator[Experiment]:
    yield "library", selection.library_seconds


def _selection(run: RunOptions) -> Iterator[Experiment]:
    yield "selector", lambda: {"times": selection.selector_nanoseconds()}
    yield "analyser", lambda: {"times": selection.analyser_microseconds()}


def _sweep(run: RunOptions) -> Iterator[Experiment]:
    for k in range(run.points):
        rows = max(1, round((k + 0.5) * SWEEP_ROWS / run.points))
        yield f"{rows} rows", lambda m=rows: _sweep_point(m)


def _sweep_point(rows: int) -> dict[str, Any] | None:
    machine, kernel = one_thread_machine(), case_kernel(Gemm(rows, SWEEP_COLUMNS, SWEEP_TERMS, SWEEP_ROWS), True)
    (symbol,) = kernel.sizes
    shapes = tuple({symbol: m} for m in SWEEP_SAMPLES)
    sampled = kernel.task.with_samples(ShapeSamples(shapes[len(shapes) // 2], shapes, shapes))
    entrants: dict[str, Entrant] = {}
    for name, optimizer, task in (("vortex", Vortex(machine), kernel.task), ("dietcode", DietCode(machine), sampled)):
        program = chosen_program(optimizer.construct(task), kernel)
        if program is not None:
            entrants[name] = Entrant(task, program, kernel.sizes)
    if len(entrants) < 2:
        return None
    timer = CaseTimer(entrants)
    timer.check()
    return {"m": rows, **timer.block_medians()}


def _cases(run: RunOptions) -> Iterator[Experiment]:
    for case in draw_cases(run.cases, run.seed):
        yield case.name, lambda c=case: run_duel(c, run.scale, run.seed)


PARTS: dict[str, Callable[[RunOptions], Iterator[Experiment]]] = {
    "offline": _offline, "selection": _selection, "sweep": _sweep, "cases": _cases,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
