"""Whole networks, tuned by `tilewright.tune`, in turns with the untuned ones; dynamic ones at sizes new to the tuning.

    python -m benchmarks.tuned_networks [--models resnet18,...] [--budget 600] [--trials N] [--plan gradient,eto]
                                        [--sizes 30] [--table]

Every network of the zoo (`benchmarks/zoo`) is tuned for `--budget` seconds by each plan. Then both compilations run in
turns, in one process, at sizes drawn from the declared ranges that tuning did not measure. The table has the speedup,
1 as fast, in the geometric mean and at the size where it is worst. Records and results are in `build/tuned_networks`:
a network whose tuning was stopped goes on with what its store holds, one that is complete is not tuned again.
`--table` shows what is there.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from benchmarks.common import environment, report
from benchmarks.common.result_store import ResultStore
from benchmarks.common.statistics import geometric_mean
from benchmarks.zoo.model import Model, build_model
from benchmarks.zoo.models import MODELS
from tilewright.driver.tune.draw_sizes import ModelSizes
from tilewright.driver.tune.result import TuningResult
from tilewright.driver.tune.session import SessionStatus
from tilewright.measure.timing import time_calls
from tilewright.report import tuning as tuning_report
from tilewright.runtime import Executable
from tilewright.version import source_hash

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


def main() -> int:
    """Tunes and compares what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(RANGES))
    parser.add_argument("--budget", type=float, default=600.0, help="seconds of a tuning")
    parser.add_argument("--trials", type=int, help="programs of a tuning, at most")
    parser.add_argument("--plan", default="gradient", help="gradient, eto, or both")
    parser.add_argument("--sizes", type=int, default=30, help="of a dynamic network")
    parser.add_argument("--table", action="store_true", help="show what is there")
    options = parser.parse_args()
    store = ResultStore(FOLDER / "results.json")
    for name in () if options.table else options.models.split(","):
        for plan in options.plan.split(","):
            key = f"{name} {plan} {options.budget:g}" + (f" {options.trials}" if options.trials else "")
            known = store.get("networks", key)
            if known is None or known["source"] != source_hash():
                store.put("networks", key, _tune_network(MODELS[name], plan, options))
                command = f"python -m benchmarks.tuned_networks {' '.join(sys.argv[1:])}"
                store.put("circumstances", key, environment.describe(command))
    print(table(store))
    return 0


def _tune_network(model: Model, plan: str, options: argparse.Namespace) -> Mapping[str, Any]:
    """Tunes a network, and times both compilations."""
    build_model(model)
    ranges = {DIMENSIONS.get(model.name, {}).get(d, d): r for d, r in RANGES[model.name].items()}
    shapes = {d: f"{low}..{high}" if low < high else str(low) for d, (low, high) in ranges.items()}
    records = FOLDER / f"{model.name}_{plan}.db"
    timeline: list[tuple[float, int, float]] = []

    def watch(status: SessionStatus) -> None:
        timeline.append((round(status.seconds, 1), status.trials, round(status.speedup, 4)))
        print(f"{model.name} {plan}: {timeline[-1]} {status.label}", file=sys.stderr, flush=True)

    result = tilewright.tune(
        str(model.path), budget=options.budget, trials=options.trials, shapes=shapes or None, plan=plan,
        records=records, report=watch,
    )  # fmt: skip
    print("\n".join(tuning_report.summary(result)), file=sys.stderr, flush=True)
    untuned = Executable(result.plan.compilation.artifact()).prepare()
    tuned = tilewright.compile(str(model.path), shapes=shapes or None, records=records)
    drawn = new_sizes(model, result, options.sizes)
    return {
        "source": source_hash(), "trials": result.session.trials, "seconds": round(result.seconds, 1),
        "improved": len(result.session.improved), "kernels": len(result.session.kernels),
        "disturbed": result.session.disturbed, "predicted": result.predicted_speedup, "reverted": result.is_reverted,
        "comparison": [[c.sizes, c.untuned.median, c.tuned.median, c.noise] for c in result.comparison],
        "timeline": timeline, "sizes": [[s, *_time_in_turns(untuned, tuned, model.inputs(s))] for s in drawn],
    }  # fmt: skip


def new_sizes(model: Model, result: TuningResult, count: int) -> list[dict[str, int]]:
    """Sizes of a network within its ranges, evenly on a logarithmic scale, that its tuning did not measure."""
    ranges = RANGES[model.name]
    if not ranges:
        return [dict(model.shapes[0])]
    return draw_new_sizes(ranges, DIMENSIONS.get(model.name, {}), result.plan.sizes, count)


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


def _time_in_turns(untuned: Executable, tuned: Executable, feeds: Mapping[str, Any]) -> tuple[float, float, float]:
    """Median seconds of both, and the median of their ratios round by round."""
    calls = [lambda e=e: e.run(feeds) for e in (untuned, tuned)]
    least = min(min(time_calls(call, 3)) for call in calls)
    count = max(1, round(BLOCK_SECONDS / max(1e-6, least)))
    blocks: list[list[float]] = []
    for k in range(ROUNDS):
        times = [0.0, 0.0]
        for i in (0, 1) if k % 2 else (1, 0):
            times[i] = float(np.median(time_calls(calls[i], count)))
        blocks.append(times)
    first, second = (float(np.median([b[i] for b in blocks])) for i in (0, 1))
    return first, second, float(np.median([b[0] / b[1] for b in blocks]))


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
