"""Estimated time of kernels, by which the alternatives of a program are chosen (`graph/alternatives.py`).

The time of a kernel with a reduction is that of the program which the compilation's own optimizer constructs for it,
and the construction is kept: a kernel of the program that is chosen is not constructed again. All other kernels are
data movement: their operands and results travel to and from the shared cache, or memory where they do not fit it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.graph.chains.choose import KernelEstimate
from tilewright.graph.fusion import FusionPattern
from tilewright.graph.kernel import Kernel
from tilewright.machine.model import Machine
from tilewright.optimize.constructions import Constructions
from tilewright.optimize.conv_chains.stages import has_windows
from tilewright.optimize.kernel_task import TaskContext, make_kernel_task
from tilewright.optimize.task import Task
from tilewright.tile.shape_samples import Ranges, representative_size, value_of

SHARED_CACHE_LEVEL = 2
"""The cache level that keeps one stage's results for the next: several megabytes do not survive in a core's private
caches. Weights are read from memory: the rest of the network passes through every cache between two uses."""

MIN_CONVOLUTION_GAIN = 0.1
"""What a chain of convolutions is estimated to gain, at least, where it is fused. On two cores of a Xeon (AVX-512),
seven chains of ResNet-50 and MobileNetV2 take 1.12 to 1.40 times their estimates. The one that is estimated to gain 9 %
(1x1, then 3x3 with stride 2, 256 to 128 channels of 56 x 56) makes ResNet-50 slower by 1 to 2 %, those that are
estimated to gain 11 to 37 % make MobileNetV2 1.11 times as fast."""


@dataclass(frozen=True, slots=True)
class CostOracle:
    """A function of a kernel, and of the names of the program's constants, to nanoseconds; None without an estimate.

    Symbolic sizes count as the middle of their ranges (`tile.shape_samples.representative_size`).

    Attributes:
        machine: the machine that the kernels run on.
        context: what all tasks of the program have in common.
        constructions: those of the compilation's optimizer.
        estimate_tasks: lets processes estimate tasks, which `constructions` learns; None where there are none.
    """

    machine: Machine
    context: TaskContext
    constructions: Constructions
    estimate_tasks: Callable[[Iterable[Task]], None] | None = None
    _tasks: dict[tuple[int, frozenset[str]], tuple[Kernel, Task]] = field(
        default_factory=dict[tuple[int, frozenset[str]], tuple[Kernel, Task]], init=False, repr=False, compare=False
    )

    def __call__(self, kernel: Kernel, constants: frozenset[str]) -> float | None:
        """Nanoseconds of a kernel on all cores, weights read from memory."""
        return self.estimate(kernel, constants).nanoseconds

    def estimate(self, kernel: Kernel, constants: frozenset[str]) -> KernelEstimate:
        """The same, with the reason where there is no estimate."""
        ranges = self.context.ranges
        if not any(s.is_reduction for s in kernel.stages):
            return KernelEstimate(data_movement_time(kernel, self.machine, ranges))
        task = self.task(kernel, constants)
        if self.estimate_tasks is not None:
            self.estimate_tasks([task])
        estimate = self.constructions.estimate(task)
        if not estimate.nanoseconds:
            return KernelEstimate(None, estimate.refusal)
        read = sum(_bytes(b, ranges) for b in kernel.reads if b.name in constants)
        time = estimate.nanoseconds[0] + read / self.machine.levels[-1].gbs(self.machine.cores)
        is_inexact = kernel.fusion.pattern is FusionPattern.CHAIN and has_windows(task.func)
        return KernelEstimate(time, min_gain=MIN_CONVOLUTION_GAIN) if is_inexact else KernelEstimate(time)

    def prepare(self, kernels: Iterable[tuple[Kernel, frozenset[str]]]) -> None:
        """Estimates kernels, given with the names of the program's constants, that will probably be asked for: several
        at once, where there are processes for it."""
        if self.estimate_tasks is not None:
            self.estimate_tasks(self.task(k, c) for k, c in kernels if any(s.is_reduction for s in k.stages))

    def task(self, kernel: Kernel, constants: frozenset[str]) -> Task:
        """The task by which a kernel is estimated."""
        key = id(kernel), constants
        if key not in self._tasks:
            task = make_kernel_task(kernel, constants, self.context).sampled_task.canonical()
            # the kernel is kept, so that its identity stays its own
            self._tasks[key] = kernel, task
        return self._tasks[key][1]


def data_movement_time(kernel: Kernel, machine: Machine, ranges: Ranges | None = None) -> float:
    """Nanoseconds of a kernel that only moves data, on all cores.

    A written line is read first; a store whose lanes are not contiguous writes its elements one by one. The operands,
    results of previous kernels, are still in the shared cache if they and this kernel's results fill at most half of
    it: the previous kernel read operands, too.
    """
    read, written = (sum(_bytes(b, ranges) for b in buffers) for buffers in (kernel.inputs, kernel.outputs))
    caches = (x for x in machine.levels[SHARED_CACHE_LEVEL:-1] if x.bytes >= 2 * (read + written))
    source = next(caches, machine.levels[-1])
    bytes_moved = read + 2 * written
    scattered = sum(_elements(s.output, ranges) for s in kernel.stages if _is_transpose(s))
    scatter_time = scattered * machine.cost.scatter_cycles / (machine.ghz * machine.cores)
    return bytes_moved / source.gbs(machine.cores) + machine.sync_us * 1e3 + scatter_time


def _is_transpose(stage: Computation) -> bool:
    """Whether the last axis of the results is not the last index of an operand."""
    last = stage.axes[-1].var if stage.axes else None
    return last is not None and any(x.indices and last not in free_vars(x.indices[-1]) for x in loads(stage.body))


def _bytes(b: Buffer, ranges: Ranges | None = None) -> float:
    return _elements(b, ranges) * b.dtype.bytes


def _elements(b: Buffer, ranges: Ranges | None) -> float:
    return _volume(b.shape, ranges)


def _volume(extents: Sequence[Expr], ranges: Ranges | None) -> float:
    symbols: dict[Var, int] = {v: representative_size(v, ranges) for n in extents for v in free_vars(n)}
    total = 1.0
    for n in extents:
        total *= value_of(n, symbols)
    return total
