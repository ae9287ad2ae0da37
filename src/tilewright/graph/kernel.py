"""Kernels of a partitioned program, before a schedule is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Buffer, Load
from tilewright.expr.traversal import replace_loads
from tilewright.graph.fusion import Fusion


@dataclass(frozen=True, slots=True)
class Slices:
    """How a group of kernels is sliced (`graph/slice_kernels.py`).

    Attributes:
        group_name: name of the first intermediate that the group's first kernel writes.
        count: number of slices, each an equal part of the leading axis of every kernel.
        intermediates: names of the buffers between the kernels, which have room for one slice only.
    """

    group_name: str
    count: int
    intermediates: frozenset[str]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a program.

    Attributes:
        stages: computations in canonical form. Those whose results are parameters write the kernel's outputs, the
            others its intermediates.
        params: the kernel's buffers in the order of its parameters, inputs first.
        arguments: the program's buffers that are passed for `params`.
        fusion: how the stages are fused.
        label: the user's names of the nodes that it computes.
        slices: how the kernel's group is sliced; stages and parameters are those of one slice then. None where the
            kernel runs as a whole.
        sliced_params: names of the parameters of which a slice covers a part only.
    """

    stages: tuple[Computation, ...]
    params: tuple[Buffer, ...]
    arguments: tuple[Buffer, ...]
    fusion: Fusion
    label: str
    slices: Slices | None = None
    sliced_params: frozenset[str] = frozenset()

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The parameters that it only reads."""
        written = self._written_names
        return tuple(p for p in self.params if p.name not in written)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The parameters that it writes, at least one."""
        written = self._written_names
        return tuple(p for p in self.params if p.name in written)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """The program's buffers that are passed for its inputs."""
        written = self._written_names
        return tuple(b for p, b in zip(self.params, self.arguments, strict=True) if p.name not in written)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """The program's buffers that are passed for its outputs."""
        written = self._written_names
        return tuple(b for p, b in zip(self.params, self.arguments, strict=True) if p.name in written)

    @property
    def _written_names(self) -> frozenset[str]:
        return frozenset(s.output.name for s in self.stages)


def with_renamed_params(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The kernel with other names of its parameters.

    Args:
        kernel: the kernel.
        names: the new name of every parameter.
    """
    if all(old == new for old, new in names.items()):
        return kernel

    def renamed(b: Buffer) -> Buffer:
        return b.renamed(names.get(b.name, b.name))

    def load(x: Load) -> Load:
        return Load(renamed(x.buffer), x.indices)

    stages = tuple(replace(s, output=renamed(s.output), body=replace_loads(s.body, load)) for s in kernel.stages)
    sliced = frozenset(names[n] for n in kernel.sliced_params)
    return replace(kernel, stages=stages, params=tuple(map(renamed, kernel.params)), sliced_params=sliced)
