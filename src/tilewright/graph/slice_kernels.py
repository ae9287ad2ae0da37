"""Slicing of kernel groups: kernels with large intermediates run slice by slice of their leading axis.

All kernels of a group run on the first part of their leading axis, then all on the next part. Attention's scores are
far larger than its operands; kernels that run one after the other over all heads write the scores to memory and fetch
them again, twice. The scores of one head or a few stay in the caches. Every kernel works at its own place of the
leading axis alone, so a slice needs no more than whole kernels do: one function per kernel serves all slices and is
called with pointers into each. (This is the split of the outer loop that producer and consumer share, as in Halide's
`compute_at` and in strip-mining, with kernels as loop bodies.)
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import gcd, prod

from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var, const
from tilewright.expr.traversal import free_vars, loads, replace_loads
from tilewright.graph.kernel import Kernel, Slices
from tilewright.graph.partition import Unit
from tilewright.graph.program import Program

MAX_SLICES = 32
"""Slices of one group; each slice calls every kernel once."""

MIN_SLICE_POINTS = 1 << 20
"""Iterations of a group per slice; with fewer the start of threads for each kernel dominates."""

MIN_INTERMEDIATE_RATIO = 2
"""What each kernel hands on is at least this many times as large as all operands and results of the group together.
With larger operands slices save little, and operands that all slices read, such as weights, would be fetched for each
slice."""


def slice_kernels(units: Sequence[Unit], program: Program, cache_bytes: int) -> tuple[Unit, ...]:
    """The units with groups of kernels of literal sizes that run slice by slice.

    Args:
        units: in order of execution.
        program: the program of the units; its constants are not sliced, and its outputs are whole.
        cache_bytes: bytes of intermediates of one slice that stay in the caches.
    """
    result = list(units)
    readers = _reader_counts(units)
    outputs = {b.name for _, b in program.outputs}
    k = 0
    while k < len(result):
        group: list[Kernel] = []
        for end in range(k, len(result)):
            u = result[end]
            if not isinstance(u, Kernel) or (group and not _can_extend_group(group, u, readers, outputs, program)):
                break
            group.append(u)
        if len(group) > 1:
            result[k : k + len(group)] = _slice_group(group, readers, outputs, cache_bytes)
        k += max(1, len(group))
    return tuple(result)


def _reader_counts(units: Sequence[Unit]) -> dict[str, int]:
    """The number of units that read each buffer."""
    counts: dict[str, int] = {}
    for u in units:
        for b in dict.fromkeys(u.reads if isinstance(u, Kernel) else u.inputs):
            counts[b.name] = counts.get(b.name, 0) + 1
    return counts


def _can_extend_group(
    group: Sequence[Kernel], consumer: Kernel, readers: dict[str, int], outputs: set[str], program: Program
) -> bool:
    """Whether a kernel is the only reader of a result of the group's last kernel, reads it slice by slice, and such
    results are much larger than the last kernel's operands and other results."""
    producer = group[-1]
    intermediates = _intermediates(producer, consumer, readers, outputs)
    sliced = [_sliced_params(k, program) for k in (producer, consumer)]
    params = dict(zip((b.name for b in consumer.arguments), consumer.params, strict=True))
    if not intermediates or sliced[0] is None or sliced[1] is None:
        return False
    written = {b.name for k in group for b in k.writes}
    if any(params[b.name].name not in sliced[1] for b in consumer.reads if b.name in written):
        return False
    before = {b.name for k in group[:-1] for b in k.writes} | {b.name for b in intermediates}
    others = (b for b in (*producer.reads, *producer.writes) if b.name not in before)
    return sum(map(_bytes, intermediates)) >= MIN_INTERMEDIATE_RATIO * sum(map(_bytes, others))


def _intermediates(producer: Kernel, consumer: Kernel, readers: dict[str, int], outputs: set[str]) -> list[Buffer]:
    """The results of a kernel that another kernel alone reads and that are no outputs of the program."""
    read = {b.name for b in consumer.reads}
    return [b for b in producer.writes if b.name in read and readers.get(b.name) == 1 and b.name not in outputs]


