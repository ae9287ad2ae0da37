"""Row-wise fusion: computations that share their outer axes become one kernel, so that rows stay in cache.

A softmax takes the maximum of a row, then exponentials, their sum, and quotients; a window reads planes that were
padded. All stages index the intermediates by the same leading axes, the *rows*: one loop over rows contains all stages,
and no intermediate reaches memory. FlashAttention (Section 3) and Halide's compute_at rest on the same fact.

Results that others read as well become further outputs of the kernel: they are stored once and read again from cache,
as the statistics of a normalization and the maxima whose places a pooling reports. Computations that read the rows of a
common operand are fused for its sake (horizontal fusion), as several reductions of one tensor.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.computation import Computation, iteration_space_size
from tilewright.expr.nodes import Buffer, Const
from tilewright.expr.pattern import Pattern, pattern_of
from tilewright.expr.traversal import is_one, loads
from tilewright.graph.fusion import (
    epilogue_of,
    have_private_rows,
    row_rank,
    row_size,
    share_iteration_space,
)
from tilewright.graph.memory_plan import representative_size
from tilewright.graph.program import Program, RuntimeStep, Step, step_outputs

FusionGroup = tuple[Computation, ...]


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """The computations of one kernel.

    Attributes:
        stages: in order of execution.
        outputs: the results that are stored, because others read them; among them that of the last stage.
    """

    stages: FusionGroup
    outputs: tuple[Buffer, ...]


MIN_PARALLEL_ROWS = 8
"""Rows that keep threads busy. With fewer rows stages are fused only where a row is so short that one thread may do
all."""

MAX_STAGES = 24
"""Computations of one kernel: the time of proofs about a kernel more than doubles with twice as many."""

MAX_SERIAL_ROW_POINTS = 1 << 15
"""Iterations of such a short row."""

MAX_SHARED_ROW_BYTES = 192 << 10
"""Bytes of a row that stays in the cache next to a core while several results are computed of it."""

MIN_SAVED_FRACTION = 1 / 8
"""Least share of the bytes of one of two kernels that fusion saves where it adds an output."""


VECTOR_RESULTS = 16
"""Results of a vector, on the machines with the widest ones."""

MIN_PARTIAL_ROW = 48
"""Results of the shortest rows that end in a part of a vector. Vectors stored under a mask are not forwarded to the
loads of a reduction: 4096 softmaxes of 10, 24 and 40 columns on one core of Sapphire Rapids take 176, 178 and 92 us in
one kernel, 46, 61 and 87 us in several; of 49 and 63 columns 98 and 104 us, and 109 and 149 us."""

MANY_ROWS = 64
"""Rows from which the time for each one outweighs that of starting further kernels, about 0.2 us."""

MIN_REDUCTION = 8
"""Points of the shortest reductions that share a kernel: three of 4 and 8 points of 4096 rows take 7.5 and 10.6 us in
one kernel, 5.7 and 14.5 us in three."""

MIN_DEPENDENT_REDUCTION = 128
"""Points of the shortest reductions of a row that need each other's results, and nothing else is computed of it, as
mean and variance: each waits for all lanes of the one before. 4096 rows of 32, 64, 100 and 128 columns take 20, 27, 42
and 53 us in one kernel, 16, 21, 40 and 70 us in two."""


def fuse_rowwise(groups: Sequence[FusionGroup], program: Program) -> list[FusedGroup]:
    """Merges fusion groups that work row by row: producers into their first readers, then groups that share an operand.

    Args:
        groups: one or more computations each, the last of which writes the group's result; in order of execution.
        program: the program of the computations; its outputs are stored.

    Returns:
        The groups in the order of their last computations. Other readers of a merged producer wait for the whole group.
    """
    state = _Groups(groups, program)
    while state.merge_into_readers():
        pass
    state.merge_siblings()
    return [FusedGroup(stages, tuple(state.outputs(stages))) for stages in state.merged.values()]


def can_fuse_rowwise(stages: FusionGroup, outputs: Collection[Buffer]) -> bool:
    """Whether stages may run in one loop over rows, or element-wise ones in one nest.

    Args:
        stages: in order of execution.
        outputs: the results that are stored, among them the last one.
    """
    if not any(s.is_reduction for s in stages):
        return share_iteration_space(stages) and len(outputs) == len(stages)
    if any(pattern_of(s) is Pattern.CONTRACTION for s in stages):
        return False
    rank = row_rank(stages, outputs)
    if rank == 0 or any(_is_wide_intermediate(stages, k, rank, outputs) for k in range(len(stages))):
        return False
    if _are_rows_too_short(stages, rank):
        return False
    if not have_private_rows(stages, {b.name for b in outputs}, rank):
        return False
    if (interval(iteration_space_size(stages[-1].axes[:rank]))[0] or 0) >= MIN_PARALLEL_ROWS:
        return True
    row_points = [interval(row_size(s, rank) * iteration_space_size(s.reduce_axes))[1] for s in stages]
    return all(n is not None and n <= MAX_SERIAL_ROW_POINTS for n in row_points)


def _are_rows_too_short(stages: FusionGroup, rank: int) -> bool:
    """Whether stages that reduce rows to single values are slower together because a row is so short."""
    reductions = [s for s in stages if s.is_reduction and is_one(row_size(s, rank))]
    rows = iteration_space_size(stages[-1].axes[:rank])
    if not reductions or (isinstance(rows, Const) and rows.value < MANY_ROWS):
        return False
    lengths = [n for s in stages if not is_one(n := row_size(s, rank))]
    if lengths:
        return any(isinstance(n, Const) and _is_short_partial_row(int(n.value)) for n in lengths)
    points = [iteration_space_size(s.reduce_axes) for s in reductions]
    written = {s.output for s in stages}
    is_dependent = any(not written.isdisjoint(s.inputs) for s in reductions)
    min_points = MIN_DEPENDENT_REDUCTION if is_dependent else MIN_REDUCTION
    return any(isinstance(n, Const) and n.value < min_points for n in points)


def _is_short_partial_row(length: int) -> bool:
    is_partial = length % VECTOR_RESULTS != 0 and length & (length - 1) != 0
    return is_partial and length < MIN_PARTIAL_ROW


def _is_wide_intermediate(stages: FusionGroup, k: int, rank: int, outputs: Collection[Buffer]) -> bool:
    """Whether a reduction has several results per row, which are not stored as they are or through its epilogue."""
    if not stages[k].is_reduction or is_one(row_size(stages[k], rank)):
        return False
    epilogue = epilogue_of(stages, k)
    return not any(s.output in outputs for s in (stages[k], *(() if epilogue is None else (stages[epilogue],))))


class _Groups:
    """Fusion groups while they are merged.

    Attributes:
        merged: the groups by the position of the one whose last computation is theirs.
    """

    def __init__(self, groups: Sequence[FusionGroup], program: Program) -> None:
        self.merged = dict(enumerate(groups))
        self._pinned = {buffer.name for _, buffer in program.outputs}
        self._positions = {b: k for k, step in enumerate(program.steps) for b in step_outputs(step)}
        self._step_positions = {id(step): k for k, step in enumerate(program.steps)}
        self._fallbacks = [k for k, step in enumerate(program.steps) if isinstance(step, RuntimeStep)]
        self._group_of = {s.output: k for k, group in self.merged.items() for s in group}
        self._reading_steps: dict[Buffer, list[Step]] = {}
        for step in program.steps:
            for b in dict.fromkeys(step.inputs):
                self._reading_steps.setdefault(b, []).append(step)
        # per position the last one of the groups whose computations lie around it
        self._span_ends = list(range(len(program.steps)))
        for group in self.merged.values():
            self._extend_spans(group)

    def merge_into_readers(self) -> bool:
        """Merges groups into ones that read their results, the first where that pays; whether there were any."""
        count = len(self.merged)
        for k in sorted(self.merged, reverse=True):
            readers = {self._index(r) for s in self.merged[k] for r in self._reading_steps.get(s.output, ())} - {k, -1}
            next((j for j in sorted(readers) if self.merge_if_profitable(k, j)), None)
        return len(self.merged) < count

    def merge_siblings(self) -> None:
        """Merges groups that read a common buffer, each into the next one."""
        for steps in self._reading_steps.values():
            groups = sorted({self._index(r) for r in steps} - {-1}, reverse=True)
            later = groups[0] if groups else -1
            for k in groups[1:]:
                later = later if self.merge_if_profitable(k, later) else k

    def merge_if_profitable(self, k: int, j: int) -> bool:
        """Merges group k into group j, which runs after it, where they may run row by row and that saves enough;
        whether it did."""
        stages = (*self.merged[k], *self.merged[j])
        outputs = self.outputs(stages)
        if len(stages) > MAX_STAGES or self._reads(k, j) or not can_fuse_rowwise(stages, outputs):
            return False
        if len(outputs) > len(self.outputs(self.merged[j])):
            if self._is_reached_outside(k, j) or self._is_reached_outside(j, k) or self._is_split_by_fallback(k, j):
                return False
            if not self._saves_enough(k, j, row_rank(stages, outputs)):
                return False
        del self.merged[k]
        self.merged[j] = stages
        self._extend_spans(stages)
        self._group_of.update((s.output, j) for s in stages)
        return True

    def _extend_spans(self, group: FusionGroup) -> None:
        positions = [self._positions[s.output] for s in group]
        for k in range(min(positions), max(positions)):
            self._span_ends[k] = max(self._span_ends[k], max(positions))

    def _last_ancestor(self, group: int) -> int:
        """The last position from which a path of steps and groups may lead to a group: paths lead forwards, and back
        only within the spans of groups."""
        end = max(self._positions[s.output] for s in self.merged[group])
        while self._span_ends[end] > end:
            end = self._span_ends[end]
        return end

    def _index(self, step: Step) -> int:
        """The group of a step, -1 for what is not computed by kernels."""
        return self._group_of.get(step.output, -1) if isinstance(step, Computation) else -1

    def outputs(self, stages: FusionGroup) -> list[Buffer]:
        """The results that the program or others than the stages read."""
        inside = {s.output for s in stages}

        def is_read(b: Buffer) -> bool:
            return any(not isinstance(r, Computation) or r.output not in inside for r in self._reading_steps.get(b, ()))

        return [s.output for s in stages if s.output.name in self._pinned or is_read(s.output)]

    def _reads(self, k: int, j: int) -> bool:
        """Whether group k reads results of group j."""
        written = {s.output for s in self.merged[j]}
        return any(not written.isdisjoint(s.inputs) for s in self.merged[k])

    def _is_reached_outside(self, start: int, end: int) -> bool:
        """Whether results of one group reach another one through steps of neither."""
        last = self._last_ancestor(end)
        pending = [r for s in self.merged[start] for r in self._reading_steps.get(s.output, ())]
        pending = [r for r in pending if self._index(r) not in (start, end) and self._step_positions[id(r)] <= last]
        seen = set(map(id, pending))
        while pending:
            group = self.merged.get(self._index(pending[-1]), ())
            step = pending.pop()
            for b in (x for s in group or (step,) for x in step_outputs(s)):
                for r in self._reading_steps.get(b, ()):
                    if self._index(r) == end:
                        return True
                    if id(r) not in seen and self._step_positions[id(r)] <= last:
                        seen.add(id(r))
                        pending.append(r)
        return False

    def _is_split_by_fallback(self, k: int, j: int) -> bool:
        """Whether a step of the evaluator, which may define sizes, lies between the results of two groups."""
        first, last = (self._positions[self.merged[x][-1].output] for x in (k, j))
        return any(first < position < last for position in self._fallbacks)

    def _saves_enough(self, k: int, j: int, rank: int) -> bool:
        """Whether rows that both groups use are a good part of what one of them reads and writes, at representative
        sizes.

        They are saved where one row, or what a row of results needs, stays in the cache next to a core.
        """
        rows = representative_size(iteration_space_size(self.merged[j][-1].axes[:rank]))
        first, second = (_touched_bytes(self.merged[x], self.outputs(self.merged[x])) for x in (k, j))
        shared = [b for b in first if b in second and _is_read_by_rows(b, (*self.merged[k], *self.merged[j]), rank)]
        sizes = (representative_size(b.size * b.dtype.bytes) for b in shared)
        saved = sum(n for n in sizes if n <= MAX_SHARED_ROW_BYTES * rows)
        return saved >= MIN_SAVED_FRACTION * min(sum(first.values()), sum(second.values()))


def _touched_bytes(stages: FusionGroup, outputs: Collection[Buffer]) -> dict[Buffer, int]:
    """Bytes that a kernel reads and writes by buffer; a written line is read first."""
    results = {s.output for s in stages}
    read = dict.fromkeys(b for s in stages for b in s.inputs if b not in results)
    touched = {b: representative_size(b.size * b.dtype.bytes) for b in read}
    return touched | {b: 2 * representative_size(b.size * b.dtype.bytes) for b in outputs}


def _is_read_by_rows(b: Buffer, stages: FusionGroup, rank: int) -> bool:
    """Whether all loads of a buffer walk the same of its dimensions with the rows of their stages."""
    places: set[tuple[int, ...]] = set()
    for s in stages:
        rows = [a.var for a in s.axes[:rank] if not is_one(a.extent)]
        for x in (x for x in loads(s.body) if x.buffer == b):
            if not set(rows) <= set(x.indices):
                return False
            places.add(tuple(x.indices.index(v) for v in rows))
    return len(places) <= 1
