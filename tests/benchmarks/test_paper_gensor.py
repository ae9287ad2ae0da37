"""The experiments of Gensor's paper: what they compute from times, and that a search that was stopped goes on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.operators.cases import gemm
from benchmarks.paper_gensor import __main__ as command
from benchmarks.paper_gensor import duel, search, tables
from benchmarks.paper_gensor.clock import CLEARLY, LIKELY, Clock
from benchmarks.paper_gensor.operators import names, operator, operator_of
from benchmarks.paper_gensor.payoff import RESTING, Graph, experiment, followed, graph, iterate, potential
from benchmarks.paper_gensor.space import Programs
from benchmarks.paper_gensor.store import Log, Store

from tilewright.loops.ir import Func
from tilewright.optimize.construct.gensor import Annealing
from tilewright.tile.program import legal


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs.of(operator_of(gemm("test", 24, 40, 48)).task)


class Predicting:
    """A clock that reads the cost model, so that searches are quick and always the same."""

    programs: Programs
    candidates: dict[str, float]

    def __init__(self, funcs: dict[str, float]) -> None:
        self.times = funcs

    def glance(self, name: str, best: float) -> float:
        return self.times[name]


@pytest.fixture
def predicting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "Clock", Predicting)
    monkeypatch.setattr(Programs, "func", Programs.predicted_program)


def test_random_programs_are_programs_and_differ(programs: Programs) -> None:
    drawn = programs.random(60, np.random.default_rng(1))
    assert len({c.key for c in drawn}) > 30
    for c in drawn:
        assert legal(c.program.problem, c.program.form, c.program.array[None]).all()
    child = [programs.changed(drawn[0], np.random.default_rng(k)) for k in range(20)]
    assert len({c.key for c in child}) > 5


@pytest.mark.usefixtures("predicting")
def test_a_search_measures_as_many_as_it_may_none_twice_and_gets_better(programs: Programs, tmp_path: Path) -> None:
    log = Log("x", tmp_path)
    assert search.search(programs, log, 90, float("inf"))
    assert 90 <= len(log.entries) < 90 + search.BATCH
    keys = [e["key"] for e in log.entries]
    assert len(set(keys)) == len(keys)
    first = min(e["ns"] for e in log.entries[: int(90 * search.RANDOM_PART)])
    assert min(e["ns"] for e in log.entries) <= first
    assert [c.key for c in search.fastest(programs, log, 1)] == [min(log.entries, key=lambda e: e["ns"])["key"]]


@pytest.mark.usefixtures("predicting")
def test_a_search_that_was_stopped_goes_on(programs: Programs, tmp_path: Path) -> None:
    log = Log("x", tmp_path)
    assert not search.search(programs, log, 12, deadline=0.0)
    assert log.entries == []
    assert search.search(programs, log, 12, float("inf"))
    again = Log("x", tmp_path)
    assert again.entries == log.entries
    assert not search.stale(programs, again)
    assert search.search(programs, again, 12, deadline=0.0)
    whole = Log("whole", tmp_path)
    search.search(programs, whole, 12, float("inf"))
    assert [e["key"] for e in whole.entries] == [e["key"] for e in log.entries]


def test_a_log_of_another_space_is_not_used(programs: Programs, tmp_path: Path) -> None:
    log = Log("x", tmp_path)
    drawn = programs.random(1, np.random.default_rng(0))[0]
    log.add({**search.entry(drawn), "ns": 1.0})
    assert not search.stale(programs, log)
    log.add({**search.entry(drawn), "key": "Form(...)", "ns": 1.0})
    assert search.stale(programs, log)


def test_a_glance_ends_early_where_a_program_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(nanoseconds: float, best: float) -> int:
        clock, calls = object.__new__(Clock), 0

        def call(_: Clock, name: str) -> float:
            nonlocal calls
            calls += 1
            return nanoseconds

        monkeypatch.setattr(Clock, "call", call)
        clock.glance("p", best)
        return calls

    assert looked(CLEARLY * 11.0, 10.0) == 2
    assert looked(LIKELY * 11.0, 10.0) == 4
    assert looked(10.0, 10.0) > 4
    assert looked(10.0, float("inf")) > 4


def test_equal_programs_are_measured_once(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Counting:
        def __init__(self, funcs: dict[str, Func]) -> None:
            seen.append(len(funcs))
            self.names = list(funcs)

        def in_turns(self, blocks: int) -> dict[str, list[float]]:
            return {n: [100.0 + k, 101.0 + k] for k, n in enumerate(self.names)}

    monkeypatch.setattr(duel, "Clock", Counting)
    log = Log("x", tmp_path)
    best = duel.constructed(programs)["gensor"]
    where = next(c for c in programs.random(400, np.random.default_rng(0)))
    log.add({**search.entry(where), "ns": 5.0})
    found = duel.duel(programs, log)
    assert found["gensor"]["program"] == str(best)
    assert {"gensor", "printed", "without vthreads", "roller", "best"} == found.keys()
    assert found["best"]["tried"] == 1
    assert seen[0] <= 5
    assert duel.speed(found, "gensor", "best") == pytest.approx(found["best"]["ns"] / found["gensor"]["ns"])
    assert duel.speed(found, "gensor", "nobody") is None


def test_shares_of_a_gain() -> None:
    graph_part, vthreads = duel.shares(1.0, 1.4, 1.5)
    assert graph_part == pytest.approx(0.8)
    assert vthreads == pytest.approx(0.2)
    with pytest.raises(ValueError, match="no gain"):
        duel.shares(1.0, 1.2, 1.0)


def reachable(g: Graph) -> set[int]:
    """All nodes that actions lead to from the first one."""
    seen, left = {0}, [0]
    while left:
        node = left.pop()
        for j in np.flatnonzero(g.chances[node] > 0):
            if int(g.targets[node, j]) not in seen:
                seen.add(int(g.targets[node, j]))
                left.append(int(g.targets[node, j]))
    return seen


def test_value_iteration_finds_the_state_of_highest_payoff() -> None:
    """Along a level payoffs telescope to quotients of 1 / (Q F); `cache` multiplies. Checked against all paths."""
    programs = Programs.of(operator_of(gemm("payoff", 8, 16, 16)).task)
    for space, _ in programs.spaces:
        g = graph(space, Annealing(vthreads=False))
        assert reachable(g) == set(range(len(g.states)))
        value = potential(space, g.states, g.levels)
        found = iterate(g.targets, g.benefits)
        assert found.iterations is not None
        # the best payoff by Dijkstra's rule would need weights of one sign; here levels are taken one by one
        best = np.full(len(g.states), -np.inf)
        best[0] = 0.0
        for _ in range(len(g.states)):
            fresh = best.copy()
            with np.errstate(divide="ignore"):
                np.maximum.at(fresh, g.targets, best[:, None] + np.log(g.benefits))
            if np.allclose(fresh, best):
                break
            best = fresh
        assert np.log(found.values[0]) == pytest.approx(best.max(), abs=1e-6)
        path = followed(g.targets, found.policy)
        assert best[path[-1]] == pytest.approx(best.max(), abs=1e-6)
        assert found.policy[path[-1]] == RESTING
        at_last_level = g.levels == g.levels[path[-1]]
        assert value[path[-1]] == pytest.approx(value[at_last_level].max(), rel=1e-6)


def test_cycles_that_gain_have_no_fixed_point() -> None:
    to = np.array([[1, 0], [0, 1]])
    assert iterate(to, np.array([[2.0, 1.0], [0.6, 1.0]])).iterations is None
    assert iterate(to, np.array([[2.0, 1.0], [0.5, 1.0]])).iterations is not None
    assert followed(to, iterate(to, np.array([[2.0, 1.0], [0.5, 1.0]])).policy) == [0, 1]


def test_the_experiment_on_a_small_product() -> None:
    programs = Programs.of(operator_of(gemm("payoff", 8, 16, 32)).task)
    space, forms = programs.spaces[0]
    found = experiment(space, forms[0], Annealing(walks=4, vthreads=False))
    assert found["payoff"] == pytest.approx(found["along"])
    assert found["rests"]
    assert found["printed_log10"] < -10
    assert found["walks_best"] >= 1.0


def test_a_run_goes_on_and_says_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def part(run: command.Run) -> Any:
        for name in run.operators:
            yield name, lambda n=name: calls.append(n) or {"budget": run.budget}

    monkeypatch.setattr(command, "PARTS", {"part": part})
    store = Store(tmp_path / "r.json")

    def run(budget: int, deadline: float) -> int:
        return command._part("part", command.Run(store, ("a", "b"), budget, deadline), again=False)

    assert run(10, 0.0) == 2
    assert run(10, float("inf")) == 0
    assert run(10, float("inf")) == 0
    assert calls == ["a", "b"]
    assert Store(tmp_path / "r.json").all("part") == {"a": {"budget": 10}, "b": {"budget": 10}}
    assert run(20, float("inf")) == 0
    assert calls == ["a", "b", "a", "b"]


def entrant(ns: float, **more: Any) -> dict[str, Any]:
    return {"ns": ns, "spread": 0.01, "predicted": ns, "program": "", **more}


def test_the_table_says_what_falls_short(tmp_path: Path) -> None:
    store = Store(tmp_path / "r.json")
    first, second = names()[:2]
    rest = {"printed": entrant(120.0), "without vthreads": entrant(110.0), "roller": entrant(150.0)}
    store.put("duel", first, {"gensor": entrant(100.0), "best": entrant(98.0, tried=150), **rest})
    store.put("duel", second, {"gensor": entrant(100.0), "best": entrant(80.0, tried=150), **rest})
    shown = tables.text(store)
    assert "1 of 2 operators reach 95% of the best program found" in shown
    assert f"| {first} | gemm | 0.1 | 0.98 | 1.50 | 1.10 | 1.20 | 150 | 1% |" in shown
    assert "| geometric mean |  |  | 0.89 | 1.50 | 1.10 | 1.20 |  |  |" in shown
    assert "the graph has 73%, virtual threads 27%" in shown


def test_unknown_operators_are_named() -> None:
    with pytest.raises(ValueError, match="there is no operator 'gem'; use one of gemm_m512"):
        operator("gem")
    assert len(set(names())) == 20
