"""Row-wise fusion: computations that share their outer axes become one kernel, so that intermediate rows stay in cache.

A softmax takes the maximum of a row, then exponentials, their sum, and quotients; a window reads planes that were
padded. All stages index the intermediates by the same leading axes, the *rows*: one loop over rows contains all stages,
and no intermediate reaches memory. FlashAttention (Section 3) and Halide's compute_at rest on the same fact.
"""

from collections.abc import Sequence

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.computation import Computation, iteration_space_size
from tilewright.expr.nodes import Buffer, Const, Expr
from tilewright.expr.pattern import Pattern, pattern_of, reads_elementwise
from tilewright.expr.traversal import loads
from tilewright.graph.program import Program, Step
from tilewright.ops.definition import is_one

FusionGroup = tuple[Computation, ...]

MAX_INTERMEDIATE_BYTES = 192 << 10
"""Bytes of intermediates of one row; they are on the stacks of threads, in the caches next to the cores."""

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
    last_stages = stages[-2:] if _has_elementwise_epilogue(stages) else stages[-1:]
    if rank == 0 or any(s.is_reduction and s not in last_stages and not is_one(_row_size(s, rank)) for s in stages):
        return False
    intermediate_sizes = [_literal(_row_size(s, rank)) for s in stages[:-1]]
    if any(n is None for n in intermediate_sizes):
        return False
    if (
        sum((n or 0) * s.output.dtype.bytes for n, s in zip(intermediate_sizes, stages, strict=False))
        > MAX_INTERMEDIATE_BYTES
    ):
        return False
    if (interval(iteration_space_size(stages[-1].axes[:rank]))[0] or 0) >= MIN_PARALLEL_ROWS:
        return True
    row_points = [interval(_row_size(s, rank) * iteration_space_size(s.reduce_axes))[1] for s in stages]
    return all(n is not None and n <= MAX_SERIAL_ROW_POINTS for n in row_points)


def shared_outer_axes(stages: Sequence[Computation]) -> int:
    """The number of leading axes that are rows: every stage has them and reads intermediates at these very axes.

    0 where a stage reads an intermediate at data-dependent indices.
    """
    intermediates = {s.output for s in stages[:-1]}
    last = stages[-1]
    rank = min(len(s.axes) for s in stages)
    for s in stages:
        rank = min(rank, _common_prefix([a.extent for a in s.axes[:rank]], [a.extent for a in last.axes[:rank]]))
        for x in loads(s.body):
            if x.buffer in intermediates:
                outer_vars = [a.var for a in s.axes[:rank]]
                index = zip(x.indices, x.buffer.shape, outer_vars, strict=False)
                rank = min(rank, _common_prefix([v if is_one(n) else i for i, n, v in index], outer_vars))
                rank = 0 if any(loads(i) for i in x.indices) else rank
    return rank


def _common_prefix(left: Sequence[Expr], right: Sequence[Expr]) -> int:
    """The length of the common prefix of two sequences of expressions."""
    pairs = list(zip(left, right, strict=False))
    return next((k for k, (a, b) in enumerate(pairs) if a is not b), len(pairs))


def _row_size(s: Computation, rank: int) -> Expr:
    """Number of results of a computation in one row."""
    return iteration_space_size(s.axes[rank:])


def _has_elementwise_epilogue(stages: FusionGroup) -> bool:
    """Whether the last stage reads the results of the reduction before it at its own indices."""
    if len(stages) < 2 or stages[-1].is_reduction or not stages[-2].is_reduction:
        return False
    return reads_elementwise(stages[-1], stages[-2].output)


def _literal(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) else None
