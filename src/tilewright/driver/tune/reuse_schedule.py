"""Schedule of a tuning along a plan of reuse: sources before what starts from them, independent branches at once.

When a kernel is tuned that others may start from, its sketch is known, so the rest is planned anew, with the costs of
the searches near its program (ETO, Section 6.1). When every kernel has had what the plan gives it, the rest of the
budget goes where the task scheduler expects most, by full searches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.driver.tune.consecutive_searches import ConsecutiveSearches
from tilewright.driver.tune.kernel_tuning import KernelTuning
from tilewright.driver.tune.plan import PlannedKernel
from tilewright.driver.tune.protocols import StartSearch
from tilewright.driver.tune.reuse_order import ReuseOrder, bridge_of, operator_of
from tilewright.driver.tune.scheduler import TaskProgress, next_task
from tilewright.optimize.measurer import Measurement
from tilewright.optimize.reuse.loop_vector import LoopVector
from tilewright.optimize.reuse.plan import Operator, ReusePlan, StepKind, replan
from tilewright.optimize.reuse.recognize import tile_program_of
from tilewright.optimize.reuse.reuse_search import ReuseSearch, ReuseSource, search_size_of
from tilewright.optimize.reuse.search_cost import PROCESSOR_SEARCH, SearchSize
from tilewright.optimize.search.interface import Search


class Kernels(Protocol):
    """The kernels of a session."""

    @property
    def kernels(self) -> Sequence[KernelTuning]:
        """How far they are."""
        ...

    def add(self, kernel: PlannedKernel) -> int:
        """Takes a kernel in, which gets the next position."""
        ...


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """A kernel of the plan.

    Attributes:
        kernel: its position.
        source: the position of the kernel, or the recorded program, that it starts from; None for a full search.
        budget: programs that are measured of it.
    """

    kernel: int
    source: int | ReuseSource | None
    budget: int


class ReuseSchedule:
    """Picks kernels in the order of a plan, and starts their searches near the programs of their sources.

    Args:
        order: the plan.
        full_search: starts a search that reuses nothing.
        trials: number of programs of the whole tuning; infinite where it has no limit.

    Attributes:
        plans: the first plan, and those that took its place.
    """

    def __init__(self, order: ReuseOrder, full_search: StartSearch, trials: float) -> None:
        self._reuse_order, self._full_search, self._trials = order, full_search, trials
        self._reusables = list(order.reusables)
        self._session: Kernels | None = None
        self._replanned: set[int] = set()
        self.plans: list[ReusePlan] = [order.reuse]
        recorded = [r.source for r in order.recorded]
        self._scheduled = _scheduled(order.reuse, order.kernel_of, recorded, trials)

    def bind(self, session: Kernels) -> None:
        """Lets it see how far kernels are, and add bridges."""
        self._session = session

    def start_search(self, kernel: PlannedKernel, history: Sequence[Measurement]) -> Search:
        """The search of a kernel: near its source's program first, if that is known, and then a full one."""
        tunings = self._session.kernels if self._session is not None else ()
        kernels = [t.kernel for t in tunings] or self._reuse_order.plan.kernels
        position = next(k for k, x in enumerate(kernels) if x is kernel)
        step = next((s for s in self._scheduled if s.kernel == position), None)
        source = None if step is None else self._program_of(step.source)
        reusable = self._reusables[position]
        if source is None or reusable is None:
            return self._full_search(kernel, history)
        first = ReuseSearch(reusable, source)
        first.tell(history)
        return ConsecutiveSearches(first, lambda told: self._full_search(kernel, told), history)

    def next(self, tasks: Sequence[TaskProgress]) -> int | None:
        """The kernel of the next round; see `scheduler.next_task`.

        Kernels whose sources are done may be under way at once. None where all that is left of the plan waits for
        rounds in flight.
        """
        done = {s.kernel for s in self._scheduled if _is_done(s, tasks)}
        if self._session is not None and self._is_boundary(done, tasks):
            self._plan_rest(self._session, done, tasks)
            return self.next([*tasks, *(t.progress() for t in self._session.kernels[len(tasks) :])])
        for s in self._scheduled:
            is_free = s.kernel not in done and not tasks[s.kernel].is_busy
            if is_free and (not isinstance(s.source, int) or s.source in done):
                return s.kernel
        return None if len(done) < len(self._scheduled) else next_task(tasks)

    def _is_boundary(self, done: set[int], tasks: Sequence[TaskProgress]) -> bool:
        """Whether a full search is done since the last plan, others have not begun, and none is under way."""
        left = [s.kernel for s in self._scheduled if s.kernel not in done]
        tuned = [s.kernel for s in self._scheduled if s.kernel in done and s.source is None]
        is_new = any(k not in self._replanned and self._reusables[k] is not None for k in tuned)
        return is_new and bool(left) and all(not tasks[k].trials and not tasks[k].is_busy for k in left)

    def _plan_rest(self, session: Kernels, done: set[int], tasks: Sequence[TaskProgress]) -> None:
        """Plans what is left of the operators of the model, with tuned ones as sources."""
        self._replanned |= done
        count = len(self._reuse_order.operators)
        tuned = {k: self._size_near(k) for k in sorted(done) if k < count}
        extra: list[tuple[Operator, ReuseSource | int]] = [
            (Operator(r.label, r.vector), r.source) for r in self._reuse_order.recorded
        ]
        for k in sorted(done):
            reusable = self._reusables[k]
            if k >= count and reusable is not None:
                extra.append((operator_of(session.kernels[k].kernel, reusable), k))
        order = self._reuse_order
        plan = replan(order.operators, tuned, [o for o, _ in extra], order.bridges, order.costs)
        kernel_of = [None if s.kind is StepKind.RECORDED else self._position_of(s.operator, s.vector, session)
                     for s in plan.steps]  # fmt: skip
        sources = [*(source for _, source in extra), *sorted(tuned)]
        left = self._trials - sum(tasks[s.kernel].trials for s in self._scheduled if s.kernel in done)
        finished = [s for s in self._scheduled if s.kernel in done]
        self._scheduled = [*finished, *_scheduled(plan, kernel_of, sources, max(1.0, left))]
        self.plans.append(plan)

    def _size_near(self, kernel: int) -> SearchSize:
        """How much a search near the program of a tuned kernel measures."""
        source = self._program_of(kernel)
        return PROCESSOR_SEARCH if source is None else search_size_of(source.program)

    def _position_of(self, operator: int | None, vector: LoopVector | None, session: Kernels) -> int | None:
        """The position of an operator or of a bridge, which is added where it is new; None where it can't be
        constructed."""
        if operator is not None or vector is None:
            return operator
        for k in range(len(self._reuse_order.operators), len(self._reusables)):
            reusable = self._reusables[k]
            if reusable is not None and reusable.vector == vector:
                return k
        bridge = bridge_of(vector, self._reusables, self._reuse_order.plan)
        if bridge is None:
            return None
        self._reusables.append(bridge[0])
        return session.add(bridge[1])

    def _program_of(self, source: int | ReuseSource | None) -> ReuseSource | None:
        """The tuned program of a source; None where there is none, or it is no tile program."""
        if source is None or isinstance(source, ReuseSource):
            return source
        reusable = self._reusables[source]
        if reusable is None or self._session is None:
            return None
        program = tile_program_of(reusable, self._session.kernels[source].programs[0].trace)
        return None if program is None else ReuseSource(reusable, program)


def _scheduled(
    plan: ReusePlan, kernel_of: Sequence[int | None], recorded: Sequence[ReuseSource | int], trials: float
) -> list[ScheduledKernel]:
    """The kernels of a plan; its recorded programs are sources alone."""
    scheduled: list[ScheduledKernel] = []
    for step, kernel, budget in zip(plan.steps, kernel_of, plan.budgets(trials), strict=True):
        if kernel is None:
            continue
        source: int | ReuseSource | None = None
        if step.source is not None:
            origin = plan.steps[step.source]
            is_recorded = origin.kind is StepKind.RECORDED and origin.operator is not None
            source = recorded[origin.operator or 0] if is_recorded else kernel_of[step.source]
        scheduled.append(ScheduledKernel(kernel, source, budget))
    return scheduled


def _is_done(scheduled: ScheduledKernel, tasks: Sequence[TaskProgress]) -> bool:
    task = tasks[scheduled.kernel]
    return not task.is_busy and (task.is_finished or task.trials >= scheduled.budget)
