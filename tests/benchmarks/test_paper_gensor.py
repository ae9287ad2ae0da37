"""The experiments of Gensor's paper: what they compute from times, and that a search that was stopped goes on."""

import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.operators.cases import conv, gemm
from benchmarks.paper_gensor import __main__ as command
from benchmarks.paper_gensor import duel, tables
from benchmarks.paper_gensor.operators import operator, operator_names, operator_of
from benchmarks.paper_gensor.program_space import ProgramId, ProgramSpace, current_log, fingerprint, predicted_time
from benchmarks.paper_gensor.rowwise_programs import RowwisePrograms
from benchmarks.paper_gensor.store import ResultStore

from tilewright.errors import VerifyError
from tilewright.loops.ir import Func
from tilewright.measure import search
from tilewright.measure.function_timer import FunctionTimer, SharedOperands
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.local_measurer import LocalMeasurer, MeasureOptions
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Measurement, Timing
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.tile.program import TileProgram, is_legal
from tilewright.version import source_hash


@pytest.fixture(scope="module")
def programs() -> ProgramSpace:
    return ProgramSpace.of(operator_of(gemm("test", 24, 40, 48)).task)


@pytest.fixture(scope="module")
def chains() -> ProgramSpace:
    """Of a depthwise convolution with its padding."""
    return ProgramSpace.of(operator_of(conv("test", 1, 6, 20, 20, 6, 3, groups=6)).task)


class Predicting:
    """A measurer that reads the cost model, so that searches are quick and always the same."""

    def __init__(self, programs: ProgramSpace) -> None:
        self.programs = programs
        self.times: dict[tuple[Step, ...], float] = {}
        self.incumbents: list[float | None] = []

    def schedule(self, c: ProgramId) -> Schedule:
        """Schedules without lowering: a trace of one step that names the program."""
        schedule = Schedule(self.programs.task.func)
        key = self.programs.key(c)
        schedule.trace = (Step("parallel", (key,)),)
        schedule.func = replace(schedule.func, name=f"k{sha256(key.encode()).hexdigest()}")
        (self.times[schedule.trace],) = self.programs.predicted_times([c])
        return schedule

    def measure(
        self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
    ) -> list[Measurement]:
        assert task is self.programs.task
        self.incumbents.append(None if incumbent is None else self.times[incumbent.trace])
        return [Measurement(c, Timing(self.times[c.trace], 0.0, 0.0, 1, 1, 0.0, False)) for c in candidates]


def searched(
    programs: ProgramSpace, log: SearchLog, budget: int, patch: pytest.MonkeyPatch, deadline: float = 1e300
) -> tuple[search.SearchStatus, Predicting]:
    """A search that reads the cost model instead of a clock, and its measurer."""
    measurer = Predicting(programs)
    patch.setattr(ProgramSpace, "schedule", lambda _, c: measurer.schedule(c))
    return search.search(programs, log, budget, deadline, measurer), measurer


def test_random_programs_are_programs_and_differ(programs: ProgramSpace) -> None:
    samples = programs.random(60, np.random.default_rng(1))
    assert len({programs.key(c) for c in samples}) > 30
    tiled = [(c, p) for c in samples if isinstance(p := programs.program(c), TileProgram)]
    assert len(tiled) > 20
    for _, p in tiled:
        assert is_legal(p.problem, p.sketch, p.array[None]).all()
    child = [programs.mutate(tiled[0][0], np.random.default_rng(k)) for k in range(20)]
    assert len({programs.key(c) for c in child}) > 5


def test_rowwise_programs_are_drawn_and_mutated(chains: ProgramSpace) -> None:
    (family,) = chains.families
    assert isinstance(family, RowwisePrograms)
    samples = chains.random(40, np.random.default_rng(1))
    keys = {chains.key(c) for c in samples}
    assert len(keys) > 10
    child = [chains.mutate(samples[0], np.random.default_rng(k)) for k in range(20)]
    assert len({chains.key(c) for c in child} - {chains.key(samples[0])}) > 5
    predicted = chains.predicted_times(samples)
    for c, ns in zip(samples[:8], predicted, strict=False):
        assert predicted_time(chains.program(c), chains.machine) == pytest.approx(ns)


