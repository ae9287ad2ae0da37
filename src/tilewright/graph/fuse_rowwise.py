"""Chains of computations that work row by row share a kernel: their intermediate rows stay in the caches.

A softmax takes a row's maximum, then exponentials, then their sum, then quotients; a window reads planes that were
padded. All of them index what they hand on by the same leading axes, the *rows*, so one loop over rows does everything,
and what is handed on need never reach memory. FlashAttention (Section 3) and Halide's compute_at rest on the same fact.
"""

from collections.abc import Sequence

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.computation import Computation, iteration_space_size
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.graph.inline_elementwise import is_contraction_body, is_same_element
from tilewright.graph.program import Program, Step

FusionGroup = tuple[Computation, ...]

MAX_INTERMEDIATE_BYTES = 192 << 10
"""Bytes of rows that a chain hands on in one iteration; they live on the stacks of threads, in the caches near them."""

MIN_PARALLEL_ROWS = 8
"""Rows that keep threads busy. Fewer are a chain only where a row is so short that one thread may do all."""

MAX_STAGES = 24
"""Computations of one chain: what is proved about a kernel takes more than twice as long for twice as many."""

MAX_SERIAL_ROW_POINTS = 1 << 15
"""Points of such a row."""

MAX_WINDOW_POINTS = 64
"""Points of a reduction up to which a product is a window that reads its operand in place, as a depthwise convolution
does; longer ones are contractions, which want tiles across rows."""


def fuse_rowwise(groups: Sequence[FusionGroup], program: Program) -> list[FusionGroup]:
    """Merges groups of computations into those that alone read their results, where all work row by row.

    Args:
        groups: one or more computations each, the last of which makes the group's result; in an order of execution.
        program: of the computations; its outputs stay.
    """
    pinned = {buffer.name for _, buffer in program.outputs}
    readers: dict[Buffer, list[Step]] = {}
    for step in program.steps:
        for b in dict.fromkeys(step.inputs):
            readers.setdefault(b, []).append(step)
    merged: dict[int, FusionGroup] = dict(enumerate(groups))
    place = {s.output: k for k, group in merged.items() for s in group}
    for k in range(len(groups) - 2, -1, -1):
        result = merged[k][-1].output
        users = {place.get(r.output, -1) if isinstance(r, Computation) else -1 for r in readers.get(result, ())}
        j = users.pop() if len(users) == 1 else -1
        if j <= k or result.name in pinned or len(merged[k]) + len(merged[j]) > MAX_STAGES:
            continue
        if can_fuse_rowwise((*merged[k], *merged[j])):
            merged[j] = (*merged.pop(k), *merged[j])
            place.update((s.output, j) for s in merged[j])
    return list(merged.values())


def can_fuse_rowwise(stages: FusionGroup) -> bool:
    """Whether a chain of computations gains from one loop over rows."""
    if not any(s.is_reduction for s in stages) or any(_is_contraction(s) for s in stages):
        return False
    rank = shared_outer_axes(stages)
    ends = stages[-2:] if _has_elementwise_epilogue(stages) else stages[-1:]
    if rank == 0 or any(s.is_reduction and s not in ends and not _is_one(_row_size(s, rank)) for s in stages):
        return False
    handed = [_literal(_row_size(s, rank)) for s in stages[:-1]]
    if any(n is None for n in handed):
        return False
    if sum((n or 0) * s.output.dtype.bytes for n, s in zip(handed, stages, strict=False)) > MAX_INTERMEDIATE_BYTES:
        return False
    if (interval(iteration_space_size(stages[-1].axes[:rank]))[0] or 0) >= MIN_PARALLEL_ROWS:
        return True
    rows = [interval(_row_size(s, rank) * iteration_space_size(s.reduce_axes))[1] for s in stages]
    return all(n is not None and n <= MAX_SERIAL_ROW_POINTS for n in rows)


def shared_outer_axes(stages: Sequence[Computation]) -> int:
    """How many leading axes are rows: every stage has them, and reads what others made at these very axes.

    None are where a stage reads elements of a row that only data tells.
    """
    made = {s.output for s in stages[:-1]}
    last = stages[-1]
    rank = min(len(s.axes) for s in stages)
    for s in stages:
        rank = min(rank, _common_prefix([a.extent for a in s.axes[:rank]], [a.extent for a in last.axes[:rank]]))
        for x in loads(s.body):
            if x.buffer in made:
                own = [a.var for a in s.axes[:rank]]
                index = zip(x.indices, x.buffer.shape, own, strict=False)
                rank = min(rank, _common_prefix([v if _is_one(n) else i for i, n, v in index], own))
                rank = 0 if any(loads(i) for i in x.indices) else rank
    return rank


def _common_prefix(found: Sequence[Expr], wanted: Sequence[Expr]) -> int:
    """How many of the first expressions are the same."""
    pairs = list(zip(found, wanted, strict=False))
    return next((k for k, (a, b) in enumerate(pairs) if a is not b), len(pairs))


def _row_size(s: Computation, rank: int) -> Expr:
    """Results of a computation in one row."""
    return iteration_space_size(s.axes[rank:])


def _has_elementwise_epilogue(stages: FusionGroup) -> bool:
    """Whether the last stage takes over the results of a reduction before it one by one."""
    if len(stages) < 2 or stages[-1].is_reduction or not stages[-2].is_reduction:
        return False
    reads = [x for x in loads(stages[-1].body) if x.buffer == stages[-2].output]
    index = tuple(a.var for a in stages[-1].axes)
    same = stages[-2].output.shape == stages[-1].output.shape
    return bool(reads) and same and all(is_same_element(x, index) for x in reads)


def _is_contraction(s: Computation) -> bool:
    """Whether products are summed over many points, or no operand is read at every result's own place."""
    if not (s.is_reduction and is_contraction_body(s.body)):
        return False
    taps = _literal(iteration_space_size(s.reduce_axes))
    axes = {a.var for a in s.axes if not _is_one(a.extent)}
    return taps is None or taps > MAX_WINDOW_POINTS or not any(axes <= _index_variables(x) for x in loads(s.body))


def _index_variables(x: Load) -> set[Var]:
    """The variables in the indices of a load."""
    return {v for i in x.indices for v in free_vars(i)}


def _is_one(e: Expr) -> bool:
    return _literal(e) == 1


def _literal(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) else None
