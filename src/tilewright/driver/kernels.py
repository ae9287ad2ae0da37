"""Compilation of a partition's kernels: lower, optimize, verify, prepack. Equal kernels share one function."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.cost.parallel_grains import parallel_grains
from tilewright.errors import InternalError, ScheduleError, UnsupportedError, VerifyError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.graph.fusion import Fusion
from tilewright.graph.kernel import Kernel, with_renamed_params
from tilewright.graph.partition import Unit
from tilewright.graph.program import Fallback
from tilewright.loops.ir import For, Func, LoopKind, walk
from tilewright.loops.lowering import lower_to_loops
from tilewright.lower.abstract_sizes import abstract_sizes
from tilewright.lower.prepack_constants import drop_unused_symbols, prepack_constants
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.optimize.interface import FALLBACK, Optimizer, optimizer_named
from tilewright.optimize.task import Task, renamed_samples
from tilewright.schedule.step import Trace
from tilewright.tile.shape_samples import Ranges, ShapeSamples, used_by
from tilewright.verify.verifier import verify

_LOWERED_NAME = "kernel"
"""Name of untransformed functions before they get their own."""


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


@dataclass(frozen=True, slots=True)
class _LoweredKernel:
    """A kernel as untransformed loops.

    Attributes:
        task: the loops and which parameters are constant, without samples.
        key: the task's hash; kernels with one key share a function.
        sizes: the values of the kernel's own symbols over the program's.
        samples: sample sizes of its symbols.
    """

    task: Task
    key: str
    sizes: Mapping[Var, Expr]
    samples: ShapeSamples


BoundUnit = BoundKernel | View | Fallback


def compile_kernels(
    units: Sequence[Unit],
    constants: frozenset[str],
    symbols: Sequence[Var],
    target: Target,
    machine: Machine,
    optimizer: Optimizer,
    progress: Callable[[int, int], None] | None = None,
    ranges: Ranges | None = None,
) -> tuple[BoundUnit, ...]:
    """Binds every kernel to a function.

    Equal kernels (tasks of one hash before sizes are sampled) share a function, scheduled for the sizes of the largest.

    Args:
        units: the units of the partition in order of execution.
        constants: names of the program's buffers whose data is known at compile time.
        symbols: the program's symbols, with those of fallbacks.
        target: the target of the generated code.
        machine: the machine whose fork/join cost decides which loops run in parallel.
        optimizer: the preferred optimizer; kernels that it cannot schedule go to the rule.
        progress: called with (done, total) before every kernel.
        ranges: ranges of undeclared symbols that other sizes imply.

    Raises:
        InternalError: an optimizer's schedule is not legal.
    """
    optimizers = [optimizer] if optimizer.name == FALLBACK else [optimizer, optimizer_named(FALLBACK)]
    lowered = {k: _lower_kernel(u, symbols, constants, ranges, target) for k, u in _kernels(units)}
    # the first of equal kernels gives the loops, the largest one the sizes
    first: dict[str, _LoweredKernel] = {}
    largest: dict[str, ShapeSamples] = {}
    for kernel in lowered.values():
        task = first.setdefault(kernel.key, kernel).task
        if kernel.key not in largest or _sample_volume(kernel.samples) > _sample_volume(largest[kernel.key]):
            largest[kernel.key] = renamed_samples(kernel.samples, kernel.task, task)
    compiled: dict[str, CompiledKernel] = {}
    bound: list[BoundUnit] = []
    for k, unit in enumerate(units):
        if not isinstance(unit, Kernel):
            bound.append(unit)
            continue
        if progress is not None:
            progress(sum(isinstance(u, BoundKernel) for u in bound), len(lowered))
        key = lowered[k].key
        task = first[key].task
        if key not in compiled:
            name = _function_name(len(compiled), unit.label)
            named = replace(task, func=replace(task.func, name=name), samples=largest[key])
            compiled[key] = _compile_kernel(named, machine, optimizers, unit.label)
        bound.append(_bind(unit, lowered[k], compiled[key], task))
    return tuple(bound)


def _kernels(units: Sequence[Unit]) -> Iterator[tuple[int, Kernel]]:
    return ((k, u) for k, u in enumerate(units) if isinstance(u, Kernel))


def _lower_kernel(
    unit: Kernel, symbols: Sequence[Var], constants: frozenset[str], ranges: Ranges | None, target: Target
) -> _LoweredKernel:
    constant_params = frozenset(p.name for p, b in zip(unit.params, unit.arguments, strict=True) if b.name in constants)
    try:
        origin, sizes = _lower_abstracted(unit, symbols)
        task = Task(origin, constant_params, target, unit.fusion)
        key = task.hash
    except RecursionError as error:
        what = "its expressions are nested too deep to be worked on"
        raise UnsupportedError(what, where=f"node {unit.label}", hint="split the node into several") from error
    values = {v: sizes.get(v, v) for v in origin.symbols}
    samples = ShapeSamples.of(used_by(symbols, values.values()), ranges).mapped(values)
    return _LoweredKernel(task, key, sizes, samples)


def _bind(unit: Kernel, lowered: _LoweredKernel, compiled: CompiledKernel, task: Task) -> BoundKernel:
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


def _lower_abstracted(kernel: Kernel, symbols: Sequence[Var]) -> tuple[Func, Mapping[Var, Expr]]:
    """The untransformed loops over abstract sizes, and the values of those.

    Sizes stay as they are if abstraction loses a relation between them that the verifier needs.
    """
    abstracted = abstract_sizes(kernel.stages, kernel.params, symbols)
    if abstracted.sizes:
        func = drop_unused_symbols(
            lower_to_loops(_LOWERED_NAME, abstracted.stages, abstracted.params, (*symbols, *abstracted.sizes))
        )
        if not abstracted.correlated or _is_legal(func):
            return func, abstracted.sizes
    return drop_unused_symbols(lower_to_loops(_LOWERED_NAME, kernel.stages, kernel.params, symbols)), {}


def _is_legal(func: Func) -> bool:
    try:
        verify(func)
    except VerifyError:
        return False
    return True


def _compile_kernel(task: Task, machine: Machine, optimizers: Sequence[Optimizer], label: str) -> CompiledKernel:
    origin, constants = task.func, task.constants
    where = f"kernel {origin.name!r} of {label}" if label else f"kernel {origin.name!r}"
    for optimizer in optimizers:
        try:
            schedule = optimizer.optimize(task)
            if schedule is None:
                continue
            verify(schedule.func)
            prepacked = prepack_constants(schedule.func, constants)
            if prepacked.func != schedule.func:
                verify(prepacked.func)
        except (ScheduleError, VerifyError) as error:
            raise InternalError(
                f"optimizer {optimizer.name!r} made an illegal program: {error}", where=where
            ) from error
        return CompiledKernel(
            origin.name,
            origin,
            schedule.trace,
            optimizer.name,
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


def _parallel_grains(origin: Func, scheduled: Func, machine: Machine) -> Expr | None:
    kinds = {s.kind for s, _ in walk(scheduled.body) if isinstance(s, For)}
    return parallel_grains(origin, machine, LoopKind.VECTORIZED in kinds) if LoopKind.PARALLEL in kinds else None


def _function_name(index: int, label: str) -> str:
    """`k3_conv_relu` from "conv1 (Conv) + relu1 (Relu)"; the number makes it unique."""
    operators = dict.fromkeys(re.findall(r"\((\w+)\)", label))
    text = "_".join(re.sub(r"\W+", "_", op, flags=re.ASCII).lower() for op in operators)
    return f"k{index}_{text[:40]}".rstrip("_")
