"""Measured searches against constructed programs and against each other, on one thread.

    python -m benchmarks.search [--parts search,model] [--operators NAME,...] [--variants ansor,random,search]
                                [--trials 128,400] [--programs 40] [--seconds S]

`search`: every variant measures so many programs of every operator, all kinds of them. Then the fastest program takes
turns with the constructed one, in long blocks: the table has the constructed time over the searched one's, so 1 is as
fast, more is faster. Operators take turns in an order that is drawn, first all with the least number of trials; further
trials go on with the same searches.

`model`: rank correlation with measured times, on operators left out of training: of the learned model, of the
analytical one, and of a second measurement, for programs drawn uniformly (`benchmarks/populations.py`).

Every measurement is kept (`build/search`), so that a run that was stopped, or that stops itself after `--seconds`, goes
on where it was. Status 3: something is left.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import cost_model
from benchmarks.common import environment, report
from benchmarks.common.result_store import ResultStore
from benchmarks.common.sources import source_hash
from benchmarks.common.statistics import geometric_mean, rank_correlation
from benchmarks.one_thread import current_log, one_thread_space
from benchmarks.populations import POPULATIONS
from tilewright.cost.learned.part_features import FeatureRows
from tilewright.cost.learned.ranking_model import MeasuredPrograms, train
from tilewright.cost.learned.rowwise_features import rowwise_features
from tilewright.cost.learned.tile_features import tile_features
from tilewright.errors import MeasureError, TilewrightError
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.measure.build import decode_candidate
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.local_measurer import LocalMeasurer, MeasureOptions
from tilewright.measure.search import run_search, timed_entries
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.measurer import Candidate, Timing
from tilewright.optimize.search.constructed_starts import constructed_starts
from tilewright.optimize.search.program_space import ProgramSpace
from tilewright.optimize.search.start_search import start_search
from tilewright.tile.program import TileProgram

FOLDER = Path("build/search")

OPERATORS = (
    "gemm_m512_k512_n512", "gemm_m128_k768_n768", "gemm_m37_k768_n2304", "gemm_m64_k64_n64", "gemm_m1_k768_n3072",
    "gemm_m4096_k1024_n4", "conv_1x64x56x56_o64_k3_s1", "conv_1x256x14x14_o256_k3_s1", "conv_1x64x56x56_o256_k1_s1",
    "conv_1x512x7x7_o512_k3_s1", "conv_1x3x224x224_o64_k7_s2", "dw_1x144x56x56_o144_k3_s1",
    "dw_1x192x28x28_o192_k3_s2", "maxpool_1x64x112x112_k3_s2", "averagepool_1x512x28x28_k3_s1", "softmax_12x128x128",
    "softmax_64x1000", "layernorm_128x768", "reducesum_rows_1024x1024", "reducesum_columns_1024x1024",
    "globalaveragepool_2048x7x7", "transpose_0213_128x12x64", "transpose_nhwc_256x56x56", "transpose_1000x777",
)  # fmt: skip
"""24 operators of all kinds, named as in `benchmarks.operators.cases`."""

ORDER_SEED = 7
"""Of the order in which operators are searched for."""

FINAL_PLAN = RunPlan(rounds=15, seconds=0.02, pause=0.0)
"""Blocks of the comparison at the end."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was asked for; see the module.

    Attributes:
        deadline: on the monotonic clock.
    """

    operators: tuple[str, ...]
    variants: tuple[str, ...]
    trials: tuple[int, ...]
    programs: int
    deadline: float


def main() -> int:
    """Measures what is missing, and prints the tables; the status is 3 where something is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="search,model")
    parser.add_argument("--operators", default=",".join(OPERATORS))
    parser.add_argument("--variants", default="ansor,random,search")
    parser.add_argument("--trials", default="128,400")
    parser.add_argument("--programs", type=int, default=40, help="per operator, for the rank correlation")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    given = parser.parse_args()
    options = Options(
        tuple(given.operators.split(",")), tuple(given.variants.split(",")),
        tuple(sorted(map(int, given.trials.split(",")))), given.programs, time.monotonic() + given.seconds,
    )  # fmt: skip
    store = ResultStore(FOLDER / "results.json")
    left = 0
    if "search" in given.parts.split(","):
        asked = [(name, n) for n in options.trials for name in in_drawn_order(options.operators)]
        left += sum(not _search_operator(store, name, n, options) for name, n in asked)
        print(search_table(store, options))
    if "model" in given.parts.split(","):
        left += sum(not _measure_programs(store, name, options) for name in _model_operators(options))
        print(model_table(store, options))
    print(f"{left} results are left; run the same command again" if left else "complete", file=sys.stderr)
    return 3 if left else 0


def in_drawn_order(names: Sequence[str]) -> list[str]:
    """The operators in an order drawn once for all runs, so that a table of some of them is a fair sample."""
    return [names[int(k)] for k in np.random.default_rng(ORDER_SEED).permutation(len(names))]


