"""Plan of a tuning: the kernels of a model as tasks, with their calls per inference and their constructed programs.

The tasks are those of a compilation, so a program that is found for one is what the next compilation looks for. A
kernel whose sizes are dynamic is measured at several drawn sizes (`draw_sizes.py`).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from tilewright.cost.roofline import count_operations
from tilewright.driver.artifact.plan_units import calls_in_order
from tilewright.driver.compilation import Compilation
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.kernel_builds import KernelBuilds
from tilewright.driver.kernel_build.kernels import BoundKernel, CompiledKernel
from tilewright.driver.tune.draw_sizes import ModelSizes, kernel_sizes
from tilewright.expr.nodes import Expr, const
from tilewright.lower.kernel_variants import KernelVariants, selected_program
from tilewright.machine.model import Machine
from tilewright.optimize.construct.variants import DEFAULT_MAX_VARIANTS
from tilewright.optimize.cost_oracle import data_movement_time
from tilewright.optimize.measurer import Candidate
from tilewright.optimize.task import Task
from tilewright.tile.shape_samples import ShapeSamples


@dataclass(frozen=True, slots=True)
class MeasurePoint:
    """Sizes at which the candidates of a kernel are measured.

    Attributes:
        task: the kernel with these sizes as its only sample; of the same loops for all sizes.
        sizes: the sizes of its symbols by name; empty where all sizes are literal.
        weight: share of the calls, 0 to 1.
        program: index of the constructed program that runs at these sizes.
    """

    task: Task
    sizes: Mapping[str, int]
    weight: float
    program: int


@dataclass(frozen=True, slots=True, eq=False)
class PlannedKernel:
    """A kernel to tune.

    Attributes:
        task: the kernel in canonical form.
        name: of its function.
        nodes: the model's nodes that it computes, of each kernel that shares the function.
        calls: calls of the function per inference; a loop's body counts once.
        predicted: nanoseconds of a call by the cost model; None where it has no estimate.
        operations: floating-point operations of a call at the first point.
        group: hash of its loops without sizes.
        optimizer: name of the optimizer that constructed the programs.
        programs: one, or several, of which one runs at every call.
        selector: the index of the one that runs, over the task's symbols; None for one.
        points: the sizes at which it is measured, at least one.
        max_programs: the largest number of programs that it may have.
    """

    task: Task
    name: str
    nodes: tuple[str, ...]
    calls: int
    predicted: float | None
    operations: float
    group: str
    optimizer: str
    programs: tuple[Candidate, ...]
    selector: Expr | None
    points: tuple[MeasurePoint, ...]
    max_programs: int = DEFAULT_MAX_VARIANTS

    @property
    def label(self) -> str:
        """Its nodes, or the name of the function where they have no names."""
        first = self.nodes[0] if self.nodes and self.nodes[0] else self.name
        return first if len(self.nodes) < 2 else f"{first} (and {len(self.nodes) - 1} more)"

    @property
    def predicted_total(self) -> float:
        """Predicted nanoseconds per inference; 0 without an estimate."""
        return self.calls * (self.predicted or 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class TuningPlan:
    """What a tuning works on.

    Attributes:
        compilation: the untuned model.
        machine: the machine that the programs are constructed for.
        kernels: those to tune, by predicted time per inference, the longest first.
        sizes: the model's sizes that kernels of dynamic sizes are measured at.
    """

    compilation: Compilation
    machine: Machine
    kernels: tuple[PlannedKernel, ...]
    sizes: ModelSizes


def make_plan(compilation: Compilation, sizes: ModelSizes, resources: BuildResources) -> TuningPlan:
    """The plan for a compilation.

    Args:
        compilation: of the model, for this machine.
        sizes: sizes of the model's symbols to measure at.
        resources: what estimates may use.
    """
    bound = [u for u, _ in calls_in_order(compilation.all_units)]
    calls = Counter(id(u.compiled) for u in bound)
    units: dict[int, dict[int, BoundKernel]] = {}
    for u in bound:
        units.setdefault(id(u.compiled), {})[id(u)] = u
    machine = compilation.build.machine_for(compilation.target)
    functions = compilation.kernels
    with KernelBuilds(compilation.build, compilation.target, resources) as builds:
        reductions = [k.task for k in functions if _is_reduction(units[id(k)])]
        builds.estimate(reductions)
        estimates = {t.hash: builds.constructions.estimate(t).nanoseconds for t in reductions}
    kernels: list[PlannedKernel] = []
    for k in functions:
        own = tuple(units[id(k)].values())
        constructed = estimates.get(k.task.hash)
        predicted = data_movement_time(own[0].kernel, machine) if constructed is None else next(iter(constructed), None)
        planned = _planned(k, own, calls[id(k)], predicted, sizes)
        kernels.append(replace(planned, max_programs=max(len(planned.programs), compilation.build.max_variants or 1)))
    ordered = sorted(kernels, key=lambda k: -k.predicted_total)
    return TuningPlan(compilation, machine, tuple(ordered), sizes)


def _is_reduction(units: Mapping[int, BoundKernel]) -> bool:
    return any(s.is_reduction for u in units.values() for s in u.kernel.stages)


def _planned(
    compiled: CompiledKernel, units: Sequence[BoundKernel], calls: int, predicted: float | None, sizes: ModelSizes
) -> PlannedKernel:
    task, code = compiled.task, compiled.func
    selector = code.selector if isinstance(code, KernelVariants) else None
    points: list[MeasurePoint] = []
    for drawn, weight in kernel_sizes(task.func.symbols, units, sizes):
        samples = ShapeSamples(drawn, (drawn,)) if drawn else None
        at = task.with_samples(samples) if drawn else task
        program = selected_program(selector, drawn, len(compiled.programs))
        points.append(MeasurePoint(at, {v.name: n for v, n in drawn.items()}, weight, program))
    values = {v: const(points[0].sizes[v.name]) for v in task.func.symbols}
    return PlannedKernel(
        task=task,
        name=compiled.name,
        nodes=tuple(u.kernel.label for u in units),
        calls=calls,
        predicted=predicted,
        operations=count_operations(task.func, values).flops,
        group=loop_group(task),
        optimizer=compiled.optimizer,
        programs=tuple(Candidate(p.trace) for p in compiled.programs),
        selector=selector,
        points=tuple(points),
    )


def loop_group(task: Task) -> str:
    """Hash of a task's loops with every size replaced, equal for kernels that differ in sizes alone."""
    described: dict[str, Any] = dict(task.identity)
    text = re.sub(r"\d+", "#", f"{described['func']} {described['constants']} {described['fusion']}")
    return sha256(text.encode()).hexdigest()[:16]
