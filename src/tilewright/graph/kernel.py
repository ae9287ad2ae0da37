"""Kernels of a partitioned program, before a schedule is chosen."""

from dataclasses import dataclass

from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Computation


@dataclass(frozen=True, slots=True)
class Slices:
    """How a group of kernels is cut that run slice by slice (`graph/slice_kernels.py`).

    Attributes:
        group: name of the buffer that its first kernel hands on.
        count: slices, each an equal part of the leading axis of every kernel.
        private: names of the buffers that it hands on, which have room for one slice only.
    """

    group_name: str
    count: int
    intermediates: frozenset[str]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One future kernel.

    Attributes:
        stages: in canonical form; the last one writes `out`.
        params: the kernel's buffers in the order of its parameters, inputs first, the output last.
        arguments: the program's buffers that are passed for them.
        label: the user's nodes that it computes.
        slices: how the group that it belongs to is cut; stages and parameters are those of one slice then. None where
            it runs as a whole.
        cut: names of the parameters of which a slice has a part.
    """

    stages: tuple[Computation, ...]
    params: tuple[Buffer, ...]
    arguments: tuple[Buffer, ...]
    label: str
    slices: Slices | None = None
    sliced_params: frozenset[str] = frozenset()
