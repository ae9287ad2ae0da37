"""Sessions on machines that are replaced by a clock: how well they are used, and what a lost one changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest
from tests.driver.tune.fakes import CountingSearch, MemoryStore, planned
from tests.measure.workers.simulated_cluster import SimulatedCluster
from tests.optimize.computations import Program, product
from tests.optimize.tasks import task_of

from tilewright.driver.tune.budget import Budget
from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel, TuningPlan
from tilewright.driver.tune.session import EndReason, Instruments, SessionResult, TuningSession
from tilewright.measure.workers.cluster import ClusterWorkers
from tilewright.measure.workers.transport import Node
from tilewright.optimize.measurer import Measurement, Timing

KERNELS, TRIALS = 24, 800

PRODUCTS = tuple(
    task_of(Program([product(8 + k, 16, 4)], {}, frozenset({"w"}))).canonical() for k in range(KERNELS)
)


def kernels(count: int = KERNELS) -> tuple[PlannedKernel, ...]:
    return tuple(
        replace(planned(calls=1 + k % 5), task=task, name=f"k{k}", points=(MeasurePoint(task, {}, 1.0, 0),))
        for k, task in enumerate(PRODUCTS[:count])
    )


@dataclass
class SimulatedSession:
    """A session on simulated machines."""

    nodes: int
    lost: Mapping[str, float] = field(default_factory=dict)
    trials: int = TRIALS
    tuned: tuple[PlannedKernel, ...] = field(default_factory=kernels)

    def __post_init__(self) -> None:
        self.cluster = SimulatedCluster([Node(f"n{k}") for k in range(self.nodes)], lost=self.lost)
        self.store = MemoryStore()

    def run(self, machines: int | None = None) -> SessionResult:
        """Tunes until the trials are done, with as many rounds at once as for `machines`."""

        def start_search(kernel: PlannedKernel, history: Sequence[Measurement]) -> CountingSearch:
            return CountingSearch(10_000)

        plan = cast(TuningPlan, SimpleNamespace(kernels=self.tuned))
        workers = ClusterWorkers(self.cluster, machines or self.nodes)
        tools = Instruments(workers, self.store)
        session = TuningSession(plan, tools, start_search, Budget(trials=self.trials), self.cluster.clock)
        return session.finish(session.run().end)

    @property
    def measured(self) -> dict[str, list[object]]:
        """What the store holds: per kernel, programs with their times, without order."""
        return {
            task: sorted((str(m.candidate), cast(Timing, m.result).nanoseconds) for m in rows)
            for task, rows in self.store.measured.items()
        }


@pytest.fixture(scope="module")
def alone() -> SimulatedSession:
    session = SimulatedSession(1)
    assert session.run(machines=8).trials == TRIALS
    return session


def test_eight_machines_are_nearly_eight_times_as_fast(alone: SimulatedSession) -> None:
    cluster = SimulatedSession(8)
    result = cluster.run()
    assert (result.end, result.trials) == (EndReason.TRIALS, TRIALS)
    assert alone.cluster.clock() / (8 * cluster.cluster.clock()) >= 0.9


def test_the_number_of_machines_does_not_decide_what_is_measured(alone: SimulatedSession) -> None:
    """Only the number of rounds at once does, which is that of the machines at the start."""
    cluster = SimulatedSession(3)
    cluster.run(machines=8)
    assert cluster.measured == alone.measured


@pytest.mark.parametrize("moment", [0.01, 0.8])
def test_a_killed_machine_changes_no_result(alone: SimulatedSession, moment: float) -> None:
    cluster = SimulatedSession(4, lost={"n2": moment * alone.cluster.clock() / 4})
    result = cluster.run(machines=8)
    assert result.trials == TRIALS
    assert cluster.measured == alone.measured
    assert cluster.store.choices == alone.store.choices
    # what was acknowledged was not measured again, and the others did what the lost one had in hand
    assert len(cluster.cluster.acknowledged) == len(alone.cluster.acknowledged)
    assert len(cluster.cluster.ran) - len(cluster.cluster.acknowledged) <= 1


def test_one_kernel_alone_has_several_machines() -> None:
    one, several = (SimulatedSession(n, trials=64, tuned=kernels(1)) for n in (1, 4))
    for session in (one, several):
        session.run()
    assert several.measured == one.measured
    assert one.cluster.clock() / several.cluster.clock() > 2.0
