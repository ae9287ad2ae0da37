"""Order of a tuning by reuse of programs across kernels, after ETO: kernels that others start from are tuned first.

A plan (`optimize/reuse/plan.py`) says which kernels get a full search, and near whose tuned program the others are
searched. Its bridges, small operators that no model needs, are kernels without calls. When every kernel has had what
the plan gives it, the rest of the budget goes where the task scheduler expects most, by full searches.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tilewright.driver.tune.kernel_tuning import KernelTuning
from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel, TuningPlan, loop_group
from tilewright.driver.tune.recorded_sources import RecordedSource
from tilewright.driver.tune.scheduler import TaskProgress, next_task
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.reuse.loop_vector import LoopVector
from tilewright.optimize.reuse.plan import Operator, ReusePlan, StepKind, plan_reuse
from tilewright.optimize.reuse.recognize import tile_program_of
from tilewright.optimize.reuse.reusable_task import ReusableTask, bridge_task
from tilewright.optimize.reuse.reuse_graph import BridgeChoice
from tilewright.optimize.reuse.reuse_search import ReuseSearch, ReuseSource
from tilewright.optimize.search.interface import Search

FullSearch = Callable[[PlannedKernel, Sequence[Measurement]], Search]
"""Starts the full search of a kernel."""

FindSources = Callable[[Collection[LoopVector]], Sequence[RecordedSource]]
"""Finds recorded programs that operators with these loop vectors may start from."""


@dataclass(frozen=True, slots=True, eq=False)
class ReuseOrder:
    """A plan of reuse over the kernels of a tuning.

    Attributes:
        plan: the kernels of the model, then bridges.
        reuse: the steps.
        kernel_of: per step the position of its kernel in `plan.kernels`; None for recorded programs, and for a bridge
            that cannot be constructed.
        recorded: the recorded programs, by the position that steps name.
        reusables: per kernel its loop vector and tile programs; None for kernels that can't reuse programs.
    """

    plan: TuningPlan
    reuse: ReusePlan
    kernel_of: tuple[int | None, ...]
    recorded: tuple[RecordedSource, ...]
    reusables: tuple[ReusableTask | None, ...]

    @staticmethod
    def of(
        plan: TuningPlan, recorded: FindSources | None = None, bridges: BridgeChoice = BridgeChoice.ONE_HOP
    ) -> "ReuseOrder":
        """The order of the kernels of a model.

        Args:
            plan: the kernels.
            recorded: finds programs of other models' kernels that operators with these loop vectors may start from.
            bridges: which bridges may be tuned.

        Raises:
            OptionError: networkx is not installed.
        """
        kernels = list(plan.kernels)
        reusables = [None if k.task.func.symbols else ReusableTask.of(k.task, plan.machine) for k in kernels]
        operators = [
            Operator(k.label, None if r is None else r.vector, k.predicted_total)
            for k, r in zip(kernels, reusables, strict=True)
        ]
        sources = [] if recorded is None else recorded([r.vector for r in reusables if r is not None])
        known = [Operator(s.label, s.vector) for s in sources]
        reuse = plan_reuse(operators, known, bridges=bridges)
        kernel_of: list[int | None] = []
        for step in reuse.steps:
            position = None if step.kind is StepKind.RECORDED else step.operator
            if step.is_bridge and step.vector is not None:
                like = next(r for r in reusables if r is not None and r.vector.has_kind_of(step.vector))
                task = bridge_task(step.vector, like)
                kernel = None if task is None else _bridge_kernel(task, plan)
                if task is not None and kernel is not None:
                    position = len(kernels)
                    kernels.append(kernel)
                    reusables.append(task)
            kernel_of.append(position)
        return ReuseOrder(
            replace(plan, kernels=tuple(kernels)), reuse, tuple(kernel_of), tuple(sources), tuple(reusables)
        )


class ReuseSchedule:
    """Picks kernels in the order of a plan, and starts their searches near the programs of their sources.

    Args:
        order: the plan.
        full_search: starts a search that reuses nothing.
        trials: number of programs of the whole tuning; infinite where it has no limit.
    """

    def __init__(self, order: ReuseOrder, full_search: FullSearch, trials: float) -> None:
        self._reuse_order, self._full_search = order, full_search
        self._budgets = order.reuse.budgets(trials)
        self._kernels: Sequence[KernelTuning] = ()

    def bind(self, kernels: Sequence[KernelTuning]) -> None:
        """Lets it see how far kernels are."""
        self._kernels = kernels

    def start_search(self, kernel: PlannedKernel, history: Sequence[Measurement]) -> Search:
        """The search of a kernel: near its source's program first, if that is known, and then a full one."""
        source = self._source_of(kernel)
        position = next(k for k, x in enumerate(self._reuse_order.plan.kernels) if x is kernel)
        reusable = self._reuse_order.reusables[position]
        if source is None or reusable is None:
            return self._full_search(kernel, history)
        first = ReuseSearch(reusable, source)
        first.tell(history)
        return ConsecutiveSearches(first, lambda told: self._full_search(kernel, told), history)

    def next(self, tasks: Sequence[TaskProgress]) -> int | None:
        """The kernel of the next round; see `scheduler.next_task`."""
        for step, kernel in enumerate(self._reuse_order.kernel_of):
            if kernel is not None and not self._is_done(step, tasks):
                return kernel
        return next_task(tasks)

    def _is_done(self, step: int, tasks: Sequence[TaskProgress]) -> bool:
        kernel = self._reuse_order.kernel_of[step]
        if kernel is None or tasks[kernel].is_finished or self._reuse_order.reuse.steps[step].kind is StepKind.RECORDED:
            return True
        return self._kernels[kernel].trials >= self._budgets[step]

    def _source_of(self, kernel: PlannedKernel) -> ReuseSource | None:
        """The tuned program that a kernel starts from; None where there is none, or it is no tile program."""
        for step, position in zip(self._reuse_order.reuse.steps, self._reuse_order.kernel_of, strict=True):
            if position is None or self._reuse_order.plan.kernels[position] is not kernel or step.source is None:
                continue
            origin = self._reuse_order.reuse.steps[step.source]
            if origin.kind is StepKind.RECORDED and origin.operator is not None:
                return self._reuse_order.recorded[origin.operator].source
            source = self._reuse_order.kernel_of[step.source]
            reusable = None if source is None else self._reuse_order.reusables[source]
            if source is None or reusable is None:
                return None
            program = tile_program_of(reusable, self._kernels[source].programs[0].trace)
            return None if program is None else ReuseSource(reusable, program)
        return None


