"""Command line of the experiments of ETO's paper.

    python -m benchmarks.paper_eto [--parts graphs,tune] [--sets BERT-Base,...] [--methods eto,...] [--operators N]
                                   [--trials 200] [--seconds 600] [--write]

`graphs` plans the nine sets of operators, without measuring. `tune` tunes the operators of sets on one thread by every
method, all from nothing, and times the programs that they found in turns with those of the full search. What is
measured is kept at once, so that a run that was stopped, or that stops itself after `--seconds`, goes on where it was.
`--write` puts the tables into benchmarks/README.md.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import environment
from benchmarks.common.report import RESULTS, write_section
from benchmarks.common.result_store import CIRCUMSTANCES, ResultStore
from benchmarks.paper_eto import tables
from benchmarks.paper_eto.methods import METHODS, Context, Outcome, OutOfTimeError, run_method
from benchmarks.paper_eto.operator_sets import PaperOperator, operator_sets
from benchmarks.paper_eto.operator_tasks import set_tasks
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.local_measurer import LocalMeasurer, MeasureOptions
from tilewright.optimize.measurer import Measurer, Timing
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.version import source_hash

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
    left = 0
    if "graphs" in options.parts.split(","):
        for name in operator_sets():
            if not _is_current(store.get("graphs", name)):
                store.put("graphs", name, {"source": source_hash(), **tables.graph_row(name)})
                _print_line(f"graph of {name}: done")
    if "tune" in options.parts.split(","):
        for name in options.sets.split(","):
            left += _tune_set(name, options, store, deadline)
    text = tables.markdown(store)
    if options.write:
        write_section("paper_eto", text)
    else:
        print(text)
    _print_line(f"{left} methods are left; run the same command again" if left else "complete")
    return 3 if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="graphs,tune", help="graphs, tune (default: both)")
    parser.add_argument("--sets", default=",".join(SETS), help=f"sets that are tuned (default: {','.join(SETS)})")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--operators", type=int, help="only the first operators of every set")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"programs of a full search (default {TRIALS})")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--write", action="store_true", help="update benchmarks/README.md")
    return parser


def _is_current(row: Mapping[str, Any] | None) -> bool:
    """Whether a result is there and of this code."""
    return row is not None and row["source"] == source_hash()


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tune_set(name: str, options: argparse.Namespace, store: ResultStore, deadline: float) -> int:
    """Tunes a set by the methods that have no result; how many are left."""
    tasks = set_tasks(name, options.operators)
    key = f"{name}, {len(tasks)} operators, {options.trials} trials"
    left = 0
    for method in options.methods.split(","):
        if _is_current(store.get("tune", f"{key}: {method}")):
            continue
        try:
            with LocalMeasurer() as measurer:
                context = Context(measurer, options.trials, deadline, _print_line)
                full = run_method("full search", tasks, context)
                outcome = full if method == "full search" else run_method(method, tasks, context)
            with LocalMeasurer(MeasureOptions(plan=DUEL_PLAN, max_ratio=MAX_RATIO)) as judge:
                result = _compare(outcome, full, tasks, judge)
        except OutOfTimeError:
            left += 1
            continue
        store.put("tune", f"{key}: {method}", {"set": key, "method": method, "source": source_hash(), **result})
        command = f"python -m {MODULE} {' '.join(sys.argv[1:])}".strip()
        store.put(CIRCUMSTANCES, "tune", environment.describe(command))
        _print_line(f"{key}: {method}: done")
    return left


def _compare(
    outcome: Outcome, full: Outcome, tasks: Sequence[tuple[PaperOperator, ReusableTask]], judge: Measurer
) -> Mapping[str, Any]:
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
