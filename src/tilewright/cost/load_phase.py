"""Load phases: shares of the work during which an operand is loaded from beyond L2.

Only that work can hide the loads. A panel that several rows of register tiles use is loaded during the first row, and
memory is idle during the others; a program that uses every byte once computes all the time that memory is busy. Each
operand has a share of its own: rows that are read again for every panel are loaded during much of the work, and the
panels meanwhile in bursts, which take what memory does however little that is of all bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.footprint import Numbers, sum_arrays
from tilewright.cost.loop_footprints import LoopFootprints, innermost_depths
from tilewright.cost.shape_family import FloatPerCandidate
from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Mask, Sketch


class LoadPhase(NamedTuple):
    """Register tiles, each over one K-block, that execute while the same operands are loaded.

    Attributes:
        work: share of all register tiles.
        loads: share of all bytes from beyond the cache that move meanwhile.
    """

    work: Numbers
    loads: Numbers


def load_phases(
    problem: Problem,
    sketch: Sketch,
    batch: CandidateBatch,
    capacity: float,
    line: int,
    cost: CostParameters,
    footprints: LoopFootprints | None = None,
    far: FloatPerCandidate = 1.0,
) -> list[LoadPhase]:
    """The phases by what is loaded from beyond a cache: at first every operand, then those that take longer, in the end
    none. Their shares of the work add up to 1, and so do those of the loads.

    For an operand that is loaded once in all iterations of a loop, and that does not depend on the loop, it is loaded
    in one iteration. That a long load contains the shorter ones is a simplification: where they follow each other,
    somewhat more work is beside them.

    Args:
        problem, sketch, batch: the candidates.
        capacity: bytes of the cache.
        line: bytes of a cache line.
        cost: the machine's parameters.
        footprints: of the candidates, if they have been computed already.
        far: share of the kernel's data that private caches do not hold, see `ramp_factors`. The others do not come in
            bursts, and have the mean duration of all loads.
    """
    footprints = footprints or LoopFootprints.of(problem, sketch, batch, line)
    # the loops of a register tile are the innermost ones
    tile_loops = sum(x.level != REGISTER or x.axis not in problem.reduce for x in footprints.loops)
    operand_bytes, present = footprints.operand_bytes[:, : tile_loops + 1], footprints.present[:tile_loops]
    fits_cache = footprints.touched_bytes(tile_loops + 1) <= capacity * cost.usable_cache_fraction
    fits = (fits_cache | innermost_depths(present))[1:] & present
    loaded, reloaded = loaded_bytes(operand_bytes, footprints.counts[:tile_loops], fits)
    written = np.array([[o.written] for o in batch.family.accesses])
    # every written line is read and written back, all the time, as results are finished one after the other
    moved = np.where(written, 2.0 * operand_bytes[:, 0], loaded)
    shares = moved / np.maximum(sum_arrays(moved), 1.0)
    durations = np.where(written, 1.0, np.minimum(loaded / np.maximum(reloaded, 1.0), 1.0))
    return _nested_phases(far * durations + (1.0 - far) * sum_arrays(shares * durations), shares)


def _nested_phases(durations: Numbers, shares: Numbers) -> list[LoadPhase]:
    """The phases of loads that begin together, by their shares of the work and of the bytes [access, candidate]; those
    that no candidate has are left out."""
    order = durations.argsort(axis=0)
    durations, shares = (np.take_along_axis(x, order, axis=0) for x in (durations, shares))
    rates = shares / np.maximum(durations, np.finfo(np.float64).tiny)
    zero, one = np.zeros_like(shares[:1]), np.ones_like(shares[:1])
    # what is being loaded has not come to its end
    active = np.concatenate((rates[::-1].cumsum(axis=0)[::-1], zero))
    work = np.diff(np.concatenate((zero, durations, one)), axis=0)
    return [LoadPhase(w, w * rate) for w, rate in zip(work, active, strict=True) if w.any()]


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
