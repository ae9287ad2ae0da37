"""Row-wise fusion: computations that share their outer axes become one kernel, so that intermediate rows stay in cache.

A softmax takes the maximum of a row, then exponentials, their sum, and quotients; a window reads planes that were
padded. All stages index the intermediates by the same leading axes, the *rows*: one loop over rows contains all stages,
and no intermediate reaches memory. FlashAttention (Section 3) and Halide's compute_at rest on the same fact.
"""

from collections.abc import Sequence

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.computation import Computation, iteration_space_size
from tilewright.expr.nodes import Buffer
from tilewright.expr.pattern import Pattern, pattern_of
from tilewright.graph.fusion import (
    MAX_INTERMEDIATE_BYTES,
    has_elementwise_epilogue,
    intermediate_bytes,
    row_size,
    shared_outer_axes,
)
from tilewright.graph.program import Program, Step
from tilewright.ops.definition import is_one

FusionGroup = tuple[Computation, ...]

MIN_PARALLEL_ROWS = 8
"""Rows that keep threads busy. With fewer rows stages are fused only where a row is so short that one thread may do
all."""

MAX_STAGES = 24
"""Computations of one kernel: the time of proofs about a kernel more than doubles with twice as many."""

MAX_SERIAL_ROW_POINTS = 1 << 15
"""Iterations of such a short row."""


def fuse_rowwise(groups: Sequence[FusionGroup], program: Program) -> list[FusionGroup]:
    """Merges fusion groups into the groups that are the only readers of their results, where all stages work row by
    row.

    Args:
        groups: one or more computations each, the last of which writes the group's result; in order of execution.
        program: the program of the computations; its outputs are not fused away.
    """
    pinned = {buffer.name for _, buffer in program.outputs}
    readers: dict[Buffer, list[Step]] = {}
    for step in program.steps:
        for b in dict.fromkeys(step.inputs):
            readers.setdefault(b, []).append(step)
    merged: dict[int, FusionGroup] = dict(enumerate(groups))
    group_of = {s.output: k for k, group in merged.items() for s in group}
    for k in range(len(groups) - 2, -1, -1):
        result = merged[k][-1].output
        users = {group_of.get(r.output, -1) if isinstance(r, Computation) else -1 for r in readers.get(result, ())}
        j = users.pop() if len(users) == 1 else -1
        if j <= k or result.name in pinned or len(merged[k]) + len(merged[j]) > MAX_STAGES:
            continue
        if can_fuse_rowwise((*merged[k], *merged[j])):
            merged[j] = (*merged.pop(k), *merged[j])
            group_of.update((s.output, j) for s in merged[j])
    return list(merged.values())


def can_fuse_rowwise(stages: FusionGroup) -> bool:
    """Whether stages gain from one loop over rows."""
    if not any(s.is_reduction for s in stages) or any(pattern_of(s) is Pattern.CONTRACTION for s in stages):
        return False
    rank = shared_outer_axes(stages)
    last_stages = stages[-2:] if has_elementwise_epilogue(stages) else stages[-1:]
    if rank == 0 or any(s.is_reduction and s not in last_stages and not is_one(row_size(s, rank)) for s in stages):
        return False
    row_bytes = intermediate_bytes(stages[:-1], rank)
    if row_bytes is None or row_bytes > MAX_INTERMEDIATE_BYTES:
        return False
    if (interval(iteration_space_size(stages[-1].axes[:rank]))[0] or 0) >= MIN_PARALLEL_ROWS:
        return True
    row_points = [interval(row_size(s, rank) * iteration_space_size(s.reduce_axes))[1] for s in stages]
    return all(n is not None and n <= MAX_SERIAL_ROW_POINTS for n in row_points)
