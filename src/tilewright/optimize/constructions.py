"""Constructions of one compilation: what an optimizer has made of a task is kept, so that no task is constructed twice.

Estimates (`cost_oracle.py`) and the compilation of kernels share them.
"""

from dataclasses import replace
from typing import Protocol, Self, TypeVar, runtime_checkable

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


class Constructions:
    """The constructions of an optimizer, by the hash of their task.

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
        self._known: dict[str, tuple[Task, Construction | None]] = {}

    def optimizer_of(self, task: Task) -> Optimizer:
        """The optimizer of a task: that of fused chains for one that is."""
        is_fused_chain = task.fusion.pattern is FusionPattern.CHAIN
        return self.chains if is_fused_chain and self.chains is not None else self.optimizer

    def known(self, task: Task) -> Construction | None:
        """What was constructed for a task of this hash; None where nothing was."""
        return self._known.get(_key(task), (task, None))[1]

    def refusal(self, task: Task) -> str:
        """Why there is no estimate of a task."""
        construction = self.known(task)
        name = self.optimizer_of(task).name
        reason = construction.refusal if isinstance(construction, Refusal) else ""
        return reason or f"{name} constructs no program for it"

    def representative(self, task: Task) -> Task:
        """The first task of the same hash that was constructed, whose names may differ; the task itself where there
        is none."""
        return self._known.get(_key(task), (task, None))[0]

    def estimate(self, task: Task) -> float | None:
        """Nanoseconds of the best program; None where the optimizer constructs or estimates none."""
        optimizer = self.optimizer_of(task)
        if not isinstance(optimizer, ConstructingOptimizer):
            return None
        construction = self._construct(optimizer, task)
        return None if construction is None else construction.estimate

    def schedule_programs(self, task: Task) -> ScheduledPrograms | None:
        """The programs of a task, named as the task is; None where the optimizer does not apply.

        Args:
            task: one with the names of its `representative`.
        """
        optimizer = self.optimizer_of(task)
        if not isinstance(optimizer, ConstructingOptimizer):
            self.constructed += 1
            return scheduled(optimizer.optimize(task))
        self.reused += _key(task) in self._known
        return optimizer.schedule_programs(self._construct(optimizer, task), task)

    def _construct(self, optimizer: ConstructingOptimizer[C], task: Task) -> C | None:
        if _key(task) not in self._known:
            self.constructed += 1
            construction = optimizer.construct(task)
            self._known[_key(task)] = (task, None if construction is None else construction.without_search())
        return self._known[_key(task)][1]  # pyright: ignore[reportReturnType] - of the same optimizer


def _key(task: Task) -> str:
    """The hash of a task for any number of threads: programs are constructed before it is decided whether threads run
    them."""
    return (task if task.threads is None else replace(task, threads=None)).hash