def _search_operator(store: ResultStore, name: str, count: int, options: Options) -> bool:
    """Searches of all variants for an operator up to so many trials, and their comparison; whether it is complete."""
    missing = [v for v in options.variants if not _is_current(store.get("search", f"{name} {v} {count}"))]
    if not missing:
        return True
    if time.monotonic() > options.deadline:
        return False
    space = one_thread_space(cost_model.largest_kernel_task(name))
    constructed = constructed_starts(space.task, space.machine, space).candidates[0]
    for variant in missing:
        log = current_log(space, SearchLog(FOLDER / f"{name}_{variant}.jsonl"))
        search = start_search(space.task, space.machine, variant)
        with LocalMeasurer() as measurer:
            status = run_search(
                search, space.task, log, count, options.deadline, measurer,
                lambda line, v=variant: print(f"{name} {v}: {line}", file=sys.stderr, flush=True),
            )  # fmt: skip
        if not status.is_finished:
            return False
        try:
            speed = _speed_over_constructed(space, _fastest_of_first(log, count), constructed)
        except TilewrightError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return False
        programs = min(count, len(timed_entries(log)))
        store.put("search", f"{name} {variant} {count}", {"source": source_hash(), "programs": programs, **speed})
    store.put("circumstances", "search", environment.describe(f"python -m benchmarks.search {' '.join(sys.argv[1:])}"))
    return True


def _is_current(result: dict[str, Any] | None) -> bool:
    return result is not None and result["source"] == source_hash()


def _speed_over_constructed(space: ProgramSpace, best: Candidate, constructed: Candidate) -> dict[str, Any]:
    """How fast a program is in turns with the constructed one: that one's time over its own.

    Raises:
        TilewrightError: it can't be measured.
    """
    with LocalMeasurer(MeasureOptions(plan=FINAL_PLAN, max_ratio=100.0)) as measurer:
        (m,) = measurer.measure(space.task, [best], constructed)
    if not isinstance(m.result, Timing) or not m.result.incumbent:
        raise MeasureError(f"the fastest program can't be timed: {m.result}", where=space.task.func.name)
    timing = m.result
    return {"speed": timing.incumbent / timing.nanoseconds, "spread": timing.spread, "ns": timing.nanoseconds}


def _fastest_of_first(log: SearchLog, count: int) -> Candidate:
    return decode_candidate(min(timed_entries(log)[:count], key=lambda e: e["ns"])["trace"])


def search_table(store: ResultStore, options: Options) -> str:
    """Speeds over the constructed program, their geometric means, and those relative to random draws of as many
    programs, over the operators that have both."""
    columns = [(v, n) for n in options.trials for v in options.variants]
    speeds: dict[str, dict[tuple[str, int], float]] = {}
    for key, result in store.all("search").items():
        name, variant, count = key.split()
        speeds.setdefault(name, {})[variant, int(count)] = result["speed"]
    rows = [[name, *(f"{own[c]:.2f}" if c in own else "-" for c in columns)] for name, own in speeds.items()]
    means, ratios = ["geometric mean (of so many)"], ["over `random` (of so many)"]
    for variant, n in columns:
        means.append(_mean([own[variant, n] for own in speeds.values() if (variant, n) in own]))
        pairs = [(own.get((variant, n)), own.get(("random", n))) for own in speeds.values()]
        ratios.append(_mean([own / random for own, random in pairs if own and random]))
    return report.markdown_table(("operator", *(f"{v} {n}" for v, n in columns)), [*rows, means, ratios])


def _mean(values: Sequence[float]) -> str:
    return f"{geometric_mean(list(values)):.3f} ({len(values)})" if values else "-"


def _model_operators(options: Options) -> Iterator[str]:
    names = {name for group in cost_model.KINDS.values() for name in group}
    yield from (name for name in options.operators if name in names)


def _measure_programs(store: ResultStore, name: str, options: Options) -> bool:
    """Measures programs of an operator, drawn uniformly; whether they are known."""
    if store.get("model", name) is not None:
        return True
    if time.monotonic() > options.deadline:
        return False
    result = cost_model.compare_times(cost_model.largest_kernel_task(name), options.programs, "at random")
    store.put("model", name, {"source": source_hash(), "asked": options.programs, **result})
    print(f"model {name}: done", file=sys.stderr, flush=True)
    return True


def _measured(name: str, result: dict[str, Any]) -> MeasuredPrograms:
    """The features and times of the programs of an operator."""
    task = cost_model.largest_kernel_task(name)
    machine = machine_for(task.target).with_cores(1)
    drawn = [p for _, p in POPULATIONS["at random"](task, result["asked"])]
    rows = [_program_features(p, machine) for p in drawn]
    return MeasuredPrograms(FeatureRows.concat(rows), np.array(result["measured"]))


def _program_features(program: KernelProgram, machine: Machine) -> FeatureRows:
    if isinstance(program, TileProgram):
        return tile_features(program.problem, program.sketch, program.array[None], machine)
    return rowwise_features(program, machine)


def model_table(store: ResultStore, options: Options) -> str:
    """Rank correlations, operator by operator, each left out of training, and their means by kind."""
    known = {n: _measured(n, r) for n, r in store.all("model").items() if n in options.operators}
    kinds = {name: kind for kind, group in cost_model.KINDS.items() for name in group}
    by_kind: dict[str, list[Sequence[float]]] = {}
    for name, own in known.items():
        others = [m for n, m in known.items() if n != name]
        if not others:
            continue
        result = store.all("model")[name]
        row = [result["agreement"], result["correlation"]]
        for has_prior in (True, False):
            scores = train(others, has_prior).scores(own.features)
            row.append(rank_correlation(scores.tolist(), (-own.nanoseconds).tolist()))
        by_kind.setdefault(kinds[name], []).append(row)
    header = ("kind", "kernels", "measured twice", "analytical", "learned, prior", "learned alone")
    rows = [[k, str(len(r)), *(f"{fmean(c):.2f}" for c in zip(*r, strict=True))] for k, r in by_kind.items()]
    every = [row for group in by_kind.values() for row in group]
    if every:
        rows.append(["all", str(len(every)), *(f"{fmean(c):.2f}" for c in zip(*every, strict=True))])
    return report.markdown_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
