"""Whole networks, tuned by `tilewright.tune`, in turns with the untuned ones; dynamic ones at sizes new to the tuning.

    python -m benchmarks.tuned_networks [--models resnet18,...] [--budget 600] [--trials N] [--plan gradient,eto]
                                        [--long 2400] [--sizes 30] [--seconds 600] [--table]

Every network of the zoo (`benchmarks/zoo`) is tuned for `--budget` seconds by each plan. Then both compilations run in
turns, in one process, at sizes drawn from the declared ranges that tuning did not measure. The table has the speedup,
1 as fast, in the geometric mean and at the size where it is worst. Records and results are in `build/tuned_networks`:
a network whose tuning was stopped, or which stops itself after `--seconds`, goes on with what its store holds and with
the seconds that are left; the status is 3 where something is. One that is complete is not tuned again.

`--long N` tunes by the plan gradient for N seconds and by the plan eto for a quarter of it, each from an empty store,
and prints which share of the long search's gain the short one has, all three compilations in turns. `--table` shows
what is there.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from benchmarks.common import environment, report
from benchmarks.common.result_store import ResultStore
from benchmarks.common.sources import source_hash
from benchmarks.common.statistics import geometric_mean
from benchmarks.zoo.model import Model, build_model
from benchmarks.zoo.models import MODELS
from tilewright.driver.options import CompileOptions
from tilewright.driver.tune.draw_sizes import ModelSizes
from tilewright.driver.tune.pipeline import plan_tuning
from tilewright.driver.tune.session import EndReason, SessionStatus
from tilewright.measure.records.jsonl import open_records
from tilewright.measure.records.record import RecordKind
from tilewright.measure.timing import time_calls
from tilewright.report import tuning as tuning_report
from tilewright.runtime import Executable

FOLDER = Path("build/tuned_networks")

RANGES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "resnet18": {}, "mobilenetv2": {}, "bert_tiny": {},
    "bert_base_dyn": {"batch": (1, 4), "sequence": (8, 128)},
    "ppocr_rec": {"batch": (1, 4), "height": (48, 48), "width": (64, 640)},
}  # fmt: skip
"""Networks with the ranges of their dynamic sizes: of the compilation, of the tuning, and of the comparison."""

DIMENSIONS: Mapping[str, Mapping[str, str]] = {
    "ppocr_rec": {"batch": "p2o.DynamicDimension.0", "height": "x[2]", "width": "p2o.DynamicDimension.1"}
}
"""Dimensions by the name that the compiler knows them by, where it is another one."""

ROUNDS, BLOCK_SECONDS = 7, 0.03
"""Of a size: turns of both compilations, and the time that a turn of one takes at least."""


LONG_PLANS = (("gradient", 1.0), ("eto", 0.25))
"""Plans of a long search and of the one that is compared with it, with their parts of the time."""

MIN_LONG_GAIN = 0.02
"""Gain of a long search from which on the share of it says something."""

MIN_PIECE_SECONDS = 20.0
"""A shorter rest of a budget is left; in a shorter time no piece begins."""

SAVE_SECONDS = 10.0
"""How often the seconds of a running piece are kept."""


@dataclass(frozen=True, slots=True)
class Run:
    """A tuning of a network, made in pieces.

    Attributes:
        name: of the network.
        plan: the order of kernels.
        budget: seconds in all.
        trials: programs at most; None without a limit.
    """

    name: str
    plan: str
    budget: float
    trials: int | None

    @property
    def key(self) -> str:
        """Its name in results."""
        return f"{self.name} {self.plan} {self.budget:g}" + (f" {self.trials}" if self.trials else "")

    @property
    def records(self) -> Path:
        """Its store."""
        return FOLDER / f"{self.key.replace(' ', '_')}.db"


@dataclass(slots=True)
class Progress:
    """How far a run is.

    Attributes:
        seconds: of all of its pieces.
        trials: programs that these measured.
        timeline: seconds, trials and predicted speedup after every round.
        is_tuned: whether nothing is left but the comparison.
    """

    seconds: float = 0.0
    trials: int = 0
    timeline: list[tuple[float, int, float]] = field(default_factory=list[tuple[float, int, float]])
    is_tuned: bool = False

    def left(self, run: Run) -> float:
        """Seconds that are left; 0 where it is tuned."""
        left = run.budget - self.seconds
        is_spent = self.is_tuned or (run.trials is not None and self.trials >= run.trials)
        return 0.0 if is_spent or left < min(MIN_PIECE_SECONDS, run.budget / 2) else left


def main() -> int:
    """Tunes and compares what is missing, and prints the table; the status is 3 where something is left."""
    options = _parser().parse_args()
    store, deadline = ResultStore(FOLDER / "results.json"), time.monotonic() + options.seconds
    names = options.models.split(",")
    left = 0
    for name in () if options.table else names:
        runs = runs_of(name, options)
        complete = [_advance(store, run, options.sizes, deadline) for run in runs]
        left += complete.count(False)
        if options.long and all(complete):
            left += not _compare_plans(store, runs, options.sizes, deadline)
    print("\n".join([table(store), *shares(store)]))
    print(f"{left} results are left; run the same command again" if left else "complete", file=sys.stderr)
    return 3 if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(RANGES))
    parser.add_argument("--budget", type=float, default=600.0, help="seconds of a tuning")
    parser.add_argument("--trials", type=int, help="programs of a tuning, at most")
    parser.add_argument("--plan", default="gradient", help="gradient, eto, or both")
    parser.add_argument("--long", type=float, help="seconds of a long search, beside eto in a quarter of them")
    parser.add_argument("--sizes", type=int, default=30, help="of a dynamic network")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; a later run goes on")
    parser.add_argument("--table", action="store_true", help="show what is there")
    return parser


def runs_of(name: str, options: argparse.Namespace) -> list[Run]:
    """The tunings of a network."""
    if options.long:
        return [Run(name, plan, options.long * part, options.trials) for plan, part in LONG_PLANS]
    return [Run(name, plan, options.budget, options.trials) for plan in options.plan.split(",")]


def _advance(store: ResultStore, run: Run, sizes: int, deadline: float) -> bool:
    """Goes on with a run until the deadline; whether it is complete."""
    known = store.get("networks", run.key)
    if known is not None and known["source"] == source_hash():
        return True
    kept = store.get("progress", run.key)
    if kept is not None and kept["source"] == source_hash():
        progress = Progress(kept["seconds"], kept["trials"], kept["timeline"], kept["is_tuned"])
    else:
        progress = Progress()
    left = min(progress.left(run), deadline - time.monotonic())
    if progress.left(run):
        if left < MIN_PIECE_SECONDS < run.budget:
            return False
        build_model(MODELS[run.name])
        _tune_piece(store, run, progress, left)
    if progress.left(run) or time.monotonic() > deadline:
        return False
    store.put("networks", run.key, {"trials": progress.trials, "seconds": round(progress.seconds, 1),
                                    "timeline": progress.timeline, **_compare(run, sizes)})  # fmt: skip
    command = f"python -m benchmarks.tuned_networks {' '.join(sys.argv[1:])}"
    store.put("circumstances", run.key, environment.describe(command))
    return True


def _tune_piece(store: ResultStore, run: Run, progress: Progress, seconds: float) -> None:
    """Tunes a network for some seconds, which are kept with what they brought."""
    start, saved = replace(progress, timeline=[]), time.monotonic()

    def save() -> None:
        store.put("progress", run.key, {"source": source_hash(), **asdict(progress)})

    def watch(status: SessionStatus) -> None:
        nonlocal saved
        progress.seconds, progress.trials = start.seconds + status.seconds, start.trials + status.trials
        progress.timeline.append((round(progress.seconds, 1), progress.trials, round(status.speedup, 4)))
        print(f"{run.key}: {progress.timeline[-1]} {status.label}", file=sys.stderr, flush=True)
        if time.monotonic() > saved + SAVE_SECONDS:
            saved = time.monotonic()
            save()

    trials = None if run.trials is None else run.trials - start.trials
    result = tilewright.tune(
        str(MODELS[run.name].path), budget=seconds, trials=trials, shapes=_shapes(run.name), plan=run.plan,
        records=run.records, report=watch,
    )  # fmt: skip
    print("\n".join(tuning_report.summary(result)), file=sys.stderr, flush=True)
    progress.seconds, progress.trials = start.seconds + result.seconds, start.trials + result.session.trials
    progress.is_tuned = result.session.end in (EndReason.EXHAUSTED, EndReason.TRIALS)
    save()
    if result.session.end is EndReason.INTERRUPTED:
        raise KeyboardInterrupt


def _shapes(name: str) -> dict[str, str] | None:
    """The ranges of a network's dynamic sizes, as `compile` takes them."""
    ranges = {DIMENSIONS.get(name, {}).get(d, d): r for d, r in RANGES[name].items()}
    return {d: f"{low}..{high}" if low < high else str(low) for d, (low, high) in ranges.items()} or None


