"""Pieces of rows of results in memory: what stores wait for at the start of each, beyond its bytes.

Stores retire in order, so all later ones wait for the first line of a piece, whichever row they belong to; the
following lines are prefetched. Tiles over whole rows start each row once, blocks of columns once per block.
"""

import numpy as np

from tilewright.cost.caches import caches, cyclic_miss_ratio
from tilewright.cost.candidate_batch import CandidateBatch, is_on_stack
from tilewright.cost.footprint import Numbers, touched_elements
from tilewright.cost.hw_prefetch import nested_boxes, stores_rows_in_turn, tracked_box
from tilewright.machine.model import Machine
from tilewright.tile.program import Sketch


def store_start_ns(sketch: Sketch, batch: CandidateBatch, machine: Machine) -> float | Numbers:
    """Nanoseconds that the stores of all points wait for first lines from memory, on one core.

    A piece is what is stored to a row by the iterations of the loops, from the innermost one outwards, until there are
    more pieces than write streams that the prefetcher tracks. What the last cache holds of a result has no starts.

    Args:
        sketch, batch: the candidates.
        machine: with caches.
    """
    cost, starts = machine.cost, 0.0
    if not cost.store_start_cycles:
        return starts
    line, last = caches(machine)[0].line, min(caches(machine)[-1].bytes, cost.contended_cache_bytes)
    for k, o in enumerate(batch.family.accesses):
        if not o.written or is_on_stack(sketch, k):
            continue
        problems = [(*p.operands, *p.results)[k] for p in batch.family.problems]
        (share,) = batch.family.gather([(cyclic_miss_ratio(x.bytes, last, cost),) for x in problems])
        if np.any(share):
            boxes, innermost = nested_boxes(o, sketch, batch), o.uses(sketch.order[-1])
            box, pieces = tracked_box(o, boxes, line, line, cost.max_write_streams, innermost)
            count = pieces * touched_elements(o, batch.covered) / touched_elements(o, box)
            starts = starts + share * np.where(stores_rows_in_turn(o, boxes, line), 0.0, count)
    return starts * cost.store_start_cycles / machine.ghz
