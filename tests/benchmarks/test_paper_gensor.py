"""The experiments of Gensor's paper: what they compute from times, and that a search that was stopped goes on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.common.result_store import ResultStore
from benchmarks.one_thread import current_log, fingerprint, one_thread_space, predicted_time
from benchmarks.operators.cases import conv, gemm
from benchmarks.paper_gensor import __main__ as command
from benchmarks.paper_gensor import duel, tables
from benchmarks.paper_gensor.operators import operator, operator_names, operator_of

from tilewright.errors import VerifyError
from tilewright.loops.ir import Func
from tilewright.measure.build import encode_candidate
from tilewright.measure.function_timer import FunctionTimer, SharedOperands
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.measurer import Candidate
from tilewright.optimize.search.program_space import ProgramSpace
from tilewright.optimize.search.rowwise_programs import RowwisePrograms
from tilewright.optimize.search.tile_programs import TilePrograms
from tilewright.version import source_hash


@pytest.fixture(scope="module")
def programs() -> ProgramSpace:
    return one_thread_space(operator_of(gemm("test", 24, 40, 48)).task)


@pytest.fixture(scope="module")
def chains() -> ProgramSpace:
    """Of a depthwise convolution with its padding."""
    return one_thread_space(operator_of(conv("test", 1, 6, 20, 20, 6, 3, groups=6)).task)


def test_a_log_of_other_code_is_not_used(programs: ProgramSpace, chains: ProgramSpace, tmp_path: Path) -> None:
    log = current_log(programs, SearchLog(tmp_path / "x.jsonl"))
    log.append({**_entry(programs), "ns": 1.0})
    assert len(current_log(programs, SearchLog(tmp_path / "x.jsonl")).entries) == 1
    assert fingerprint(chains) != fingerprint(programs)
    assert current_log(chains, SearchLog(tmp_path / "x.jsonl")).entries == []
    (tmp_path / "old.jsonl").write_text('{"key": "Form(...)", "space": 0, "ns": 1.0}\n')
    assert current_log(programs, SearchLog(tmp_path / "old.jsonl")).entries == []


def test_predicted_times_are_those_of_the_space(programs: ProgramSpace, chains: ProgramSpace) -> None:
    for space in (programs, chains):
        drawn = space.random(8, np.random.default_rng(1))
        for program, ns in zip(drawn, space.predicted_times(drawn), strict=True):
            family = space.families[program.family]
            assert isinstance(family, TilePrograms | RowwisePrograms)
            assert predicted_time(family.program(program.genes), space.machine) == pytest.approx(ns)


def test_what_the_verifier_refuses_takes_no_part(programs: ProgramSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(func: Func) -> None:
        raise VerifyError("wrong", where=func.name)

    monkeypatch.setattr(duel, "verify", refuse)
    entrant_ = next(iter(duel.constructed_entrants(programs).values()))
    assert not duel._is_legal("found0", entrant_)
    with pytest.raises(VerifyError, match="wrong"):
        duel._is_legal("gensor", entrant_)


def test_programs_work_on_the_same_memory() -> None:
    data = SharedOperands()
    small = data.array("a", (3, 5))
    assert data.array("a", (15,)).ctypes.data == small.ctypes.data
    large = data.array("a", (40, 5))
    assert data.array("a", (3, 5)).ctypes.data == large.ctypes.data
    assert large.ctypes.data % 64 == 0


def _entry(programs: ProgramSpace) -> dict[str, Any]:
    """A random program as an entry of a log."""
    (program,) = programs.random(1, np.random.default_rng(0))
    return {"trace": encode_candidate(Candidate(programs.schedule(program).trace))}


def test_equal_programs_are_measured_once(
    programs: ProgramSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_sizes: list[int] = []

    def turns(clock: FunctionTimer, blocks: int) -> dict[str, list[float]]:
        batch_sizes.append(len(clock.names))
        return {n: [100.0 + k, 101.0 + k] for k, n in enumerate(clock.names)}

    monkeypatch.setattr(FunctionTimer, "block_medians", turns)
    log = current_log(programs, SearchLog(tmp_path / "x.jsonl"))
    way = duel.constructed_entrants(programs)["gensor"]
    log.append({**_entry(programs), "ns": 5.0})
    duel_times = duel.run_duel(programs, log)
    assert duel_times["gensor"]["program"] == way.text
    assert {"gensor", "printed", "without vthreads", "roller", "rule", "best"} == duel_times.keys()
    assert duel_times["best"]["tried"] == 1
    assert duel_times["rule"]["predicted"] is None
    assert batch_sizes[0] <= 6
    assert duel.relative_speed(duel_times, "gensor", "best") == pytest.approx(
        duel_times["best"]["ns"] / duel_times["gensor"]["ns"]
    )
    assert duel.relative_speed(duel_times, "gensor", "nobody") is None


def test_duel_of_a_rowwise_kernel(chains: ProgramSpace, tmp_path: Path) -> None:
    duel_times = duel.run_duel(chains, current_log(chains, SearchLog(tmp_path / "x.jsonl")), blocks=1)
    assert {"gensor", "roller", "rule"} <= duel_times.keys()
    assert "groups of" in duel_times["gensor"]["program"]


def test_results_that_differ_are_refused(programs: ProgramSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    entrants = duel.constructed_entrants(programs)
    running = {n: entrants[n].kernel for n in ("gensor", "rule")}
    clock = FunctionTimer({n: s.func for n, s in running.items()})
    duel.check_results(programs, running, clock)
    right = clock.run

    def wrong(name: str, arrays: dict[str, np.ndarray], result: str) -> np.ndarray:
        return right(name, arrays, result) * (1.001 if name == "rule" else 1.0)

    monkeypatch.setattr(clock, "run", wrong)
    with pytest.raises(ValueError, match=r"program 'rule' of .* errs by 1.0e-03"):
        duel.check_results(programs, running, clock)


def test_shares_of_a_gain() -> None:
    graph_part, vthreads = duel.gain_shares(1.0, 1.4, 1.5)
    assert graph_part == pytest.approx(0.8)
    assert vthreads == pytest.approx(0.2)
    with pytest.raises(ValueError, match="no gain"):
        duel.gain_shares(1.0, 1.2, 1.0)


def failing() -> dict[str, Any]:
    raise VerifyError("wrong")


def test_a_run_goes_on_and_says_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def part(run: command.RunOptions) -> Any:
        for name in run.operators:
            yield name, lambda n=name: calls.append(n) or {"budget": run.budget}

    monkeypatch.setattr(command, "PARTS", {"part": part})
    store = ResultStore(tmp_path / "r.json")

    def run(budget: int, deadline: float) -> int:
        return command._run_part("part", command.RunOptions(store, ("a", "b"), budget, deadline), again=False)

    assert run(10, 0.0) == 2
    assert run(10, float("inf")) == 0
    assert run(10, float("inf")) == 0
    assert calls == ["a", "b"]
    header = {"budget": 10, "source": source_hash()}
    assert ResultStore(tmp_path / "r.json").all("part") == {"a": header, "b": header}
    assert run(20, float("inf")) == 0
    assert calls == ["a", "b", "a", "b"]
    monkeypatch.setattr(command, "PARTS", {"part": lambda _: iter([("c", failing), ("a", lambda: {"budget": 20})])})
    assert run(20, float("inf")) == 1
    assert ResultStore(tmp_path / "r.json").get("part", "c") is None
    monkeypatch.setattr(command, "PARTS", {"part": part})
    store.put("part", "a", {"budget": 20, "source": "older"})
    assert run(20, float("inf")) == 0
    assert calls[4:] == ["a"]
    store.put("part", "b", {"budget": 15, "all": True, "source": source_hash()})
    assert run(20, 0.0) == 0


def entrant(ns: float, **more: Any) -> dict[str, Any]:
    return {"ns": ns, "low": 0.5 * ns, "spread": 0.01, "predicted": ns, "program": "", **more}


def test_the_table_says_what_falls_short(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "r.json")
    first, second = operator_names()[:2]
    rest = {"printed": entrant(120.0), "without vthreads": entrant(110.0), "roller": entrant(150.0),
            "rule": entrant(200.0)}  # fmt: skip
    for name, best in ((first, 98.0), (second, 80.0)):
        entrants = {"gensor": entrant(100.0), "best": entrant(best, low=49.0, tried=150), **rest}
        store.put("duel", name, {"entrants": entrants, "budget": 150, "all": False, "source": source_hash()})
    shown = tables.markdown(store)
    assert ("By medians 1 of 2 operators reach 95% of the best program found; geometric mean 0.885 (bar 0.95: missed)"
            in shown)  # fmt: skip
    assert ("By fastest blocks 2 of 2 operators reach 95% of the best program found; geometric mean 0.980 (bar 0.95: "
            "met)" in shown)  # fmt: skip
    assert "A reduced run: 2 operators, searches of 150 programs instead of 2000" in shown
    assert f"| {first} | gemm | 0.1 | 0.98 | 0.98 | 1.50 | 1.10 | 1.20 | 2.00 | 150 | 1% |" in shown
    assert "| geometric mean |  |  | 0.98 | 0.89 | 1.50 | 1.10 | 1.20 | 2.00 |  |  |" in shown
    assert "the graph has 73%, virtual threads 27%" in shown
    assert "older sources" not in shown
    store.put("duel", first, {**store.all("duel")[first], "source": "older"})
    assert "1 of 2 results are of older sources" in tables.markdown(store)
    store.put("duel", second, {"gensor": entrant(100.0)})
    assert list(ResultStore(tmp_path / "r.json").all("duel")) == [first]


def test_construction_is_shown_by_size_next_to_the_search(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "r.json")
    parts = dict.fromkeys((*tables.PHASES, "total"), 0.25)
    store.put("time", "gemm_m512_k512_n512 gensor", {**parts, "source": source_hash()})
    store.put("search", "gemm_m512_k512_n512", {"seconds": 123.4, "source": source_hash()})
    shown = tables.markdown(store)
    assert "gensor: 0.3 s (median) and 1 s (longest) met" in shown
    assert "| gemm_m512_k512_n512 | 0.25 |  | 123 |" in shown


def test_unknown_operators_are_named() -> None:
    with pytest.raises(ValueError, match="there is no operator 'gem'; use one of gemm_m512"):
        operator("gem")
    assert len(set(operator_names())) == 20