def _compare(run: Run, count: int) -> Mapping[str, Any]:
    """A tuned network in turns with the untuned one."""
    model, plan = MODELS[run.name], plan_tuning(str(MODELS[run.name].path), CompileOptions(shapes=_shapes(run.name)))
    untuned = Executable(plan.compilation.artifact()).prepare()
    tuned = tilewright.compile(str(model.path), shapes=_shapes(run.name), records=run.records)
    drawn = new_sizes(model, plan.sizes, count)
    with open_records(run.records) as records:
        choices = {r.task.hash for r in records.records(kinds=(RecordKind.CHOICE,)) if r.is_tuned}
    turns = [(s, _time_in_turns([untuned, tuned], model.inputs(s))) for s in drawn]
    return {
        "source": source_hash(), "improved": len(choices & {k.task.hash for k in plan.kernels}),
        "kernels": len(plan.kernels), "sizes": [[s, *medians, ratios[0]] for s, (medians, ratios) in turns],
    }  # fmt: skip


def _compare_plans(store: ResultStore, runs: Sequence[Run], count: int, deadline: float) -> bool:
    """Untuned, long and short search in turns; whether it is done."""
    key = runs[0].key
    known = store.get("long", key)
    if known is not None and known["source"] == source_hash():
        return True
    if time.monotonic() > deadline:
        return False
    model, shapes = MODELS[runs[0].name], _shapes(runs[0].name)
    plan = plan_tuning(str(model.path), CompileOptions(shapes=shapes))
    executables = [Executable(plan.compilation.artifact()).prepare()]
    executables += [tilewright.compile(str(model.path), shapes=shapes, records=r.records) for r in runs]
    ratios = [_time_in_turns(executables, model.inputs(s))[1] for s in new_sizes(model, plan.sizes, count)]
    speedups = [geometric_mean([r[k] for r in ratios]) for k in range(len(runs))]
    store.put("long", key, {"source": source_hash(), "runs": [r.key for r in runs], "speedups": speedups})
    return True


