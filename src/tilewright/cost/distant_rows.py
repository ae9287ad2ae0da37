"""Pieces of rows that come from memory: what register tiles wait for at the start of each, beyond its bytes.

A tile reads a piece of every row of an operand where it is. Where the tiles beside it read the next pieces soon, as in
a K-block around many columns, these have been fetched meanwhile: L2 tracks more outstanding lines than a core waits
for. Where a tile computes a whole sum first, every piece is a start, and from memory it takes longer than prefetches
hide. Other users of a host leave a program less of the last cache than the processor has.
"""

from functools import reduce
from operator import mul

import numpy as np

from tilewright.cost.caches import caches, cyclic_miss_ratio
from tilewright.cost.candidate_batch import CandidateBatch, is_packed
from tilewright.cost.footprint import Numbers, distant_segments, sum_arrays, total_bytes
from tilewright.machine.model import Machine
from tilewright.tile.prefetches import has_distant_rows
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, REGISTER, Sketch


def row_starts(problem: Problem, sketch: Sketch, batch: CandidateBatch, machine: Machine) -> Numbers:
    """Pieces of rows from memory that a register tile starts over a K-block, as a mean of the tiles of an L1 tile.

    Args:
        problem, sketch, batch: the candidates.
        machine: with caches.
    """
    levels, cost = caches(machine), machine.cost
    last = min(levels[-1].bytes, cost.contended_cache_bytes)
    ratios = [(cyclic_miss_ratio(total_bytes(p), last, cost),) for p in batch.family.problems]
    none: Numbers = np.zeros_like(batch.covered[0])
    in_place = [k for k in range(len(problem.operands)) if not is_packed(sketch, k)]
    distant = [k for k in in_place if has_distant_rows(problem, k, sketch.lane)]
    if not distant or not any(x for (x,) in ratios):
        return none
    (from_memory,) = batch.family.gather(ratios)
    box, distance = batch.tiles[L1], cost.min_stream_distance_bytes
    operands = [batch.family.operands[k] for k in distant]
    rows = sum_arrays(distant_segments(o, box, levels[0].line, distance, False) for o in operands)
    tiles = (np.ceil(box[a] / batch.tiles[REGISTER][a]) for a in problem.spatial)
    return none + rows * from_memory / reduce(mul, tiles)
