"""Load phase: fraction of register tiles that execute while loads from beyond L2 are outstanding.

Only that work can hide the loads. A panel that several rows of register tiles use is loaded during the first row, and
memory is idle during the others; a program that uses every byte once computes all the time that memory is busy.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.footprint import Numbers
from tilewright.cost.loop_footprints import LoopFootprints, innermost_depths
from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Mask, Sketch


def load_phase_fraction(
    problem: Problem,
    sketch: Sketch,
    batch: CandidateBatch,
    capacity: float,
    line: int,
    cost: CostParameters,
    footprints: LoopFootprints | None = None,
) -> Numbers:
    """Fraction of all register tiles, each over one K-block, that execute while data is loaded from beyond a cache:
    between 0 and 1, averaged over the bytes.

    For an operand that is loaded once in all iterations of a loop, and that does not depend on the loop, it is one
    iteration.

    Args:
        problem, sketch, batch: the candidates.
        capacity: bytes of the cache.
        line: bytes of a cache line.
        cost: the machine's parameters.
        footprints: of the candidates, if they have been computed already.
    """
    footprints = footprints or LoopFootprints.of(problem, sketch, batch, line)
    # the loops of a register tile are the innermost ones
    tile_loops = sum(x.level != REGISTER or x.axis not in problem.reduce for x in footprints.loops)
    operand_bytes, present = footprints.operand_bytes[:, : tile_loops + 1], footprints.present[:tile_loops]
    fits_cache = footprints.touched_bytes(tile_loops + 1) <= capacity * cost.usable_cache_fraction
    fits = (fits_cache | innermost_depths(present))[1:] & present
    # all operands in one array: formulas cost as much for few numbers as for many
    loaded, reloaded = loaded_bytes(operand_bytes, footprints.counts[:tile_loops], fits)
    weights = loaded * loaded / reloaded
    total: Numbers = np.zeros_like(batch.covered[0])
    weighted = total
    for k, o in enumerate(batch.family.accesses):
        # every written line is read and written back, all the time, as results are finished one after the other
        stored = 2.0 * operand_bytes[k, 0]
        moved, weight = (stored, stored) if o.written else (loaded[k], weights[k])
        total, weighted = total + moved, weighted + weight
    return np.clip(weighted / np.maximum(total, 1.0), 0.0, 1.0)


def loaded_bytes(operand_bytes: Numbers, counts: Sequence[Numbers], fits: Mask) -> tuple[Numbers, Numbers]:
    """Bytes that accesses load in the whole program, and bytes if every register tile loaded its own again.

    Args:
        operand_bytes: footprints of the accesses [access, depth, candidate].
        counts: iterations of the loops, outermost first.
        fits: whether everything that the bodies of loops touch fits [loop, candidate].
    """
    loaded = reloaded = operand_bytes[:, -1]
    for d in range(len(counts) - 1, -1, -1):
        loaded = np.where(fits[d], operand_bytes[:, d], loaded * counts[d])
        reloaded = reloaded * counts[d]
    return loaded, reloaded
