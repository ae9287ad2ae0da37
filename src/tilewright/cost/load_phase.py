"""While how much of its work a program still brings data from far memory: the rest of the work hides nothing of it.

A panel that is used by one row of register tiles after the other comes during the first row; while the others run,
memory is idle. A program that uses each byte up as it comes computes all the time that memory is busy.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.cost.candidate_batch import CandidateBatch, sum_arrays
from tilewright.cost.footprint import Numbers
from tilewright.cost.traffic import USABLE_CACHE_FRACTION, LoopFootprints, innermost_depths
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Mask, Sketch


def load_phase_fraction(
    problem: Problem,
    sketch: Sketch,
    batch: CandidateBatch,
    capacity: float,
    line: int,
    footprints: LoopFootprints | None = None,
) -> Numbers:
    """The part of all register tiles, each over one chunk of the reduction, during which data come from beyond a cache
    of `capacity` bytes; the average over bytes, between 0 and 1.

    Of an operand that is loaded once in all iterations of a loop, and that the loop does not move, it is one iteration.
    `known` saves counting what is touched.
    """
    footprints = footprints or LoopFootprints.of(problem, sketch, batch, line)
    # the loops of a register tile are the innermost ones
    tiles = sum(x.level != REGISTER or x.axis not in problem.reduce for x in footprints.loops)
    feet, there = footprints.operand_bytes[:, : tiles + 1], footprints.present[:tiles]
    stays = ((sum_arrays(feet) <= capacity * USABLE_CACHE_FRACTION) | innermost_depths(there))[1:] & there
    # all operands at once: formulas cost as much for few numbers as for many
    loaded, anew = _loaded_bytes(feet, footprints.counts[:tiles], stays)
    weights = loaded * loaded / anew
    bytes_in_all: Numbers = np.zeros_like(batch.covered[0])
    weighted = bytes_in_all
    for k, o in enumerate(batch.family.accesses):
        # every line that is written comes and goes, as results are finished one after the other
        moved, weight = (2.0 * feet[k, 0], 2.0 * feet[k, 0]) if o.written else (loaded[k], weights[k])
        bytes_in_all, weighted = bytes_in_all + moved, weighted + weight
    return np.clip(weighted / np.maximum(bytes_in_all, 1.0), 0.0, 1.0)


def _loaded_bytes(operand_bytes: Numbers, counts: Sequence[Numbers], fits: Mask) -> tuple[Numbers, Numbers]:
    """Bytes that operands load in the whole program, and if every register tile loaded its own anew.

    Args:
        feet: their bytes [operand, depth, candidate].
        counts: iterations of the loops, outermost first.
        stays: whether all that the bodies of loops touch fits [loop, candidate].
    """
    loaded = anew = operand_bytes[:, -1]
    for d in range(len(counts) - 1, -1, -1):
        loaded = np.where(fits[d], operand_bytes[:, d], loaded * counts[d])
        anew = anew * counts[d]
    return loaded, anew
