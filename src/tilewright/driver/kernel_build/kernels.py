"""The functions of a partition's kernels. Equal kernels share one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.cost.parallel_grains import parallel_grains
from tilewright.driver.kernel_build.build_kernel import BuiltKernel, BuiltProgram
from tilewright.driver.kernel_build.kernel_builds import KernelBuilds, KernelProgress
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.graph.fusion import Fusion
from tilewright.graph.kernel import Kernel, with_renamed_params
from tilewright.graph.partition import Unit
from tilewright.graph.program import RuntimeStep
from tilewright.loops.ir import For, Func, LoopKind, walk
from tilewright.lower.kernel_variants import KernelCode, programs_of
from tilewright.machine.model import Machine
from tilewright.optimize.interface import ProgramEstimate
from tilewright.optimize.kernel_task import KernelTask, TaskContext, make_kernel_task
from tilewright.optimize.task import Task, renamed_samples
from tilewright.tile.shape_samples import ShapeSamples


@dataclass(frozen=True, slots=True, eq=False)
class CompiledKernel:
    """One function of the object code; several kernels of a model may share it.

    Attributes:
        name: a C identifier.
        task: the kernel in canonical form.
        symbol_names: names of its symbols in the model, by their names in the task.
        origin: the untransformed loops.
        optimizer: name of the optimizer that scheduled it.
        programs: one, or several, of which one runs at every call.
        func: the loops that become native code.
        prepacked: the computations of compile time; their outputs are parameters of `func` by name.
        scratch: per program the parameters of `func` that are workspace.
        parallel_grains: its work over its symbols, see `codegen.segment.KernelCall`; None without parallel loops.
        code: its object file; empty where it has not been generated.
        estimates: by which its selector chooses among programs, over its symbols; empty where it chooses otherwise.
    """

    name: str
    task: Task
    symbol_names: Mapping[str, str]
    origin: Func
    optimizer: str
    programs: tuple[BuiltProgram, ...]
    func: KernelCode
    prepacked: tuple[Computation, ...]
    scratch: tuple[tuple[Buffer, ...], ...]
    parallel_grains: Expr | None
    code: bytes = b""
    estimates: tuple[ProgramEstimate, ...] = ()

    @property
    def constants(self) -> frozenset[str]:
        """Parameters of `origin` whose data is known at compile time."""
        return self.task.constants

    @property
    def fusion(self) -> Fusion:
        """How the computations of `origin` are fused."""
        return self.task.fusion

    @property
    def samples(self) -> ShapeSamples | None:
        """Sizes of its symbols that the optimizer scheduled for."""
        return self.task.samples


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
    def scratch(self) -> tuple[tuple[Buffer, ...], ...]:
        """The workspace buffers of every program of the function, with shapes over the program's symbols."""
        return tuple(
            tuple(replace(b, shape=tuple(substitute(n, self.sizes) for n in b.shape)) for b in buffers)
            for buffers in self.compiled.scratch
        )


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
    builds: KernelBuilds,
    progress: KernelProgress | None = None,
) -> tuple[BoundUnit, ...]:
    """Binds every kernel to a function.

    Equal kernels (tasks of one hash before sizes are sampled) share a function, scheduled for the sizes of the largest.

    Args:
        units: the units of the partitions of a model's programs in order of execution.
        sources: the program of each unit.
        machine: the machine whose fork/join cost decides which loops run in parallel.
        builds: builds the functions.
        progress: is told how many of them are built.

    Raises:
        InternalError: an optimizer's schedule is not legal.
    """
    kernels = {k: u for k, u in enumerate(units) if isinstance(u, Kernel)}
    kernel_tasks = {k: make_kernel_task(u, sources[k].constants, sources[k].context) for k, u in kernels.items()}
    # the first of equal kernels gives the loops, the largest one the sizes
    first: dict[str, KernelTask] = {}
    largest: dict[str, ShapeSamples] = {}
    labels: dict[str, str] = {}
    for k, kernel in kernel_tasks.items():
        task = first.setdefault(kernel.key, kernel).task
        labels.setdefault(kernel.key, kernels[k].label)
        if kernel.key not in largest or _sample_volume(kernel.samples) > _sample_volume(largest[kernel.key]):
            largest[kernel.key] = renamed_samples(kernel.samples, kernel.task, task)
    tasks = {key: kernel.task.with_samples(largest[key]).canonical() for key, kernel in first.items()}
    built = builds.build(list(tasks.values()), list(labels.values()), progress)
    compiled = {
        key: _compiled_kernel(_function_name(k, labels[key]), task, first[key].task.form.symbols, built[k], machine)
        for k, (key, task) in enumerate(tasks.items())
    }
    return tuple(
        _bind(u, kernel_tasks[k], compiled[kernel_tasks[k].key]) if isinstance(u, Kernel) else u
        for k, u in enumerate(units)
    )


def _bind(unit: Kernel, kernel_task: KernelTask, compiled: CompiledKernel) -> BoundKernel:
    """A kernel with the function of an equal task, whose parameters and symbols may have other names."""
    form, func = kernel_task.task.form, compiled.task.func
    params = dict(zip(form.params, (p.name for p in func.params), strict=True))
    symbols = zip(func.symbols, form.symbols, strict=True)
    sizes = {new: kernel_task.sizes.get(old, old) for new, old in symbols if new is not old or old in kernel_task.sizes}
    return BoundKernel(with_renamed_params(unit, params), compiled, sizes)


def _sample_volume(samples: ShapeSamples) -> int:
    """Product of the representative sizes, which orders kernels of the same loops by size."""
    return prod(samples.representative.values())


def distinct_kernels(units: Sequence[BoundUnit]) -> tuple[CompiledKernel, ...]:
    """The functions of the units, each once, in order of first use."""
    return tuple({id(u.compiled): u.compiled for u in units if isinstance(u, BoundKernel)}.values())


def _compiled_kernel(
    name: str, task: Task, symbols: Sequence[Var], built: BuiltKernel, machine: Machine
) -> CompiledKernel:
    """The function of a task, called `name`, whose symbols are these in the model."""
    origin, merged = replace(task.func, name=name), built.merged
    programs = tuple(replace(p, scheduled=replace(p.scheduled, name=name)) for p in built.programs)
    symbol_names = {v.name: old.name for v, old in zip(task.func.symbols, symbols, strict=True)}
    return CompiledKernel(
        name, task, symbol_names, origin, built.optimizer, programs, replace(merged.code, name=name), merged.prepacked,
        merged.scratch, _parallel_grains(origin, merged.code, machine), built.code,
        built.estimates,
    )  # fmt: skip


def _parallel_grains(origin: Func, code: KernelCode, machine: Machine) -> Expr | None:
    kinds = {s.kind for func in programs_of(code) for s, _ in walk(func.body) if isinstance(s, For)}
    return parallel_grains(origin, machine, LoopKind.VECTORIZED in kinds) if LoopKind.PARALLEL in kinds else None


def _function_name(index: int, label: str) -> str:
    """`k3_conv_relu` from "conv1 (Conv) + relu1 (Relu)"; the number makes it unique."""
    operators = dict.fromkeys(re.findall(r"\((\w+)\)", label))
    text = "_".join(re.sub(r"\W+", "_", op, flags=re.ASCII).lower() for op in operators)
    return f"k{index}_{text[:40]}".rstrip("_")
