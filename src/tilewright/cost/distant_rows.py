"""Pieces of rows that come from memory: what register tiles wait for at the start of each, beyond its bytes.

A tile reads a piece of every row of an operand where it is. Where the tiles beside it read the next pieces soon, as in
a K-block around many columns, these have been fetched meanwhile: L2 tracks more outstanding lines than a core waits
for. Where a tile computes a whole sum first, every piece is a start, and from memory it takes longer than prefetches
hide. Other users of a host leave a program less of the last cache than the processor has.
"""

import numpy as np

from tilewright.cost.caches import caches, cyclic_miss_ratio, cyclic_miss_ratios
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.footprint import Numbers, distant_segments, touched_elements
from tilewright.machine.model import Machine
from tilewright.tile.prefetches import distant_operands
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sketch


def row_starts(problem: Problem, sketch: Sketch, batch: CandidateBatch, machine: Machine) -> Numbers:
    """Pieces of rows from memory that a register tile starts over a K-block, as a mean of the tiles of an L1 tile.

    Args:
        problem, sketch, batch: the candidates.
        machine: with caches.
    """
    box, starts = batch.tiles[L1], np.zeros_like(batch.covered[0])
    line, distance = caches(machine)[0].line, machine.cost.min_stream_distance_bytes
    for k in distant_operands(problem, sketch):
        share = _share_from_memory(k, sketch, batch, machine)
        if share is not None:
            starts += distant_segments(batch.family.operands[k], box, line, distance, False) * share
    tiles: Numbers = np.ones_like(starts)
    for a in problem.spatial:
        tiles = tiles * np.ceil(box[a] / batch.tiles[REGISTER][a])
    return starts / tiles


def _share_from_memory(operand: int, sketch: Sketch, batch: CandidateBatch, machine: Machine) -> Numbers | None:
    """Share of what L1 tiles read of an operand, by its position, that comes from memory; None for nothing.

    The first pass over an element finds what the last call has left of the whole operand. A loop that the operand does
    not move along reads it again in every further iteration: what the last cache holds of an iteration's part of the
    operand it has not lost since. Other operands count as nothing: they are read once meanwhile.
    """
    cost, o = machine.cost, batch.family.operands[operand]
    last = min(caches(machine)[-1].bytes, cost.contended_cache_bytes)

    operands = [p.operands[operand] for p in batch.family.problems]
    (first,) = batch.family.gather([(cyclic_miss_ratio(x.bytes, last, cost),) for x in operands])
    if not np.any(first):
        return None
    box, share = list(batch.covered), np.zeros_like(batch.covered[0]) + first
    for level in (L2, L1):
        for a in sketch.order:
            size = batch.tiles[level][a]
            count, box[a] = np.maximum(1.0, box[a] / size), size
            if not o.uses(a) and (count > 1.0).any():
                again = cyclic_miss_ratios(touched_elements(o, box) * o.element_bytes, last, cost)
                share = (share + (count - 1.0) * again) / count
    return share