def _sliced_params(kernel: Kernel, program: Program) -> frozenset[str] | None:
    """The parameters whose first dimension the leading axis of all stages walks, if no other parameter depends on that
    axis; None where the kernel cannot be sliced along it."""
    if not all(isinstance(n, Const) for b in kernel.params for n in b.shape):
        return None
    if not all(isinstance(a.extent, Const) for s in kernel.stages for a in (*s.axes, *s.reduce_axes)):
        return None
    if any(not s.axes for s in kernel.stages):
        return None
    extent = kernel.stages[-1].axes[0].extent
    is_sliced: dict[str, bool] = {s.output.name: True for s in kernel.stages}
    for s in kernel.stages:
        lead = s.axes[0]
        if lead.extent is not extent or not _is_leading_index_only(s.body, lead.var):
            return None
        for x in loads(s.body):
            sliced = bool(x.indices) and x.indices[0] is lead.var and x.buffer.shape[0] is extent
            if not sliced and any(lead.var in free_vars(i) for i in x.indices):
                return None
            if is_sliced.setdefault(x.buffer.name, sliced) != sliced:
                return None
    constant_params = {
        p.name for p, b in zip(kernel.params, kernel.arguments, strict=True) if b.name in program.constants
    }
    sliced = frozenset(name for name, flag in is_sliced.items() if flag)
    return None if sliced & constant_params else sliced


def _is_leading_index_only(body: Expr, lead: Var) -> bool:
    """Whether a variable occurs as the first index of loads and nowhere else."""
    hidden = replace_loads(body, lambda x: Load(x.buffer, (const(0), *x.indices[1:])) if x.indices else x)
    return lead not in free_vars(hidden)


def _slice_group(group: Sequence[Kernel], readers: dict[str, int], outputs: set[str], cache_bytes: int) -> list[Kernel]:
    """The kernels of a group, each for one slice; unchanged where slices would gain nothing."""
    handed_over = [_intermediates(a, k, readers, outputs) for a, k in pairwise(group)]
    intermediates = {b.name: _bytes(b) for between in handed_over for b in between}
    operands = {b.name: _bytes(b) for k in group for b in k.arguments if b.name not in intermediates}
    if min(sum(map(_bytes, between)) for between in handed_over) < MIN_INTERMEDIATE_RATIO * sum(operands.values()):
        return list(group)
    points = sum(_points((*s.axes, *s.reduce_axes)) for k in group for s in k.stages)
    max_count = min(MAX_SLICES, points // MIN_SLICE_POINTS)
    lead = gcd(*(_literal(k.stages[-1].axes[0].extent) for k in group))
    counts = [n for n in range(1, max_count + 1) if lead % n == 0]
    count = next((n for n in counts if sum(intermediates.values()) <= n * cache_bytes), counts[-1] if counts else 1)
    if count == 1:
        return list(group)
    slices = Slices(next(iter(intermediates)), count, frozenset(intermediates))
    return [_slice_kernel(k, slices) for k in group]


def _slice_kernel(kernel: Kernel, slices: Slices) -> Kernel:
    """A kernel over one slice."""
    sliced = {
        x.buffer.name for s in kernel.stages for x in loads(s.body) if x.indices and x.indices[0] is s.axes[0].var
    }
    sliced |= {s.output.name for s in kernel.stages}

    def part(b: Buffer) -> Buffer:
        if b.name not in sliced:
            return b
        return replace(b, shape=(const(_literal(b.shape[0]) // slices.count), *b.shape[1:]))

    stages: list[Computation] = []
    for s in kernel.stages:
        lead = Axis(s.axes[0].var, const(_literal(s.axes[0].extent) // slices.count))
        body = replace_loads(s.body, lambda x: Load(part(x.buffer), x.indices))
        stages.append(replace(s, output=part(s.output), axes=(lead, *s.axes[1:]), body=body))
    params = tuple(map(part, kernel.params))
    sliced_params = frozenset(b.name for b in kernel.params if b.name in sliced)
    return replace(kernel, stages=tuple(stages), params=params, slices=slices, sliced_params=sliced_params)


def _bytes(b: Buffer) -> int:
    return prod(map(_literal, b.shape)) * b.dtype.bytes


def _points(axes: Sequence[Axis]) -> int:
    return prod(_literal(a.extent) for a in axes)


def _literal(e: Expr) -> int:
    assert isinstance(e, Const)
    return int(e.value)
