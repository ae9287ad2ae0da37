"""Order of a tuning by reuse of programs across kernels, after ETO: kernels that others start from are tuned first.

A plan (`optimize/reuse/plan.py`) says which kernels get a full search, and near whose tuned program the others are
searched. Its bridges, small operators that no model needs, are kernels without calls. `reuse_schedule.py` follows it.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel, TuningPlan, loop_group
from tilewright.driver.tune.recorded_sources import RecordedSource
from tilewright.optimize.measurer import Candidate
from tilewright.optimize.reuse.loop_vector import LoopVector
from tilewright.optimize.reuse.plan import Operator, ReusePlan, StepKind, costs_in_seconds, plan_reuse
from tilewright.optimize.reuse.reusable_task import ReusableTask, bridge_task
from tilewright.optimize.reuse.reuse_graph import BridgeChoice, SearchCosts

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
        operators: the kernels of the model as the plan sees them.
        bridges: which bridges may be tuned.
        costs: what searches cost, in seconds.
        reusables: per kernel its loop vector and tile programs; None for kernels that can't reuse programs.
    """

    plan: TuningPlan
    reuse: ReusePlan
    kernel_of: tuple[int | None, ...]
    recorded: tuple[RecordedSource, ...]
    operators: tuple[Operator, ...]
    bridges: BridgeChoice
    costs: SearchCosts
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
        operators = [operator_of(k, r) for k, r in zip(kernels, reusables, strict=True)]
        sources = [] if recorded is None else recorded([r.vector for r in reusables if r is not None])
        known = [Operator(s.label, s.vector) for s in sources]
        costs = costs_in_seconds(operators)
        reuse = plan_reuse(operators, known, bridges, costs)
        kernel_of: list[int | None] = []
        for step in reuse.steps:
            position = None if step.kind is StepKind.RECORDED else step.operator
            bridge = bridge_of(step.vector, reusables, plan) if step.is_bridge and step.vector is not None else None
            if bridge is not None:
                position = len(kernels)
                kernels.append(bridge[1])
                reusables.append(bridge[0])
            kernel_of.append(position)
        return ReuseOrder(
            replace(plan, kernels=tuple(kernels)), reuse, tuple(kernel_of), tuple(sources), tuple(operators), bridges,
            costs, tuple(reusables),
        )


def operator_of(kernel: PlannedKernel, reusable: ReusableTask | None) -> Operator:
    """A kernel as plans of reuse see it."""
    return Operator(kernel.label, None if reusable is None else reusable.vector, kernel.predicted_total,
                    (kernel.predicted or 0.0) * 1e-9)  # fmt: skip


def bridge_of(
    vector: LoopVector, reusables: Sequence[ReusableTask | None], plan: TuningPlan
) -> tuple[ReusableTask, PlannedKernel] | None:
    """A bridge with its kernel, without calls; None where nothing can be constructed for it.

    Args:
        vector: its loops.
        reusables: those that there are, one of its kind among them.
        plan: the kernels of the model.
    """
    like = next(r for r in reusables if r is not None and r.vector.has_kind_of(vector))
    reusable = bridge_task(vector, like)
    if reusable is None:
        return None
    task = reusable.task
    schedule = plan.compilation.build.optimizer.optimize(task)
    if schedule is None:
        return None
    return reusable, PlannedKernel(
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
