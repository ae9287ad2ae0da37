"""The experiments of ETO's paper: tasks of its operators, methods that go on where they were, and tables."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.common.result_store import ResultStore
from benchmarks.paper_eto import __main__ as command
from benchmarks.paper_eto import methods, tables
from benchmarks.paper_eto.methods import METHODS, Context, Outcome, OutOfTimeError, run_method
from benchmarks.paper_eto.operator_sets import PaperOperator, loop_vector, operator_sets
from benchmarks.paper_eto.operator_tasks import operator_task, set_tasks
from tests.optimize.search_tasks import made_up_time, timed

from tilewright.errors import VerifyError
from tilewright.loops.ir import Func
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.optimize.search.start_search import start_search
from tilewright.optimize.task import Task

PRODUCTS = ("1x24x48x40", "1x24x96x40", "1x48x48x40")
TRIALS = 24


class CountingMeasurer:
    """Answers with times that depend on the trace alone."""

    def __init__(self) -> None:
        self.count = 0

    def measure(
        self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
    ) -> list[Measurement]:
        self.count += len(candidates)
        return [timed(c, made_up_time(c)) for c in candidates]


def _products() -> list[tuple[PaperOperator, ReusableTask]]:
    operators = [PaperOperator(loop_vector("BMM", s), "BMM", 1, (), (), 1) for s in PRODUCTS]
    tasks = [operator_task(o) for o in operators]
    return [(o, t) for o, t in zip(operators, tasks, strict=True) if t is not None]


def _run(method: str, measurer: CountingMeasurer, seconds: float = 1e6) -> Outcome:
    context = Context(measurer, TRIALS, time.monotonic() + seconds, lambda line: None)
    return run_method(method, _products(), context)


@pytest.mark.parametrize("kind", ["BMM", "C1D", "C2D", "C3D", "DEP"])
def test_tasks_have_the_loops_of_their_operators(kind: str) -> None:
    operator = min(
        (o for s in operator_sets().values() for o in s if o.type == kind), key=lambda o: o.vector.points
    )
    task = operator_task(operator)
    assert task is not None
    assert sorted(task.vector.extents) == sorted(operator.vector.extents)
    assert task.vector.points == operator.vector.points
    assert len(task.task.constants) == (kind != "BMM")


def test_operators_without_tile_programs_have_no_tasks() -> None:
    assert set_tasks("DCGAN") == ()


def test_methods_tune_every_operator_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "LOGS", tmp_path)
    measurer = CountingMeasurer()
    outcomes = {method: _run(method, measurer) for method in METHODS}
    for method, outcome in outcomes.items():
        assert set(outcome.best) == {0, 1, 2}, method
        assert outcome.programs == sum(len(log.entries) for log in outcome.logs.values())
    full, reused = outcomes["full search"], outcomes["eto"]
    assert full.full_searches == 3
    assert reused.full_searches < 3
    assert reused.programs < full.programs == 3 * TRIALS
    assert all(c is not None for c in (*full.best.values(), *reused.best.values()))
    # what was measured is in the logs
    before = measurer.count
    assert _run("full search", measurer).best == full.best
    assert measurer.count == before


def test_transfers_leave_out_what_the_verifier_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, task), *_ = _products()
    programs = start_search(task.task, task.machine, "random").ask(3)
    verified = 0

    def refuse_the_first(func: Func) -> None:
        nonlocal verified
        verified += 1
        if verified == 1:
            raise VerifyError("wrong", where=func.name)

    monkeypatch.setattr(methods, "verify", refuse_the_first)
    transfer = methods._Transfer(task, programs)
    assert transfer.ask(8) == [programs[1]]
    transfer.tell([timed(programs[1], 5.0), timed(programs[1], 4.0)])
    assert len(transfer.history) == 1
    assert transfer.history.fastest == timed(programs[1], 5.0)
    assert transfer.ask(8) == [programs[2]]
    assert transfer.ask(8) == []


def test_a_deadline_ends_a_method_between_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "LOGS", tmp_path)
    with pytest.raises(OutOfTimeError):
        _run("eto", CountingMeasurer(), seconds=-1.0)


def test_tables_show_what_is_there(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.json")
    assert tables.markdown(store) == ""
    store.put("graphs", "BERT-Base", {"source": "x", **tables.graph_row("BERT-Base")})
    row = {"set": "s", "method": "full search", "programs": 10, "seconds": 4.0, "estimated": 10.0, "full_searches": 1,
           "ratios": [1.0, None], "throughput": 1.0, "source": "x"}  # fmt: skip
    where = {"machine": "one of 16 cores", "date": "2026-01-02", "commit": "abc"}
    store.put("tune", "s: full search", {**row, "where": where})
    store.put("tune", "s: eto", {**row, "method": "eto", "seconds": 2.0, "throughput": 0.97, "where": where})
    store.put("tune", "t: eto", {**row, "set": "t", "where": {**where, "machine": "one of 2 cores"}})
    text = tables.markdown(ResultStore(store.path))
    assert "| BERT-Base | 5 | 2 | 4 |" in text
    assert "2.0 times | 0.970 | 1.00, -" in text
    places = "| s | one of 16 cores | 2026-01-02 | abc |\n| t | one of 2 cores | 2026-01-02 | abc |"
    assert text.endswith(places)


def test_a_command_goes_on_with_what_it_had_no_time_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "FILE", tmp_path / "results.json")
    calls: list[str] = []

    def status(time_is_over: bool, *extra: str) -> int:
        def tune(tasks: object, method: str, trials: int, deadline: float) -> dict[str, float] | None:
            calls.append(method)
            return None if time_is_over else {"programs": 1, "seconds": 1.0, "estimated": 1.0}

        monkeypatch.setattr(command, "_tune_set", tune)
        arguments = ["--parts", "tune", "--sets", "BERT-Base", "--operators", "1", "--methods", "eto", *extra]
        monkeypatch.setattr("sys.argv", ["paper_eto", *arguments])
        monkeypatch.setattr(tables, "markdown", lambda store: "")
        return command.main()

    assert status(True) == 3
    assert status(False) == 0
    assert status(False) == 0
    assert calls == ["eto", "eto"]
    assert status(False, "--parts", "charts") == 2
