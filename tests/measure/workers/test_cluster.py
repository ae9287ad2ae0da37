"""Workers of several machines: exclusive runs, each measurement once, lost machines, broken incumbents."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.workers import simulated_cluster
from tests.measure.workers.simulated_cluster import SimulatedCluster
from tests.optimize.computations import KERNELS
from tests.optimize.tasks import task_of

from tilewright.errors import MeasureError
from tilewright.measure.workers.cluster import MAX_LOSSES, ClusterWorkers
from tilewright.measure.workers.interface import MeasureAnswer, MeasureRequest
from tilewright.measure.workers.transport import Node, Verb
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Timing
from tilewright.schedule.step import Step

TASK = task_of(KERNELS["matmul"]).canonical()


def program(number: int) -> Candidate:
    return Candidate((Step("unroll", (f"loop{number}",)),))


def machines(count: int, cores: int = 1) -> list[Node]:
    return [Node(f"n{k}", cores) for k in range(count)]


def request(*numbers: int, incumbent: int | None = None) -> MeasureRequest:
    return MeasureRequest(TASK, tuple(map(program, numbers)), None if incumbent is None else program(incumbent))


def answers(workers: ClusterWorkers, *requests: MeasureRequest) -> dict[int, MeasureAnswer]:
    for k, r in enumerate(requests):
        workers.submit(k, r)
    received = [workers.wait() for _ in requests]
    return {a.number: a for a in received}


def runs_of(cluster: SimulatedCluster) -> Counter[str]:
    """How often each run was answered."""
    return Counter(text for verb, text in cluster.acknowledged if verb is Verb.RUN)


def test_answers_are_in_the_order_of_the_candidates() -> None:
    cluster = SimulatedCluster(machines(3))
    answer = answers(ClusterWorkers(cluster, 3), request(*range(9), incumbent=99))[0]
    assert [m.candidate for m in answer.measurements] == [program(k) for k in range(9)]
    assert all(isinstance(m.result, Timing) and m.result.incumbent for m in answer.measurements)
    assert answer.seconds == pytest.approx(sum(cluster.busy.values()))


def test_programs_are_built_once_and_incumbents_run_once_by_themselves() -> None:
    cluster = SimulatedCluster(machines(2, cores=4))
    workers = ClusterWorkers(cluster, 2)
    answers(workers, request(1, 2, incumbent=0), request(3, 2, incumbent=0))
    answers(workers, request(4, incumbent=1))
    builds = [json.loads(text)["candidate"] for _, verb, text in cluster.ran if verb is Verb.BUILD]
    assert len(builds) == 5
    alone = [text for _, verb, text in cluster.ran if verb is Verb.RUN and json.loads(text)["incumbent"] is None]
    assert len(alone) == 1


def test_machines_that_only_build_leave_the_others_to_runs() -> None:
    cluster = SimulatedCluster([Node("runner"), Node("builder", 4, runs=False)])
    answers(ClusterWorkers(cluster, 1), request(*range(40), incumbent=50))
    by_machine = Counter((name, verb) for name, verb, _ in cluster.ran)
    assert by_machine["builder", Verb.RUN] == 0
    assert by_machine["builder", Verb.BUILD] > 30


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 12.0)), max_size=2, unique_by=lambda pair: pair[0]),
    st.integers(1, 3),
)
def test_lost_machines_lose_nothing_and_repeat_nothing(losses: list[tuple[int, float]], cores: int) -> None:
    """As many as a job may be lost with before its candidate is given up, less one."""
    lost = {f"n{k}": at for k, at in losses}
    cluster, whole = SimulatedCluster(machines(4, cores), lost=lost), SimulatedCluster(machines(4, cores))
    requests = (request(*range(8), incumbent=20), request(*range(8, 14)), request(14, 15, incumbent=20))
    interrupted, complete = (answers(ClusterWorkers(c, 4), *requests) for c in (cluster, whole))
    for number, answer in complete.items():
        assert interrupted[number].measurements == answer.measurements
    # what a machine answered is never asked for again
    assert set(runs_of(cluster).values()) <= {1}
    assert set(runs_of(cluster)) == set(runs_of(whole))


def test_without_machines_it_says_how_to_go_on() -> None:
    workers = ClusterWorkers(SimulatedCluster(machines(2), lost={"n0": 1.0, "n1": 2.0}), 2)
    workers.submit(0, request(*range(20)))
    with pytest.raises(MeasureError, match="no machine is left"):
        workers.wait()


def test_a_machine_that_joins_later_does_what_is_left() -> None:
    cluster = SimulatedCluster(machines(1), lost={"n0": 3.0}, joined={Node("late"): 2.0})
    answer = answers(ClusterWorkers(cluster, 1), request(*range(10)))[0]
    assert len(answer.measurements) == 10
    assert {name for name, _, _ in cluster.ran} == {"n0", "late"}


@given(st.integers(1, 4))
def test_a_machine_that_answers_with_an_error_is_given_up_and_its_jobs_go_to_others(cores: int) -> None:
    cluster = SimulatedCluster(machines(3, cores), broken={"n1"})
    answer = answers(ClusterWorkers(cluster, 3), request(*range(12), incumbent=20))[0]
    assert answer.error is None
    assert all(isinstance(m.result, Timing) for m in answer.measurements)
    assert cluster.given_up == {"n1": "OSError: no space left"}
    assert set(runs_of(cluster).values()) == {1}


def test_a_candidate_that_brings_machines_down_is_given_up() -> None:
    """Every machine that gets it is lost a second later."""

    class Fragile(SimulatedCluster):
        def start(self, node: str, verb: Verb, job: int, text: str) -> None:
            if verb is Verb.RUN and "loop7" in json.loads(text)["candidate"]["code"]:
                self.lost = {**self.lost, node: self.clock.now + 1e-6}
                self._add_event(self.clock.now + 1e-6, simulated_cluster.Lost(node))
                self.ran.append((node, verb, text))
                return
            super().start(node, verb, job, text)

    cluster = Fragile(machines(MAX_LOSSES + 1))
    answer = answers(ClusterWorkers(cluster, MAX_LOSSES + 1), request(6, 7, 8))[0]
    good, bad, other = (m.result for m in answer.measurements)
    assert isinstance(good, Timing)
    assert isinstance(other, Timing)
    assert isinstance(bad, Failure)
    assert bad.kind is FailureKind.CRASH
    assert f"{MAX_LOSSES} machines were lost" in bad.message


@pytest.mark.parametrize("verb", Verb)
def test_a_broken_incumbent_is_an_error_and_a_broken_candidate_a_failure(
    verb: Verb
) -> None:
    class Failing(SimulatedCluster):
        def _add_event(self, at: float, event: Any, busy: Any = None) -> None:
            if isinstance(event, simulated_cluster.Answered):
                _, asked, text = self._jobs[event.job]
                if asked is verb and "loop5" in json.dumps(json.loads(text)["candidate"]):
                    event = simulated_cluster.Answered(event.job, json.dumps({"failure": ["crash", "SIGSEGV"]}))
            super()._add_event(at, event, busy)

    workers = ClusterWorkers(Failing(machines(2)), 2)
    by_number = answers(workers, request(1, 2, incumbent=5), request(4, 5, 6, incumbent=3))
    broken: Mapping[int, Any] = {k: a.error for k, a in by_number.items()}
    assert isinstance(broken[0], MeasureError)
    assert "the incumbent of task" in str(broken[0])
    assert broken[1] is None
    results = [m.result for m in by_number[1].measurements]
    assert [isinstance(r, Failure) for r in results] == [False, True, False]
    assert answers(workers, request(7, incumbent=3))[0].error is None


def test_an_incumbent_that_cannot_be_prepared_condemns_neither_candidates_nor_machines() -> None:
    """It is an error of that request alone: the next one with this incumbent is measured."""

    class Failing(SimulatedCluster):
        is_failing = True

        def _add_event(self, at: float, event: Any, busy: Any = None) -> None:
            if isinstance(event, simulated_cluster.Answered) and self.is_failing:
                _, verb, text = self._jobs[event.job]
                if verb is Verb.RUN and json.loads(text)["incumbent"]:
                    text = json.dumps({"incumbent_failure": ["timeout", "it was not done"]})
                    event = simulated_cluster.Answered(event.job, text)
            super()._add_event(at, event, busy)

    cluster = Failing(machines(2))
    workers = ClusterWorkers(cluster, 2)
    answer = answers(workers, request(1, 2, 3, incumbent=5))[0]
    assert "the incumbent of task" in str(answer.error)
    assert "timeout" in str(answer.error)
    assert not answer.measurements
    assert not cluster.given_up
    cluster.is_failing = False
    again = answers(workers, request(1, 2, 3, incumbent=5))[0]
    assert all(isinstance(m.result, Timing) for m in again.measurements)
