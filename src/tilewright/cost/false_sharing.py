"""False sharing: cache lines of results that two threads write to.

Threads have contiguous shares of the L2 tiles, the outermost loop first. Where that loop runs along the rows of a
result, two shares meet in every row: a line there belongs to both, and each store to it waits until the other core has
given it up. (Panels that threads fill together are part of `packing.py`.)
"""

from dataclasses import dataclass

import numpy as np

from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.footprint import Numbers, sum_arrays
from tilewright.cost.shape_family import OperandView
from tilewright.machine.model import Level, Machine
from tilewright.tile.program import L2, Sketch


@dataclass(frozen=True, slots=True)
class FalseSharing:
    """The lines of results that each thread shares with the next one.

    Attributes:
        nanoseconds: that a thread waits for them where it computes nothing meanwhile.
        work_beside: share of the thread's work in which it stores to them.
    """

    nanoseconds: Numbers
    work_beside: Numbers


def false_sharing(sketch: Sketch, batch: CandidateBatch, machine: Machine) -> FalseSharing:
    """The sharing of results of candidates, on all cores."""
    lines: Numbers = np.zeros_like(batch.covered[0])
    beside: Numbers = np.ones_like(lines)
    is_outermost = np.ones(len(lines), np.bool_)
    for a in sketch.order if machine.cores > 1 else ():
        count = np.ceil(batch.covered[a] / batch.tiles[L2][a])
        here = is_outermost & (count > 1)
        if not here.any():
            continue
        shared = sum_arrays(_shared_lines(o, a, batch, machine) for o in batch.family.accesses if o.written)
        lines = np.where(here, shared * np.minimum(1.0, count / machine.cores), lines)
        beside = np.where(here, np.minimum(1.0, machine.cores / count), beside)
        is_outermost &= ~here
    wait = machine.cost.false_sharing_latencies * _shared_level(machine).latency_ns
    return FalseSharing(lines * wait, beside)


def _shared_lines(o: OperandView, axis: int, batch: CandidateBatch, machine: Machine) -> Numbers:
    """Lines of a result that belong to two neighbouring L2 tiles along an axis, in all rows: axes of larger stride."""
    line, strides = machine.levels[0].line, dict(o.byte_strides)
    stride = strides.get(axis, line)
    is_split, rows = stride * batch.tiles[L2][axis] % line > 0, np.ones_like(batch.covered[axis])
    for a, other in strides.items():
        is_row = np.asarray(other) > stride
        rows = rows * np.where(is_row, batch.covered[a], 1.0)
        is_split = is_split | (is_row & (np.asarray(other) % line > 0))
    return np.where(is_split, rows, 0.0)


def _shared_level(machine: Machine) -> Level:
    """The nearest memory level that all cores share."""
    return next((x for x in machine.levels if x.shared_by > 1), machine.levels[-1])
