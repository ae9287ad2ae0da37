"""The benchmark of searches: its tables, and that what is measured is not measured again."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.common.result_store import ResultStore
from benchmarks.one_thread import one_thread_space
from benchmarks.populations import POPULATIONS

from benchmarks import cost_model, search
from tilewright.measure.build import encode_candidate
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.measurer import Candidate

ROWS = ("softmax_64x1000", "layernorm_128x768")


def options(operators: tuple[str, ...], deadline: float = 1e300) -> search.Options:
    return search.Options(operators, ("ansor", "random"), (2, 4), 4, deadline)


def test_operators_are_of_all_kinds_and_exist() -> None:
    kinds = {kind for kind, group in cost_model.KINDS.items() for name in group if name in search.OPERATORS}
    assert len(set(search.OPERATORS)) == 24
    assert kinds == set(cost_model.KINDS)


def test_the_table_has_speeds_and_their_means(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "r.json")
    cells = {"a ansor 2": 0.5, "a random 2": 0.25, "a ansor 4": 1.0, "a random 4": 0.5,
             "b ansor 2": 2.0, "b random 2": 1.0, "b ansor 4": 1.0, "b random 4": 2.0, "c ansor 2": 8.0}  # fmt: skip
    for key, speed in cells.items():
        store.put("search", key, {"source": "x", "programs": 2, "speed": speed, "spread": 0.0, "ns": 1.0})
    header, _, *lines = search.search_table(store, options(("a", "b", "c"))).splitlines()
    assert header == "| operator | ansor 2 | random 2 | ansor 4 | random 4 |"
    assert lines == [
        "| a | 0.50 | 0.25 | 1.00 | 0.50 |",
        "| b | 2.00 | 1.00 | 1.00 | 2.00 |",
        "| c | 8.00 | - | - | - |",
        "| geometric mean (of so many) | 2.000 (3) | 0.500 (2) | 1.000 (2) | 1.000 (2) |",
        "| over `random` (of so many) | 2.000 (2) | 1.000 (2) | 1.000 (2) | 1.000 (2) |",
    ]


def test_the_fastest_after_some_trials_is_chosen_among_these_alone(tmp_path: Path) -> None:
    space = one_thread_space(cost_model.largest_kernel_task(ROWS[0]))
    log = SearchLog(tmp_path / "x.jsonl")
    log.clear("code")
    candidates = [Candidate(space.schedule(p).trace) for p in space.random(3, np.random.default_rng(0))]
    for candidate, ns in zip(candidates, (5.0, 7.0, 3.0), strict=True):
        log.append({"trace": encode_candidate(candidate), "ns": ns, "seconds": 0.0})
    log.append({"trace": encode_candidate(candidates[0]), "ns": None, "failure": ["crash", "x"], "seconds": 0.0})
    assert search._fastest_of_first(log, 2).trace == candidates[0].trace
    assert search._fastest_of_first(log, 4).trace == candidates[2].trace


def test_rank_correlations_of_operators_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultStore(tmp_path / "r.json")
    for name in ROWS:
        predicted = [t for t, _ in POPULATIONS["at random"](cost_model.largest_kernel_task(name), 4)]
        # the analytical model has it right
        result: dict[str, Any] = {"measured": [2.0 * t for t in predicted], "agreement": 0.9, "correlation": 1.0}
        store.put("model", name, {"source": "x", "asked": 4, **result})
    shown = search.model_table(store, options(ROWS))
    header, _, *lines = shown.splitlines()
    assert header == "| kind | kernels | measured twice | analytical | learned, prior | learned alone |"
    assert len(lines) == 2
    assert lines[0].startswith("| row chain | 2 | 0.90 | 1.00 | ")
    prior = float(lines[0].split("|")[5])
    assert prior > 0.5
    monkeypatch.setattr(cost_model, "compare_times", lambda *_: pytest.fail("measured again"))
    assert search._measure_programs(store, ROWS[0], options(ROWS))
    assert not search._measure_programs(store, "gemm_m64_k64_n64", options(ROWS, time.monotonic() - 1.0))
