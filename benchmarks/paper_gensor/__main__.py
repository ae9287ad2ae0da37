"""Command line of the experiments of Gensor's paper.

    python -m benchmarks.paper_gensor [--parts search,duel] [--operator NAME,...] [--budget 2000] [--seconds 60]
                                      [--again] [--write]

Parts, in their order: `payoff` (where walks converge), `time` (of construction), `model` (rank correlation of the cost
model, over more kernels of every kind), `search` (the best program that measuring finds), `duel` (constructed programs
against that one, one thread), `unbalanced` (products whose sizes are far apart, all threads, against other libraries).
Every result is kept as soon as it is known, so that a run that was stopped, or that stops itself after `--seconds`,
goes on where it was. `--write` puts the tables into benchmarks/README.md and the pictures into benchmarks/results.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import cost_model
from benchmarks.common.experiments import Experiment, is_of_these_sources, run_experiments
from benchmarks.common.isolation import run_isolated
from benchmarks.common.report import RESULTS
from benchmarks.common.result_store import ResultStore
from benchmarks.construction_speed import programs_scored_per_second
from benchmarks.one_thread import current_log, one_thread_space, tile_spaces
from benchmarks.operators.cases import gemm
from benchmarks.paper_gensor import tables
from benchmarks.paper_gensor.construction import construction_phases
from benchmarks.paper_gensor.duel import run_duel
from benchmarks.paper_gensor.operators import (
    REDUCED,
    SCALING_GEMMS,
    UNBALANCED_GEMMS,
    operator,
    operator_names,
    operator_of,
)
from benchmarks.paper_gensor.value_iteration import run_experiment
from tilewright.measure.local_measurer import LocalMeasurer
from tilewright.measure.search import run_search, timed_entries
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.construct.gensor import Annealing
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.optimize.search.interface import SearchVariant
from tilewright.optimize.search.start_search import start_search

MODULE = "benchmarks.paper_gensor"
FILE = RESULTS / "paper_gensor.json"
LOGS = Path("build/paper_gensor")
"""Folder of the searches' logs."""

BUDGET = tables.FULL_BUDGET
PROGRAMS = 20
"""Of one kernel, for the rank correlation."""

PAYOFF_SIZES = (64, 64, 64)
"""M, K, N of the product whose whole graph is listed."""

TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run was asked for.

    Attributes:
        store: results.
        operators: names.
        budget: programs that a search measures.
        deadline: on the monotonic clock.
    """

    store: ResultStore
    operators: Sequence[str]
    budget: int
    deadline: float


def main() -> int:
    """Measures what is missing; the status is 3 where something is left."""
    options = _parser().parse_args()
    parts = options.parts.split(",")
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        print(f"unknown parts: {', '.join(unknown)}", file=sys.stderr)
        return 2
    chosen = (
        REDUCED
        if options.operator == "reduced"
        else options.operator.split(",")
        if options.operator
        else operator_names()
    )
    run = RunOptions(ResultStore(FILE), chosen, options.budget, time.monotonic() + options.seconds)
    left = 0
    for part in parts:
        left += _run_part(part, run, options.again)
    if options.write:
        tables.write(run.store)
    else:
        print(tables.markdown(run.store))
    print(f"{left} results are left; run the same command again" if left else "complete", file=sys.stderr)
    return 3 if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--operator", help="only these, separated by commas; `reduced` is a quick choice")
    parser.add_argument("--budget", type=int, default=BUDGET, help=f"programs of a search (default {BUDGET})")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--again", action="store_true", help="measure also what is known")
    parser.add_argument("--write", action="store_true", help="update benchmarks/README.md")
    return parser


def _run_part(part: str, run: RunOptions, again: bool) -> int:
    """Measures one part; how many of its results are missing afterwards."""
    experiments = PARTS[part](run)
    return run_experiments(
        part, experiments, run.store, MODULE, lambda r: not again and _is_valid(r, run), run.deadline
    )


def _is_valid(result: Mapping[str, Any], run: RunOptions) -> bool:
    """Whether a result is of this code, and of a search that was long enough."""
    enough = result.get("budget", run.budget) >= run.budget or result.get("all", False)
    return is_of_these_sources(result) and enough


def _payoff_experiments(run: RunOptions) -> Iterator[Experiment]:
    programs = one_thread_space(operator_of(gemm("payoff", *PAYOFF_SIZES)).task)
    for k, (space, forms) in enumerate(tile_spaces(programs)):
        for vthreads in (False, True):
            name = f"lanes along {space.problem.axes[space.sketch.lane].name} {k}{' with vthreads' if vthreads else ''}"
            annealing = Annealing(vthreads=vthreads)
            yield name, lambda s=space, f=forms[0], a=annealing: run_experiment(s, f, a)


def _construction_experiments(run: RunOptions) -> Iterator[Experiment]:
    for name in dict.fromkeys((*run.operators, *SCALING_GEMMS, *UNBALANCED_GEMMS)):
        for optimizer in (Gensor(), Roller()):
            yield f"{name} {optimizer.name}", lambda n=name, o=optimizer: construction_phases(operator(n).task, o)
    yield "programs scored", lambda: {"per second": programs_scored_per_second()}


def _model_experiments(run: RunOptions) -> Iterator[Experiment]:
    everything = [name for group in cost_model.KINDS.values() for name in group]
    for name in everything if run.operators == operator_names() else run.operators:
        for population in cost_model.POPULATIONS:
            yield f"{name} {population}", lambda n=name, p=population: _compare_model(n, p)


def _compare_model(name: str, population: str) -> dict[str, Any]:
    return {"operator": name, **cost_model.compare_times(cost_model.largest_kernel_task(name), PROGRAMS, population)}


def _search_experiments(run: RunOptions) -> Iterator[Experiment]:
    for name in run.operators:
        yield name, lambda n=name: _run_search(n, run)


def _run_search(name: str, run: RunOptions) -> dict[str, Any] | None:
    programs = one_thread_space(operator(name).task)
    log = current_log(programs, SearchLog(LOGS / f"{name}.jsonl"))
    evolution = start_search(programs.task, programs.machine, SearchVariant.EVOLUTION)
    with LocalMeasurer() as measurer:
        progress = run_search(
            evolution, programs.task, log, run.budget, run.deadline, measurer,
            lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
    if not progress.is_finished:
        return None
    times = [e["ns"] for e in timed_entries(log)]
    return {"budget": run.budget, "tried": len(log.entries), "timed": len(times), "ns": min(times),
    "all": progress.is_exhausted,
            "seconds": sum(e["seconds"] for e in log.entries)}  # fmt: skip


def _duel_experiments(run: RunOptions) -> Iterator[Experiment]:
    for name in run.operators:
        yield name, lambda n=name: _run_duel(n, run)


def _run_duel(name: str, run: RunOptions) -> dict[str, Any]:
    programs = one_thread_space(operator(name).task)
    log = current_log(programs, SearchLog(LOGS / f"{name}.jsonl"))
    everything = (run.store.get("search", name) or {}).get("all", False)
    return {"entrants": run_duel(programs, log), "budget": len(timed_entries(log)), "all": everything}


def _unbalanced_experiments(run: RunOptions) -> Iterator[Experiment]:
    for name in UNBALANCED_GEMMS:
        yield (
            name,
            lambda n=name: {
                "events": run_isolated("benchmarks.operators", ["--cases", n, "--optimizer", "gensor"], TIMEOUT_SECONDS)
            },
        )


PARTS: dict[str, Callable[[RunOptions], Iterator[Experiment]]] = {
    "payoff": _payoff_experiments, "time": _construction_experiments, "model": _model_experiments,
    "search": _search_experiments, "duel": _duel_experiments, "unbalanced": _unbalanced_experiments,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
