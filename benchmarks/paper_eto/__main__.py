"""Command line of the experiments of ETO's paper.

    python -m benchmarks.paper_eto [--parts graphs,tune] [--sets BERT-Base,...] [--methods eto,...] [--operators N]
                                   [--trials 200] [--share K/N] [--seconds 600] [--write]

`graphs` plans the nine sets of operators, without measuring. `tune` tunes the operators of sets on one thread by every
method, all from nothing, and times the programs that they found in turns with those of the full search. What is
measured is kept at once, so that a run that was stopped, or that stops itself after `--seconds`, goes on where it was.
`--write` puts the tables into benchmarks/README.md.

`searches` makes full searches alone, the K-th of every N operators with `--share K/N`. Processes may work at the same
time, each on a processor of its own: one that comes to a search that another one makes waits for it, and takes its log.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.common import environment
from benchmarks.common.experiments import Experiment, run_experiments
from benchmarks.common.report import RESULTS, write_section
from benchmarks.common.result_store import ResultStore
from benchmarks.paper_eto import tables
from benchmarks.paper_eto.methods import METHODS, Context, Outcome, OutOfTimeError, run_method
from benchmarks.paper_eto.operator_sets import operator_sets
from benchmarks.paper_eto.operator_tasks import SetTasks, set_tasks
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.local_measurer import LocalMeasurer, MeasureOptions
from tilewright.optimize.measurer import Measurer, Timing

MODULE = "benchmarks.paper_eto"
FILE = RESULTS / "paper_eto.json"
SETS = ("BERT-Base", "ResNet50", "MobileNetV2")
TRIALS = 200
DUEL_PLAN = RunPlan(rounds=7, seconds=0.02, pause=0.0, canary_seconds=0.002)
"""Blocks of the programs that methods found, in turns with those of the full search."""

MAX_RATIO = 50.0
"""A program that takes so many times that of the full search is not timed further."""


def main() -> int:
    """Measures what is missing; the status is 3 where something is left."""
    options = _parser().parse_args()
    store, deadline = ResultStore(FILE), time.monotonic() + options.seconds
    experiments = {"graphs": _graphs(), "tune": _tunings(options, deadline)}
    parts = options.parts.split(",")
    unknown = sorted(set(parts) - {*experiments, "searches"})
    if unknown:
        print(f"unknown parts: {', '.join(unknown)}", file=sys.stderr)
        return 2
    left = _search_share(options, deadline) if "searches" in parts else 0
    left += sum(run_experiments(x, experiments[x], store, MODULE, deadline=deadline) for x in parts if x in experiments)
    text = tables.markdown(store)
    if options.write:
        write_section("paper_eto", text)
    else:
        print(text)
    _print_line(f"{left} results are left; run the same command again" if left else "complete")
    return 3 if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="graphs,tune", help="graphs, tune (default: both), searches")
    parser.add_argument("--sets", default=",".join(SETS), help=f"sets that are tuned (default: {','.join(SETS)})")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--operators", type=int, help="only the first operators of every set")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"programs of a full search (default {TRIALS})")
    parser.add_argument("--share", default="1/1", type=_share_in, help="K/N: of searches, the K-th of every N")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--write", action="store_true", help="update benchmarks/README.md")
    return parser


def _share_in(text: str) -> tuple[int, int]:
    share, shares = map(int, text.split("/"))
    if not 1 <= share <= shares:
        raise argparse.ArgumentTypeError(f"expected K/N with 1 <= K <= N, got {text}")
    return share, shares


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _graphs() -> Iterator[Experiment]:
    for name in operator_sets():
        yield name, lambda n=name: tables.graph_row(n)


def _tunings(options: argparse.Namespace, deadline: float) -> Iterator[Experiment]:
    for name in options.sets.split(","):
        tasks = set_tasks(name, options.operators)
        key = f"{name}, {len(tasks)} operators, {options.trials} trials"
        for method in options.methods.split(","):

            def measure(key: str = key, method: str = method, tasks: SetTasks = tasks) -> dict[str, Any] | None:
                result = _tune_set(tasks, method, options.trials, deadline)
                if result is None:
                    return None
                where = environment.describe(f"python -m {MODULE}")
                return {"set": key, "method": method, **result, "where": {k: where[k] for k in tables.WHERE}}

            yield f"{key}: {method}", measure


def _search_share(options: argparse.Namespace, deadline: float) -> int:
    """Makes the full searches of a share of the operators; how many are not complete."""
    share, shares = options.share
    pairs = [pair for name in options.sets.split(",") for pair in set_tasks(name, options.operators)]
    left = 0
    for pair in pairs[share - 1 :: shares]:
        try:
            with LocalMeasurer() as measurer:
                run_method("full search", [pair], Context(measurer, options.trials, deadline, _print_line))
        except OutOfTimeError:
            left += 1
    return left


def _tune_set(tasks: SetTasks, method: str, trials: int, deadline: float) -> Mapping[str, Any] | None:
    """Tunes a set by a method; None where time ran out."""
    try:
        with LocalMeasurer() as measurer:
            context = Context(measurer, trials, deadline, _print_line)
            full = run_method("full search", tasks, context)
            outcome = full if method == "full search" else run_method(method, tasks, context)
        with LocalMeasurer(MeasureOptions(plan=DUEL_PLAN, max_ratio=MAX_RATIO)) as judge:
            return _compare(outcome, full, tasks, judge)
    except OutOfTimeError:
        return None


def _compare(outcome: Outcome, full: Outcome, tasks: SetTasks, judge: Measurer) -> Mapping[str, Any]:
    """Programs and seconds of a method, and times of its programs in turns with those of the full search."""
    ratios: list[float | None] = []
    weighted = [0.0, 0.0]
    for k, (operator, task) in enumerate(tasks):
        ours, theirs = outcome.best.get(k), full.best.get(k)
        if ours is None or theirs is None:
            ratios.append(None)
            continue
        (measured,) = judge.measure(task.task, [ours], theirs)
        if not isinstance(measured.result, Timing) or not measured.result.incumbent:
            ratios.append(None)
            continue
        ratios.append(measured.result.incumbent / measured.result.nanoseconds)
        weighted[0] += operator.frequency * measured.result.nanoseconds
        weighted[1] += operator.frequency * measured.result.incumbent
    return {
        "programs": outcome.programs, "seconds": round(outcome.seconds, 1), "estimated": round(outcome.estimated, 1),
        "full_searches": outcome.full_searches, "ratios": ratios,
        "throughput": weighted[1] / weighted[0] if weighted[0] else None,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