def test_search_uses_its_budget_without_repeats_and_improves(
    programs: ProgramSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SearchLog(tmp_path / "x.jsonl")
    progress, measurer = searched(programs, log, 200, monkeypatch)
    assert progress.is_finished
    assert not progress.is_exhausted
    assert len(search.timed_entries(log)) == 200
    keys = [e["key"] for e in log.entries]
    assert len(set(keys)) == len(keys)
    # all but the first program run in turns with the fastest one of the batches before
    first, *others = measurer.incumbents
    assert first is None
    assert others == sorted(others, key=lambda ns: -(ns or 0.0))
    assert None not in others
    assert len(others) >= 5
    first = min(e["ns"] for e in log.entries[: int(200 * search.RANDOM_FRACTION)])
    assert min(e["ns"] for e in log.entries) <= first
    (best,) = search.fastest_programs(programs, log, 1)
    assert programs.key(best) == min(log.entries, key=lambda e: e["ns"])["key"]


def test_search_of_a_small_space_exhausts_it(
    chains: ProgramSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SearchLog(tmp_path / "x.jsonl")
    progress, _ = searched(chains, log, 100_000, monkeypatch)
    assert progress.is_exhausted
    (family,) = chains.families
    assert isinstance(family, RowwisePrograms)
    assert len(log.entries) == sum(math.prod(len(s) for s in steps) for _, steps in family.choices)


def test_stopped_search_resumes(programs: ProgramSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = current_log(programs, SearchLog(tmp_path / "x.jsonl"))
    assert not searched(programs, log, 60, monkeypatch, deadline=0.0)[0].is_finished
    assert log.entries == []
    monkeypatch.setattr(search, "BATCH", 12)
    whole = current_log(programs, SearchLog(tmp_path / "whole.jsonl"))
    searched(programs, whole, 60, monkeypatch)
    log.path.write_text("".join(whole.path.read_text().splitlines(keepends=True)[:25]) + '{"key": "Fo')
    again = current_log(programs, SearchLog(tmp_path / "x.jsonl"))
    assert len(again.entries) == 24
    assert searched(programs, again, 60, monkeypatch)[0].is_finished
    assert SearchLog(tmp_path / "x.jsonl").entries == again.entries
    assert [e["key"] for e in whole.entries] == [e["key"] for e in again.entries]


def test_a_log_of_other_code_is_not_used(programs: ProgramSpace, chains: ProgramSpace, tmp_path: Path) -> None:
    log = current_log(programs, SearchLog(tmp_path / "x.jsonl"))
    log.append({**_entry(programs), "ns": 1.0})
    assert len(current_log(programs, SearchLog(tmp_path / "x.jsonl")).entries) == 1
    assert fingerprint(chains) != fingerprint(programs)
    assert current_log(chains, SearchLog(tmp_path / "x.jsonl")).entries == []
    (tmp_path / "old.jsonl").write_text('{"key": "Form(...)", "space": 0, "ns": 1.0}\n')
    assert current_log(programs, SearchLog(tmp_path / "old.jsonl")).entries == []


def test_a_search_measures_equal_loops_once_and_keeps_failures(
    programs: ProgramSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Predicting):
        def measure(
            self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
        ) -> list[Measurement]:
            asked.extend(c.trace for c in candidates)
            measurements = super().measure(task, candidates, incumbent)
            failure = Failure(FailureKind.WRONG_ANSWER, "element 3")
            return [replace(m, result=failure) if m.candidate.trace == bad else m for m in measurements]

    measurer, asked, lines = Failing(programs), list[tuple[Step, ...]](), list[str]()
    drawn = programs.random(3, np.random.default_rng(0))
    bad = measurer.schedule(drawn[1]).trace
    monkeypatch.setattr(ProgramSpace, "schedule", lambda _, c: measurer.schedule(c))
    log = SearchLog(tmp_path / "x.jsonl")
    log.clear("code")
    search._measure_batch(programs, log, [drawn[0], drawn[1], drawn[0]], measurer, lines.append)
    assert len(asked) == 2
    assert [e["ns"] is None for e in log.entries] == [False, True, True]
    assert [e.get("failure") for e in log.entries] == [None, "wrong answer: element 3", None]
    assert lines == [f"{programs.key(drawn[1])}: wrong answer: element 3"]
    search._measure_batch(programs, log, drawn[:1], measurer, lines.append)
    assert len(asked) == 2


def test_measured_search_of_a_small_product(programs: ProgramSpace, tmp_path: Path) -> None:
    log = current_log(programs, SearchLog(tmp_path / "x.jsonl"))
    with LocalMeasurer(MeasureOptions(plan=RunPlan(1, 0.001, 0.0, 0.0005))) as measurer:
        status = search.search(programs, log, 6, 1e300, measurer)
    assert status.is_finished
    assert [e for e in log.entries if "failure" in e] == []
    assert len(search.timed_entries(log)) == 6


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
    (c,) = programs.random(1, np.random.default_rng(0))
    return {"key": programs.key(c), **programs.encode(c)}


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
