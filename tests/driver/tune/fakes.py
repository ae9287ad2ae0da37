"""A measurer, a search, a store and a clock without hardware, for sessions whose results are known in advance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from tests.optimize.computations import KERNELS
from tests.optimize.tasks import task_of

from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel
from tilewright.driver.tune.protocols import KernelChoice, StoredMeasurement
from tilewright.driver.tune.session import Instruments
from tilewright.errors import MeasureError
from tilewright.expr.nodes import Expr
from tilewright.measure.workers.interface import Effort
from tilewright.measure.workers.local import LocalWorkers
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Measurement, Timing
from tilewright.optimize.task import Task
from tilewright.schedule.step import Step
from tilewright.tile.shape_samples import ShapeSamples, value_of

CONSTRUCTED = -1
"""Number of the constructed program."""


def program(number: int) -> Candidate:
    """A candidate that stands for a number."""
    return Candidate((Step("unroll", (f"loop{number}",)),))


def number_of(candidate: Candidate) -> int:
    """The number of `program`."""
    return int(str(candidate.trace[0].args[0]).removeprefix("loop"))


@dataclass
class Clock:
    """A clock that only moves when something is measured."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


Times = Callable[[int, Mapping[str, int]], float | None]
"""Nanoseconds of a program at sizes; None where it fails."""


@dataclass
class FakeMeasurer:
    """Answers with the times of a function, with noise.

    Attributes:
        times: the true times.
        clock: moves by `seconds` with every candidate.
        noise: relative standard deviation of an answer.
        spread: that its timings state.
        interrupt_after: candidates after which there is an interruption, by default Ctrl-C.
    """

    times: Times
    clock: Clock
    seconds: float = 1.0
    noise: float = 0.0
    spread: float = 0.0
    interrupt_after: int | None = None
    interruption: BaseException = field(default_factory=KeyboardInterrupt)
    is_broken: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    count: int = 0

    def measure(
        self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
    ) -> list[Measurement]:
        if self.is_broken:
            raise MeasureError("no worker process can be started", where="measurer")
        samples = task.samples or ShapeSamples.of(task.func.symbols)
        sizes = {v.name: n for v, n in samples.representative.items()}
        return [Measurement(c, self._answer(c, incumbent, sizes)) for c in candidates]

    def _answer(self, candidate: Candidate, incumbent: Candidate | None, sizes: Mapping[str, int]) -> Timing | Failure:
        self.count += 1
        self.clock.now += self.seconds
        if self.interrupt_after is not None and self.count > self.interrupt_after:
            raise self.interruption
        ns = self.times(number_of(candidate), sizes)
        beside = None if incumbent is None else self.times(number_of(incumbent), sizes)
        if ns is None:
            return Failure(FailureKind.WRONG_ANSWER, "it differs")
        ns *= 1 + self.noise * float(self.rng.standard_normal())
        return Timing(ns, self.spread, ns, 5, 5, 0.0, False, beside)


@dataclass
class CountingSearch:
    """Proposes the numbers from 0 on.

    Attributes:
        limit: how many programs there are.
        learned: what it was told.
    """

    limit: int
    learned: list[Measurement] = field(default_factory=list)
    asked: int = 0

    def ask(self, count: int) -> list[Candidate]:
        seen = {number_of(m.candidate) for m in self.learned}
        fresh = list(islice((k for k in range(self.asked, self.limit) if k not in seen), count))
        self.asked = fresh[-1] + 1 if fresh else self.limit
        return [program(k) for k in fresh]

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self.learned += measurements


@dataclass
class MemoryStore:
    """A store that ends with the test."""

    measured: dict[str, list[StoredMeasurement]] = field(default_factory=dict)
    choices: dict[str, KernelChoice] = field(default_factory=dict)

    def history(self, kernel: PlannedKernel) -> list[StoredMeasurement]:
        return self.measured.get(kernel.task.hash, [])

    def add(self, kernel: PlannedKernel, point: MeasurePoint, measurements: Sequence[Measurement]) -> None:
        rows = [StoredMeasurement(m.candidate, point.sizes, m.result) for m in measurements]
        self.measured.setdefault(kernel.task.hash, []).extend(rows)

    def chosen(self, kernel: PlannedKernel) -> KernelChoice | None:
        return self.choices.get(kernel.task.hash)

    def choose(self, kernel: PlannedKernel, choice: KernelChoice) -> None:
        self.choices[kernel.task.hash] = choice


@lru_cache
def _task(name: str) -> Task:
    return replace(task_of(KERNELS[name]).canonical(), samples=None)


def planned(
    name: str = "matmul", calls: int = 1, sizes: Sequence[int] = (), programs: int = 1, selector: Expr | None = None
) -> PlannedKernel:
    """A kernel of the tests' computations; its symbol, if any, is measured at `sizes`."""
    task = _task(name)
    points = [MeasurePoint(task, {}, 1.0, 0)]
    if sizes:
        (symbol,) = task.func.symbols
        points = [
            MeasurePoint(task.with_samples(ShapeSamples({symbol: n}, ({symbol: n},))), {symbol.name: n},
                         1 / len(sizes), 0 if selector is None else value_of(selector, {symbol: n}))
            for n in sizes
        ]  # fmt: skip
    constructed = tuple(program(CONSTRUCTED - k) for k in range(programs))
    return PlannedKernel(
        task, "k0_kernel", (f"{name} (MatMul)",), calls, 100.0, 1e6, name, "gensor", constructed, selector,
        tuple(points),
    )  # fmt: skip


def instruments(measurer: FakeMeasurer, store: MemoryStore) -> Instruments:
    """One measurer for all efforts."""
    return Instruments(LocalWorkers(dict.fromkeys(Effort, measurer), measurer.clock), store)
