"""The benchmark of tuned networks: sizes that a tuning did not measure, and its table."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from benchmarks.common.result_store import ResultStore
from benchmarks.tuned_networks import Progress, Run
from benchmarks.zoo.models import MODELS

from benchmarks import tuned_networks
from tilewright.driver.tune.draw_sizes import ModelSizes
from tilewright.expr.nodes import Symbol


def test_networks_are_of_the_zoo_and_their_dimensions_have_ranges() -> None:
    assert set(tuned_networks.RANGES) <= set(MODELS)
    for name, names in tuned_networks.DIMENSIONS.items():
        assert names.keys() == tuned_networks.RANGES[name].keys()


def test_new_sizes_are_distinct_within_ranges_and_not_those_of_the_tuning() -> None:
    batch, width = Symbol("b", 1, 3), Symbol("w", 5, 9)
    measured = ModelSizes(({batch: 1, width: 5}, {batch: 3, width: 9}), (0.5, 0.5), {"b": "batch", "w": "x[3]"})
    ranges = {"batch": (1, 3), "height": (48, 48), "width": (5, 9)}
    drawn = tuned_networks.draw_new_sizes(ranges, {"width": "x[3]"}, measured, 13)
    # all others of the 15
    assert {(s["batch"], s["width"]) for s in drawn} == {
        (b, w) for b in (1, 2, 3) for w in range(5, 10) if (b, w) not in ((1, 5), (3, 9))
    }
    assert {s["height"] for s in drawn} == {48}


def test_the_table_has_the_mean_and_the_worst_size(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "r.json")
    tuning = {"source": "x", "seconds": 60.0, "trials": 8, "improved": 1, "kernels": 3}
    sizes = [[{"batch": 2, "sequence": 17}, 0.004, 0.008, 0.5], [{"batch": 1, "sequence": 9}, 0.004, 0.002, 2.0]]
    store.put("networks", "bert_base_dyn eto 60", {**tuning, "sizes": sizes})
    store.put("networks", "resnet18 gradient 60", {**tuning, "sizes": [[{"batch": 1}, 0.004, 0.002, 2.0]]})
    shown = tuned_networks.table(store)
    assert "| bert_base_dyn | eto | 60 | 8 | 1 of 3 |  | 1.000 | 0.500 2x17 | 2 |" in shown
    assert "| resnet18 | gradient | 60 | 8 | 1 of 3 | 4.00 | 2.000 | 2.000 | 1 |" in shown


def test_a_long_search_has_a_quarter_of_its_time_for_eto_and_a_store_per_run() -> None:
    options = SimpleNamespace(long=2400.0, budget=600.0, plan="gradient", trials=None)
    long, short = tuned_networks.runs_of("resnet18", cast(Any, options))
    assert [(r.plan, r.budget) for r in (long, short)] == [("gradient", 2400.0), ("eto", 600.0)]
    options.long, options.plan = None, "gradient,eto"
    runs = tuned_networks.runs_of("resnet18", cast(Any, options))
    assert [(r.plan, r.budget) for r in runs] == [("gradient", 600.0), ("eto", 600.0)]
    assert len({r.records for r in (long, short, runs[0])}) == 3


@pytest.mark.parametrize(
    ("progress", "left"),
    [
        (Progress(), 600.0),
        (Progress(seconds=590.0), 0.0),
        (Progress(seconds=500.0, trials=9), 100.0),
        (Progress(seconds=500.0, trials=10), 0.0),
        (Progress(seconds=1.0, is_tuned=True), 0.0),
    ],
)
def test_a_run_goes_on_with_what_is_left(progress: Progress, left: float) -> None:
    assert progress.left(Run("resnet18", "eto", 600.0, 10)) == left


def test_the_share_of_the_gain_is_printed_where_there_is_one(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "r.json")
    runs = ["bert_tiny gradient 2400", "bert_tiny eto 600"]
    store.put("long", "a", {"source": "x", "runs": runs, "speedups": [1.1, 1.08]})
    store.put("long", "b", {"source": "x", "runs": runs, "speedups": [1.01, 1.005]})
    assert tuned_networks.shares(store) == [
        "bert_tiny gradient 2400 gains 10.0%; bert_tiny eto 600 has 0.80 of it",
        "bert_tiny gradient 2400 gains 1.0%; bert_tiny eto 600 has too little to compare (0.5%)",
    ]
