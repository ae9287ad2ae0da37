"""What else is executed in the loops around a statement: bytes beside it, and bytes that it finds loaded.

A loop keeps what it touches in a cache only if everything in its body fits, whichever statement touches it. Buffers
that several statements access count once: an intermediate, or an input that is shared. Where the body of a loop stays
in a cache, only the first statement in it that accesses a buffer moves it there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.loop_footprints import LoopFootprints
from tilewright.cost.traffic import partial_sum_bytes
from tilewright.cost.trees.nests import NestBatch
from tilewright.cost.trees.statements import common_depth
from tilewright.tile.tree_sizes import PartRange

Bytes = Mapping[str, Numbers]
"""Bytes of every buffer."""


def with_surroundings(batches: Sequence[NestBatch]) -> list[LoopFootprints]:
    """The footprints of all nests of a tree, with those of the others taken into account.

    Args:
        batches: in the order of execution. The parts of a partition are independent of each other.
    """
    if len(batches) == 1:
        return [batches[0].footprints]
    return [_surrounded(batches, k) for k in range(len(batches))]


def _surrounded(batches: Sequence[NestBatch], position: int) -> LoopFootprints:
    own = batches[position]
    footprints = own.footprints
    beside = np.zeros(footprints.operand_bytes.shape[1:])
    loaded = np.zeros_like(footprints.operand_bytes)
    others = [(k, x, _shared_depth(own, x)) for k, x in enumerate(batches) if k != position]
    for d, depth in enumerate(own.depths):
        mine = _bytes_at(own, d)
        inside = [(k, x) for k, x, shared in others if shared >= depth]
        beside[d] = _bytes_beside(mine, [(x, _index_of(x, depth, d)) for _, x in inside])
        # what the body of the next loop keeps, if all of it fits
        body = own.depths[d + 1] if d + 1 < len(own.depths) else inf
        earlier: dict[str, Numbers] = {}
        for k, x, shared in others:
            if k < position and shared >= body:
                for buffer, size in _bytes_at(x, _index_of(x, depth, d)).items():
                    earlier[buffer] = np.maximum(earlier.get(buffer, 0.0), size)
        _mark_loaded(own, d, earlier, mine, loaded)
    return replace(footprints, beside=beside, loaded=loaded)


def _bytes_beside(mine: Bytes, others: Sequence[tuple[NestBatch, int]]) -> Numbers | float:
    """Bytes that other nests, each at a depth of its footprints, touch and a nest does not."""
    every, sums = dict(mine), 0.0
    for x, depth in others:
        sums = sums + partial_sum_bytes(x.batch.family.problem, x.sketch, x.batch)
        for buffer, size in _bytes_at(x, depth).items():
            every[buffer] = np.maximum(every.get(buffer, 0.0), size)
    return sum((every[b] - mine.get(b, 0.0) for b in every), start=sums)


def _mark_loaded(batch: NestBatch, depth: int, earlier: Bytes, mine: Bytes, loaded: Numbers) -> None:
    """Sets the bytes of every access that earlier statements have loaded."""
    for a, o in enumerate(batch.shape.nest.accesses):
        if o.buffer in earlier:
            found = np.minimum(1.0, earlier[o.buffer] / np.maximum(mine[o.buffer], 1.0))
            loaded[a, depth] = batch.footprints.operand_bytes[a, depth] * found


def _bytes_at(batch: NestBatch, depth: int) -> Bytes:
    """Bytes of the buffers of a nest at a depth of its footprints; 0 for candidates that do not have it."""
    result: dict[str, Numbers] = {}
    for a, o in enumerate(batch.shape.nest.accesses):
        size = batch.footprints.operand_bytes[a, depth]
        size = size if batch.exists is None else np.where(batch.exists, size, 0.0)
        before = result.get(o.buffer, 0.0)
        # several accesses to a buffer on the stack are to the same elements, as of a sum that is updated in its place
        result[o.buffer] = np.maximum(before, size) if o.private else before + size
    return result


def _index_of(batch: NestBatch, depth: int, index: int) -> int:
    """The position among a nest's depths of a depth of its path; the kernel as a loop comes first."""
    if index == 0 or depth == 0:
        return index if depth == 0 else 0
    return next((d for d, x in enumerate(batch.depths) if x >= depth), len(batch.depths) - 1)


def _shared_depth(own: NestBatch, other: NestBatch) -> int:
    """Number of nodes that two nests share; -1 for different parts of a partition."""
    a, b = own.shape.nest.path, other.shape.nest.path
    limits = [x.shape.nest.shared_nodes for x in (own, other)]
    depth = min([common_depth(a, b), *(x for x in limits if x is not None)])
    if depth < len(a.nodes) and depth < len(b.nodes):
        left, right = a.nodes[depth], b.nodes[depth]
        is_cut = isinstance(left, PartRange) and isinstance(right, PartRange) and left.partition == right.partition
        if is_cut and left.place != right.place:
            return -1
    return depth
