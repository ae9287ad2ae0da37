"""Constructions of one compilation: what an optimizer has made of a task is kept, so that no task is constructed twice.

Estimates (`cost_oracle.py`) and the compilation of kernels share them. Tasks are in canonical form, so that a task of
one hash is the same everywhere.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar, runtime_checkable

from tilewright.errors import TilewrightError
from tilewright.graph.fusion import FusionPattern
from tilewright.optimize.interface import Optimizer, ScheduledPrograms, scheduled
from tilewright.optimize.task import Task


class Construction(Protocol):
    """What an optimizer constructed for a task, before it is lowered."""

    @property
    def nanoseconds(self) -> tuple[float, ...]:
        """Times of the programs by the cost model, best first."""
        ...

    @property
    def estimate(self) -> float | None:
        """Nanoseconds of the kernel by the cost model; None where there is no program."""
        ...

    def without_search(self) -> Self:
        """The same without the states of the search, which take megabytes."""
        ...


@runtime_checkable
class Refusal(Protocol):
    """A construction that says why it has no program."""

    @property
    def refusal(self) -> str:
        """Why; empty where it has one."""
        ...


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of a task's programs without them.

    Attributes:
        nanoseconds: times of the programs by the cost model, best first.
        refusal: why there is none; empty where there is one, or where the optimizer gives no reason.
    """

    nanoseconds: tuple[float, ...]
    refusal: str = ""


C = TypeVar("C", bound=Construction)


@runtime_checkable
class ConstructingOptimizer(Optimizer, Protocol[C]):
    """An optimizer that chooses programs by estimated time before it lowers one of them."""

    def construct(self, task: Task) -> C | None:
        """The best programs; None where the optimizer does not apply to the task."""
        ...

    def schedule_programs(self, construction: C | None, task: Task) -> ScheduledPrograms | None:
        """The schedules of the variants, or of the best program that can be lowered; None where there is none."""
        ...


@runtime_checkable
class JointOptimizer(ConstructingOptimizer[C], Protocol[C]):
    """An optimizer that constructs several tasks faster together than one after the other."""

    def construct_all(self, tasks: Sequence[Task]) -> list[C | None]:
        """What `construct` makes of each."""
        ...


class Constructions:
    """The constructions of an optimizer, by the hash of their task, and estimates that others made.

    Attributes:
        optimizer: the optimizer.
        chains: the optimizer of fused chains; None where there are none.
        constructed: number of tasks that it has worked on, each once.
        reused: number of schedules that were made from constructions of earlier estimates.
    """

    def __init__(self, optimizer: Optimizer, chains: Optimizer | None = None) -> None:
        self.optimizer, self.chains = optimizer, chains
        self.constructed = 0
        self.reused = 0
        self._known: dict[str, Construction | None] = {}
        # what `construct_all` has made, until it is used
        self._constructed_ahead: set[str] = set()
        self._estimates: dict[str, Estimate] = {}

    def optimizer_of(self, task: Task) -> Optimizer:
        """The optimizer of a task: that of fused chains for one that is."""
        is_fused_chain = task.fusion.pattern is FusionPattern.CHAIN
        return self.chains if is_fused_chain and self.chains is not None else self.optimizer

    def known(self, task: Task) -> Construction | None:
        """What was constructed for a task of this hash; None where nothing was."""
        return self._known.get(construction_key(task))

    def has_constructed(self, key: str) -> bool:
        """Whether a task of this `construction_key` has been constructed here."""
        return key in self._known

    def has_estimate(self, task: Task) -> bool:
        """Whether `estimate` constructs nothing any more."""
        key = construction_key(task)
        return key in self._known or key in self._estimates

    def learn(self, task: Task, estimate: Estimate) -> None:
        """Takes over the estimate of a task that was made elsewhere, by an equal optimizer."""
        self._estimates.setdefault(construction_key(task), estimate)

    def construct_all(self, tasks: Iterable[Task]) -> None:
        """Constructs what nothing is known of, together where the optimizer can, for later calls for the same tasks.

        Where that fails, these calls do it, and say so.
        """
        optimizer = self.optimizer
        missing = {construction_key(t): t for t in tasks if self.optimizer_of(t) is optimizer}
        missing = {key: t for key, t in missing.items() if key not in self._known and key not in self._estimates}
        if len(missing) > 1 and isinstance(optimizer, JointOptimizer):
            with suppress(TilewrightError, RecursionError):
                constructions = optimizer.construct_all(list(missing.values()))
                for key, construction in zip(missing, constructions, strict=True):
                    self._remember(key, construction)
                self._constructed_ahead |= missing.keys()

    def estimate(self, task: Task) -> Estimate:
        """The times of the best programs of a task in canonical form; constructs them where nothing is known."""
        key = construction_key(task)
        if key not in self._known and key in self._estimates:
            return self._estimates[key]
        optimizer = self.optimizer_of(task)
        if not isinstance(optimizer, ConstructingOptimizer):
            return Estimate((), f"{optimizer.name} constructs no program for it")
        construction = self._construct(optimizer, task)
        if construction is not None and construction.nanoseconds:
            first = construction.estimate
            return Estimate((construction.nanoseconds[0] if first is None else first, *construction.nanoseconds[1:]))
        reason = construction.refusal if isinstance(construction, Refusal) else ""
        return Estimate((), reason or f"{optimizer.name} constructs no program for it")

    def schedule_programs(self, task: Task) -> ScheduledPrograms | None:
        """The programs of a task in canonical form; None where the optimizer does not apply."""
        optimizer = self.optimizer_of(task)
        if not isinstance(optimizer, ConstructingOptimizer):
            self.constructed += 1
            return scheduled(optimizer.optimize(task))
        key = construction_key(task)
        self.reused += key in self._known and key not in self._constructed_ahead
        return optimizer.schedule_programs(self._construct(optimizer, task), task)

    def _construct(self, optimizer: ConstructingOptimizer[C], task: Task) -> C | None:
        key = construction_key(task)
        if key not in self._known:
            self._remember(key, optimizer.construct(task))
        self._constructed_ahead.discard(key)
        return self._known[key]  # pyright: ignore[reportReturnType] - of the same optimizer

    def _remember(self, key: str, construction: Construction | None) -> None:
        self.constructed += 1
        self._known[key] = None if construction is None else construction.without_search()


def construction_key(task: Task) -> str:
    """The hash of a task for any number of threads and any literals: programs are constructed before it is decided
    whether threads run them, and no estimate depends on the value of a literal. Fused chains keep their literals."""
    any_threads = task.with_threads(None)
    return any_threads.hash if task.fusion.pattern is FusionPattern.CHAIN else any_threads.hash_without_literals
