"""Compilation of a partition's kernels: lower, optimize, verify, prepack. Equal kernels share one function."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.cost.parallel_grains import parallel_grains, threads_may_pay
from tilewright.errors import InternalError, ScheduleError, VerifyError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.graph.fusion import Fusion
from tilewright.graph.kernel import Kernel, with_renamed_params
from tilewright.graph.partition import Unit
from tilewright.graph.program import RuntimeStep
from tilewright.loops.ir import For, Func, LoopKind, walk
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.machine.model import Machine
from tilewright.optimize.constructions import Constructions
from tilewright.optimize.interface import FALLBACK, optimizer_named
from tilewright.optimize.kernel_task import LoweredKernel, TaskContext, lower_kernel
from tilewright.optimize.task import Task, renamed_samples
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Trace
from tilewright.tile.shape_samples import ShapeSamples
from tilewright.verify.verifier import verify


@dataclass(frozen=True, slots=True, eq=False)
class CompiledKernel:
    """One function of the object code; several kernels of a model may share it.

    Attributes:
        name: a C identifier.
        origin: the untransformed loops.
        trace: the schedule steps of the optimizer.
        optimizer: name of the optimizer that scheduled it.
        scheduled: the scheduled loops, with the packing of constants.
        func: the loops that become native code.
        prepacked: the computations of compile time; their outputs are parameters of `func` by name.
        scratch: parameters of `func` that are workspace.
        constants: parameters of `origin` whose data is known at compile time.
        fusion: how the computations of `origin` are fused.
        parallel_grains: its work over its symbols, see `codegen.segment.KernelCall`; None without parallel loops.
        samples: sizes of its symbols that the optimizer scheduled for.
    """

    name: str
    origin: Func
    trace: Trace
    optimizer: str
    scheduled: Func
    func: Func
    prepacked: tuple[Computation, ...]
    scratch: tuple[Buffer, ...]
    constants: frozenset[str]
    fusion: Fusion
    parallel_grains: Expr | None
    samples: ShapeSamples | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BoundKernel:
    """A kernel of the model with the function that computes it, and the sizes that it passes."""

    kernel: Kernel
    compiled: CompiledKernel
    sizes: Mapping[Var, Expr]

    @property
    def arguments(self) -> Mapping[str, Buffer]:
        """The program's buffers by the name of the kernel's parameter."""
        return {p.name: b for p, b in zip(self.kernel.params, self.kernel.arguments, strict=True)}

    @property
    def symbols(self) -> tuple[Expr, ...]:
        """The values of the function's symbols, in their order, over the program's symbols."""
        return tuple(self.sizes.get(v, v) for v in self.compiled.func.symbols)

    @property
    def parallel_grains(self) -> Expr | None:
        """How much work it is over the program's symbols; None where no loop is parallel."""
        grains = self.compiled.parallel_grains
        return None if grains is None else substitute(grains, self.sizes)

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        """The function's workspace buffers with shapes over the program's symbols."""
        return tuple(replace(b, shape=tuple(substitute(n, self.sizes) for n in b.shape)) for b in self.compiled.scratch)


