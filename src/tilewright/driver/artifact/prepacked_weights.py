"""The weights of a native entry: constants that kernels read, as they are or prepacked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.driver.artifact.weight_pool import WeightPool
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.errors import InternalError
from tilewright.expr.nodes import Buffer
from tilewright.graph.buffer_location import BufferLocation, ConstantLocation
from tilewright.graph.program import Program
from tilewright.lower.prepack_constants import evaluate_prepacked, packed_view
from tilewright.machine.map_in_threads import map_in_threads

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class SegmentWeights:
    """The weights of one segment, in the order of their pointers."""

    pool: WeightPool
    names: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, hint: str, array: Array, source: Array | None = None) -> ConstantLocation:
        """The location of an array among the segment's weights; arguments as of `WeightPool.add`."""
        name = self.pool.add(hint, array, source)
        self.names.setdefault(name)
        return ConstantLocation(name)


def prepack_weights(
    kernels: Sequence[BoundKernel], program: Program, weights: SegmentWeights
) -> dict[int, dict[str, BufferLocation]]:
    """The locations of the prepacked constants of kernels, by the identity of the kernel and the name of its parameter.

    Args:
        kernels: the kernels.
        program: of the kernels.
        weights: receives the constants.
    """
    prepacked = map_in_threads(lambda kernel: _prepack(kernel, program), kernels)
    return {
        id(u): {n: weights.add(*added) for n, added in arrays.items()}
        for u, arrays in zip(kernels, prepacked, strict=True)
    }


def _prepack(unit: BoundKernel, program: Program) -> dict[str, tuple[str, Array, Array | None]]:
    """A kernel's prepacked constants with hints for their names and the views that they are copies of, by the name of
    its parameter."""
    needed = {p.name for p in unit.compiled.func.params}
    if not any(c.output.name in needed for c in unit.compiled.prepacked):
        return {}
    pairs = zip(unit.kernel.params, unit.kernel.arguments, strict=True)
    constants = {p.name: (p, b.name) for p, b in pairs if b.name in program.constants}
    data = {name: program.constants[b].reshape(literal_shape(p)) for name, (p, b) in constants.items()}
    found: dict[str, tuple[str, Array, Array | None]] = {}
    for name, array in evaluate_prepacked(unit.compiled.prepacked, data).items():
        if name in needed:
            computation = next(c for c in unit.compiled.prepacked if c.output.name == name)
            sources = (constants[b.name][1] for b in computation.inputs if b.name in constants)
            hint = f"{next(sources, unit.compiled.name)}.packed"
            found[name] = hint, array, packed_view(computation, data)
    return found


def literal_shape(b: Buffer) -> tuple[int, ...]:
    """The sizes of a buffer that are all literals."""
    sizes = [getattr(n, "value", None) for n in b.shape]
    if None in sizes:
        raise InternalError(f"constant {b.name!r} has the size {b.shape}, which is no literal")
    return tuple(int(n) for n in sizes if n is not None)
