"""Measured times of the register tiles that an instruction set has room for: the innermost level of Vortex' analyser.

Every tile is a small product whose operands stay in L1, compiled by the project's own code generator, so that its time
per term includes what compilers and out-of-order execution make of it.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.machine.register_tile_cycles import RegisterTileCycles
from tilewright.measure.aligned_array import aligned_array
from tilewright.measure.native_functions import NativeFunctions
from tilewright.measure.parameter_kernels import RegisterTile, register_tile
from tilewright.measure.timing import time_once
from tilewright.optimize.vortex.register_tiles import filter_by_isa

ELEMENT_BITS = 32
"""Width of the elements that are measured."""

TERMS = 32
"""Terms of a product: those of the widest row of vectors take 16 KiB."""

SECONDS = 0.002
"""Duration of one measurement."""

REPEATS = 3
"""Measurements of each tile, in turns; the least counts, as what disturbs only adds."""


def measure_register_tiles(
    machine: Machine, target: Target, tiles: Sequence[RegisterTile] | None = None
) -> tuple[RegisterTileCycles, ...]:
    """The times of register tiles on this machine.

    Args:
        machine: with measured clock.
        target: this machine's target.
        tiles: which ones; by default all that the instruction set has room for.
    """
    if tiles is None:
        tiles = [RegisterTile(int(m), int(v), int(u), TERMS) for m, v, u in filter_by_isa(machine)]
    names = [f"tile_{x.rows}_{x.vectors}_{x.unroll}" for x in tiles]
    native = NativeFunctions([register_tile(target, x, n) for x, n in zip(tiles, names, strict=True)], target)
    lanes, rng = target.lanes(ELEMENT_BITS), np.random.default_rng(0)
    seconds: list[list[float]] = [[] for _ in tiles]
    for _ in range(REPEATS):
        for k, (x, name) in enumerate(zip(tiles, names, strict=True)):
            columns = x.vectors * lanes
            arrays = [aligned_array(shape) for shape in ((x.terms, x.rows), (x.terms, columns), (x.rows, columns))]
            for array in arrays:
                array[...] = rng.random(array.shape, dtype=np.float32)

            def run(times: int, name: str = name, arrays: list[np.ndarray] = arrays) -> None:
                native.call(name, arrays, [times])

            seconds[k].append(time_once(run, SECONDS) / x.terms)
    return tuple(
        RegisterTileCycles(
            machine.vector_bits,
            ELEMENT_BITS,
            x.rows,
            x.vectors,
            x.unroll,
            float(f"{min(measured) * 1e9 * machine.ghz:.3g}"),
        )
        for x, measured in zip(tiles, seconds, strict=True)
    )