BoundUnit = BoundKernel | View | RuntimeStep


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The program that a unit belongs to: names of its buffers whose data is known at compile time, and what its tasks
    have in common."""

    constants: frozenset[str]
    context: TaskContext


def compile_kernels(
    units: Sequence[Unit],
    sources: Sequence[KernelSource],
    machine: Machine,
    constructions: Constructions,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[BoundUnit, ...]:
    """Binds every kernel to a function.

    Equal kernels (tasks of one hash before sizes are sampled) share a function, scheduled for the sizes of the largest.

    Args:
        units: the units of the partitions of a model's programs in order of execution.
        sources: the program of each unit.
        machine: the machine whose fork/join cost decides which loops run in parallel.
        constructions: those of the preferred optimizer; kernels that it cannot schedule go to the rule.
        progress: called with (done, total) before every kernel.

    Raises:
        InternalError: an optimizer's schedule is not legal.
    """
    lowered = {k: lower_kernel(u, sources[k].constants, sources[k].context) for k, u in _kernels(units)}
    # the first of equal kernels gives the loops, the largest one the sizes
    first: dict[str, LoweredKernel] = {}
    largest: dict[str, ShapeSamples] = {}
    for kernel in lowered.values():
        task = first.setdefault(kernel.key, kernel).task
        if kernel.key not in largest or _sample_volume(kernel.samples) > _sample_volume(largest[kernel.key]):
            largest[kernel.key] = renamed_samples(kernel.samples, kernel.task, task)
    compiled: dict[str, CompiledKernel] = {}
    tasks: dict[str, Task] = {}
    bound: list[BoundUnit] = []
    for k, unit in enumerate(units):
        if not isinstance(unit, Kernel):
            bound.append(unit)
            continue
        if progress is not None:
            progress(sum(isinstance(u, BoundKernel) for u in bound), len(lowered))
        key = lowered[k].key
        if key not in compiled:
            task = constructions.representative(replace(first[key].task, samples=largest[key]))
            named = replace(task, func=replace(task.func, name=_function_name(len(compiled), unit.label)))
            tasks[key], compiled[key] = task, _compile_kernel(named, machine, constructions, unit.label)
        bound.append(_bind(unit, lowered[k], compiled[key], tasks[key]))
    return tuple(bound)


def _kernels(units: Sequence[Unit]) -> Iterator[tuple[int, Kernel]]:
    return ((k, u) for k, u in enumerate(units) if isinstance(u, Kernel))


def _bind(unit: Kernel, lowered: LoweredKernel, compiled: CompiledKernel, task: Task) -> BoundKernel:
    """A kernel with the function of an equal task, whose parameters and symbols may have other names."""
    form = lowered.task.form
    params = dict(zip(form.params, task.form.params, strict=True))
    symbols = zip(task.form.symbols, form.symbols, strict=True)
    sizes = {new: lowered.sizes.get(old, old) for new, old in symbols if new is not old or old in lowered.sizes}
    return BoundKernel(with_renamed_params(unit, params), compiled, sizes)


def _sample_volume(samples: ShapeSamples) -> int:
    """Product of the representative sizes, which orders kernels of the same loops by size."""
    return prod(samples.representative.values())


def distinct_kernels(units: Sequence[BoundUnit]) -> tuple[CompiledKernel, ...]:
    """The functions of the units, each once, in order of first use."""
    return tuple({id(u.compiled): u.compiled for u in units if isinstance(u, BoundKernel)}.values())


def _compile_kernel(task: Task, machine: Machine, constructions: Constructions, label: str) -> CompiledKernel:
    origin, constants = task.func, task.constants
    preferred, fallback = constructions.optimizer_of(task).name, optimizer_named(FALLBACK)
    attempts = {preferred: constructions.schedule} | ({} if preferred == FALLBACK else {FALLBACK: fallback.optimize})
    where = f"kernel {origin.name!r} of {label}" if label else f"kernel {origin.name!r}"
    for optimizer, make_schedule in attempts.items():
        try:
            schedule = schedule_for_threads(make_schedule, task, machine)
            if schedule is None:
                continue
            verify(schedule.func)
            prepacked = prepack_constants(schedule.func, constants)
            if prepacked.func != schedule.func:
                verify(prepacked.func)
        except (ScheduleError, VerifyError) as error:
            raise InternalError(f"optimizer {optimizer!r} made an illegal program: {error}", where=where) from error
        return CompiledKernel(
            origin.name,
            origin,
            schedule.trace,
            optimizer,
            schedule.func,
            prepacked.func,
            prepacked.prepacked,
            prepacked.scratch,
            constants,
            task.fusion,
            _parallel_grains(origin, prepacked.func, machine),
            task.samples,
        )
    raise InternalError("no optimizer applies", where=where)


def schedule_for_threads(
    make_schedule: Callable[[Task], Schedule | None], task: Task, machine: Machine
) -> Schedule | None:
    """The schedule for a task, without parallel loops where threads pay at no size (`cost.parallel_grains`).

    Loops that turn out scalar take longer than vectorised ones, so they may pay for threads where those do not.
    """
    serial = replace(task, threads=1)
    if not threads_may_pay(task.func, machine, vectorized=False):
        return make_schedule(serial)
    if not threads_may_pay(task.func, machine, vectorized=True):
        schedule = make_schedule(serial)
        if schedule is None or _is_vectorized(schedule.func):
            return schedule
    return make_schedule(task)


def _is_vectorized(func: Func) -> bool:
    return any(isinstance(s, For) and s.kind is LoopKind.VECTORIZED for s, _ in walk(func.body))


def _parallel_grains(origin: Func, scheduled: Func, machine: Machine) -> Expr | None:
    kinds = {s.kind for s, _ in walk(scheduled.body) if isinstance(s, For)}
    return parallel_grains(origin, machine, LoopKind.VECTORIZED in kinds) if LoopKind.PARALLEL in kinds else None


def _function_name(index: int, label: str) -> str:
    """`k3_conv_relu` from "conv1 (Conv) + relu1 (Relu)"; the number makes it unique."""
    operators = dict.fromkeys(re.findall(r"\((\w+)\)", label))
    text = "_".join(re.sub(r"\W+", "_", op, flags=re.ASCII).lower() for op in operators)
    return f"k{index}_{text[:40]}".rstrip("_")
