"""Kernels of a partition as tasks: untransformed loops over abstract sizes, with shape samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.errors import UnsupportedError, VerifyError
from tilewright.expr.nodes import Expr, Var
from tilewright.graph.kernel import Kernel
from tilewright.loops.ir import Func
from tilewright.loops.lowering import lower_to_loops
from tilewright.lower.abstract_sizes import abstract_sizes
from tilewright.lower.prepack_constants import drop_unused_symbols
from tilewright.machine import Target
from tilewright.optimize.task import Task
from tilewright.tile.shape_samples import Ranges, ShapeSamples, used_by
from tilewright.verify.verifier import verify

_LOWERED_NAME = "kernel"
"""Name of untransformed functions before they get their own."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What the tasks of a program have in common.

    Attributes:
        symbols: the program's symbols, with those of fallbacks.
        target: the target of the generated code.
        ranges: ranges of undeclared symbols that other sizes imply.
    """

    symbols: tuple[Var, ...]
    target: Target
    ranges: Ranges | None = None


@dataclass(frozen=True, slots=True)
class KernelTask:
    """A kernel of a partition as a task.

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

    @property
    def sampled_task(self) -> Task:
        """The task with the kernel's own samples."""
        return self.task.with_samples(self.samples)


def make_kernel_task(kernel: Kernel, constants: frozenset[str], context: TaskContext) -> KernelTask:
    """The task of a kernel.

    Args:
        kernel: a kernel of a partition.
        constants: names of the program's buffers whose data is known at compile time.
        context: of the kernel's program.

    Raises:
        UnsupportedError: expressions are nested too deep.
    """
    pairs = zip(kernel.params, kernel.arguments, strict=True)
    constant_params = frozenset(p.name for p, b in pairs if b.name in constants)
    try:
        task, sizes = _abstracted_task(kernel, constant_params, context.symbols, context.target)
        key = task.hash
    except RecursionError as error:
        what = "its expressions are nested too deep to be worked on"
        raise UnsupportedError(what, where=f"node {kernel.label}", hint="split the node into several") from error
    values = {v: sizes.get(v, v) for v in task.func.symbols}
    samples = ShapeSamples.of(used_by(context.symbols, values.values()), context.ranges).mapped(values)
    return KernelTask(task, key, sizes, samples)


# the kernels of a program are lowered for estimates of its alternatives, of its chains, and at last to be compiled
@lru_cache(maxsize=1024)
def _abstracted_task(
    kernel: Kernel, constant_params: frozenset[str], symbols: tuple[Var, ...], target: Target
) -> tuple[Task, Mapping[Var, Expr]]:
    """The task of a kernel without samples, and the values of its symbols."""
    origin, sizes = _lower_abstracted(kernel, symbols)
    return Task(origin, constant_params, target, kernel.fusion), sizes


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