def shares(store: ResultStore) -> list[str]:
    """A line per long search: its gain, and the share of it that the short one has."""
    lines: list[str] = []
    for r in store.all("long").values():
        (long, short), (gain, other) = r["runs"], [s - 1 for s in r["speedups"]]
        share = f"{other / gain:.2f} of it" if gain > MIN_LONG_GAIN else f"too little to compare ({other:.1%})"
        lines.append(f"{long} gains {gain:.1%}; {short} has {share}")
    return lines


def new_sizes(model: Model, measured: ModelSizes, count: int) -> list[dict[str, int]]:
    """Sizes of a network within its ranges, evenly on a logarithmic scale, that its tuning did not measure."""
    ranges = RANGES[model.name]
    if not ranges:
        return [dict(model.shapes[0])]
    return draw_new_sizes(ranges, DIMENSIONS.get(model.name, {}), measured, count)


def draw_new_sizes(
    ranges: Mapping[str, tuple[int, int]], names: Mapping[str, str], measured: ModelSizes, count: int
) -> list[dict[str, int]]:
    """Distinct sizes within ranges that are not among measured ones.

    Args:
        ranges: lowest and highest size per dimension.
        names: the compiler's names of dimensions, where they are others.
        measured: sizes of the compiler's symbols.
        count: of sizes.
    """
    dynamic = [d for d, (low, high) in ranges.items() if low < high]
    known = [measured.named(shape) for shape in measured.shapes]
    excluded = [tuple(shape[names.get(d, d)] for d in dynamic) for shape in known]
    rng = np.random.default_rng(1)
    chosen: list[dict[str, int]] = []
    while len(chosen) < count:
        sizes = {d: _draw(low, high, rng) for d, (low, high) in ranges.items()}
        if tuple(sizes[d] for d in dynamic) not in excluded and sizes not in chosen:
            chosen.append(sizes)
    return chosen


def _draw(low: int, high: int, rng: np.random.Generator) -> int:
    return min(high, max(low, int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))))


def _time_in_turns(executables: Sequence[Executable], feeds: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Median seconds of each, and for those after the first one the median of their speedups over it turn by turn."""
    calls = [lambda e=e: e.run(feeds) for e in executables]
    least = min(min(time_calls(call, 3)) for call in calls)
    count = max(1, round(BLOCK_SECONDS / max(1e-6, least)))
    blocks: list[list[float]] = []
    for k in range(ROUNDS):
        times = [0.0] * len(calls)
        for i in range(len(calls))[:: -1 if k % 2 else 1]:
            times[i] = float(np.median(time_calls(calls[i], count)))
        blocks.append(times)
    medians = [float(np.median(times)) for times in zip(*blocks, strict=True)]
    return medians, [float(np.median([b[0] / b[i] for b in blocks])) for i in range(1, len(calls))]


def table(store: ResultStore) -> str:
    """A row per tuning."""
    rows: list[Sequence[str]] = []
    for key, r in store.all("networks").items():
        name, plan, *_ = key.split()
        ratios = [(ratio, sizes) for sizes, _, _, ratio in r["sizes"]]
        worst, at = min(ratios, key=lambda x: x[0])
        sizes = "x".join(map(str, at.values())) if len(ratios) > 1 else ""
        milliseconds = f"{r['sizes'][0][1] * 1e3:.2f}" if len(ratios) == 1 else ""
        rows.append([
            name, plan, f"{r['seconds']:.0f}", str(r["trials"]), f"{r['improved']} of {r['kernels']}", milliseconds,
            f"{geometric_mean([x for x, _ in ratios]):.3f}", f"{worst:.3f} {sizes}".strip(), str(len(ratios)),
        ])  # fmt: skip
    header = ("network", "plan", "seconds", "trials", "kernels faster", "untuned ms", "speedup", "worst", "sizes")
    return report.markdown_table(header, rows)


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(status)