class ConsecutiveSearches:
    """A search, and another one after it is exhausted, which learns what the first one was told.

    Args:
        first: the first one.
        following: starts the other one, given what was told.
        history: what the first one was told already.
    """

    def __init__(
        self, first: Search, following: Callable[[Sequence[Measurement]], Search], history: Sequence[Measurement] = ()
    ) -> None:
        self._current, self._following = first, following
        self._measurements = list(history)
        self._is_second = False

    def ask(self, count: int) -> Sequence[Candidate]:
        """The next candidates of the first search that has some."""
        candidates = self._current.ask(count)
        if not candidates and not self._is_second:
            self._current, self._is_second = self._following(self._measurements), True
            candidates = self._current.ask(count)
        return candidates

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """What became of candidates."""
        self._measurements += measurements
        self._current.tell(measurements)


def _bridge_kernel(reusable: ReusableTask, plan: TuningPlan) -> PlannedKernel | None:
    """The kernel of a bridge, without calls; None where nothing can be constructed for it."""
    task = reusable.task
    schedule = plan.compilation.build.optimizer.optimize(task)
    if schedule is None:
        return None
    return PlannedKernel(
        task=task,
        name="bridge",
        nodes=(f"bridge [{reusable.vector}]",),
        calls=0,
        predicted=None,
        operations=0.0,
        group=loop_group(task),
        optimizer=plan.compilation.build.optimizer.name,
        programs=(Candidate(schedule.trace),),
        selector=None,
        points=(MeasurePoint(task, {}, 1.0, 0),),
    )
