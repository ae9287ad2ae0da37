"""Runs of results in memory: what stores wait for at the start of each, beyond its bytes.

Stores retire in order, so all later ones wait for the first line of a run; the following lines are prefetched. Blocks
of columns start each row once per block, whole rows continue in each other.
"""

import numpy as np

from tilewright.cost.caches import caches, cyclic_miss_ratio
from tilewright.cost.candidate_batch import CandidateBatch, is_on_stack
from tilewright.cost.footprint import Numbers, separate_runs, touched_elements
from tilewright.cost.hw_prefetch import SMOOTH_MAX_POWER, nested_boxes
from tilewright.cost.shape_family import OperandView
from tilewright.machine.cost_parameters import CostParameters
from tilewright.machine.model import Machine
from tilewright.tile.program import Sketch


def store_start_ns(sketch: Sketch, batch: CandidateBatch, machine: Machine) -> float | Numbers:
    """Nanoseconds that the stores of all points wait for first lines of runs in memory, on one core.

    There are none for what a program finds of a result in the last cache (`contended_cache_bytes`: other users of a
    host may need the rest of it), and none for tiles that are transposed in registers.

    Args:
        sketch, batch: the candidates.
        machine: with caches.
    """
    cost, starts = machine.cost, 0.0
    if not cost.store_start_cycles or sketch.transposed_store:
        return starts
    last = min(caches(machine)[-1].bytes, cost.contended_cache_bytes)
    for k, o in enumerate(batch.family.accesses):
        if not o.written or is_on_stack(sketch, k):
            continue
        problems = [(*p.operands, *p.results)[k] for p in batch.family.problems]
        (share,) = batch.family.gather([(cyclic_miss_ratio(x.bytes, last, cost),) for x in problems])
        if np.any(share):
            starts = starts + share * _run_count(o, sketch, batch, cost)
    return starts * cost.store_start_cycles / machine.ghz


def _run_count(result: OperandView, sketch: Sketch, batch: CandidateBatch, cost: CostParameters) -> Numbers:
    """Number of runs that the stores of all points begin.

    The loops continue the runs of a register tile, from the innermost one outwards, as long as the prefetcher tracks
    them; of more than it tracks, a share.
    """
    boxes = nested_boxes(result, sketch, batch)
    runs, elements = separate_runs(result, boxes, cost.min_stream_distance_bytes), touched_elements(result, boxes)
    tracked = np.minimum(1.0, cost.max_write_streams / runs) ** SMOOTH_MAX_POWER
    per_element = runs / elements
    count = per_element[-1]
    for k in range(len(runs) - 2, -1, -1):
        count = tracked[k + 1] * count + (1.0 - tracked[k + 1]) * per_element[k]
    # all that the points store is one run
    return np.where(count * elements[-1] <= 1.0, 0.0, count * touched_elements(result, batch.covered))
