"""Kernels in a row that hand on more than the caches hold run slice by slice: all of them on the first part of their
leading axis, then all on the next part.

Attention's scores are far larger than what they are made of; kernels that run one after the other over all heads write
them to memory and fetch them again, twice. Of one head or a few they stay in the caches. Every kernel works on its own
place of the leading axis alone, so a slice needs no more than whole kernels do: one function per kernel serves all
slices, called with pointers that lie apart. (It is the split of a producer's and its consumer's shared outer loop, as
Halide's `compute_at` and strip-mining do, with kernels as the bodies.)
"""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod

from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var, const
from tilewright.expr.traversal import free_vars, loads, replace_loads
from tilewright.graph.kernel import Kernel, Slices
from tilewright.graph.partition import Unit
from tilewright.graph.program import Program

MAX_SLICES = 32
"""Slices of one group; every one is a call of every kernel."""

MIN_SLICE_POINTS = 1 << 20
"""Iterations of a group that one slice is worth: less is not much beside starting threads for each kernel."""

MIN_INTERMEDIATE_RATIO = 2
"""Every buffer handed on is at least so many times as large as all operands and results of the group together. Where
operands are as large, slices save little, and what all slices read, as weights, would be fetched for each."""


def slice_kernels(units: Sequence[Unit], program: Program, cache_bytes: int) -> tuple[Unit, ...]:
    """The units with groups of kernels that run slice by slice, all sizes of which are literal.

    Args:
        units: in an order of execution.
        program: of the units; constants are not cut, and its outputs are whole.
        near: bytes that the kernels of a slice may hand on so that they stay in the caches.
    """
    result = list(units)
    readers = _reader_counts(units)
    pinned = {b.name for _, b in program.outputs}
    k = 0
    while k < len(result):
        group: list[Kernel] = []
        for position in range(k, len(result)):
            u = result[position]
            if not isinstance(u, Kernel) or (group and not _can_extend_group(group, u, readers, pinned, program)):
                break
            group.append(u)
        if len(group) > 1:
            result[k : k + len(group)] = _slice_group(group, cache_bytes)
        k += max(1, len(group))
    return tuple(result)


def _reader_counts(units: Sequence[Unit]) -> dict[str, int]:
    """How many units read each buffer."""
    found: dict[str, int] = {}
    for u in units:
        for b in dict.fromkeys(u.arguments[:-1] if isinstance(u, Kernel) else u.inputs):
            found[b.name] = found.get(b.name, 0) + 1
    return found


def _can_extend_group(
    group: Sequence[Kernel], consumer: Kernel, readers: dict[str, int], pinned: set[str], program: Program
) -> bool:
    """Whether a kernel, and nothing else, reads the last result of a group part by part, which is much more than what
    it was made of."""
    first, made = group[-1], group[-1].arguments[-1]
    if made.name in pinned or readers.get(made.name) != 1 or made.name not in {b.name for b in consumer.arguments[:-1]}:
        return False
    cut = [_sliced_params(k, program) for k in (first, consumer)]
    given = dict(zip((b.name for b in consumer.arguments), consumer.params, strict=True))
    if cut[0] is None or cut[1] is None or given[made.name].name not in cut[1]:
        return False
    handed = {k.arguments[-1].name for k in group}
    return _bytes(made) >= MIN_INTERMEDIATE_RATIO * sum(_bytes(b) for b in first.arguments[:-1] if b.name not in handed)


def _sliced_params(kernel: Kernel, program: Program) -> frozenset[str] | None:
    """The parameters whose first dimension the leading axis of all stages walks, where all others have none of it; None
    where the kernel can't be cut along it."""
    if not all(isinstance(n, Const) for b in kernel.params for n in b.shape):
        return None
    if not all(isinstance(a.extent, Const) for s in kernel.stages for a in (*s.axes, *s.reduce_axes)):
        return None
    if any(not s.axes for s in kernel.stages):
        return None
    extent = kernel.stages[-1].axes[0].extent
    found: dict[str, bool] = {s.output.name: True for s in kernel.stages}
    for s in kernel.stages:
        lead = s.axes[0]
        if lead.extent is not extent or not _is_leading_index_only(s.body, lead.var):
            return None
        for x in loads(s.body):
            cut = bool(x.indices) and x.indices[0] is lead.var and x.buffer.shape[0] is extent
            if not cut and any(lead.var in free_vars(i) for i in x.indices):
                return None
            if found.setdefault(x.buffer.name, cut) != cut:
                return None
    fixed = {p.name for p, b in zip(kernel.params, kernel.arguments, strict=True) if b.name in program.constants}
    cut = frozenset(name for name, yes in found.items() if yes)
    return None if cut & fixed else cut


def _is_leading_index_only(body: Expr, lead: Var) -> bool:
    """Whether a variable occurs as the first index of loads and nowhere else."""
    hidden = replace_loads(body, lambda x: Load(x.buffer, (const(0), *x.indices[1:])) if x.indices else x)
    return lead not in free_vars(hidden)


def _slice_group(group: Sequence[Kernel], cache_bytes: int) -> list[Kernel]:
    """The kernels of a group, each for one slice; as they are where slices would gain nothing."""
    private = {k.arguments[-1].name: _bytes(k.arguments[-1]) for k in group[:-1]}
    outside = {b.name: _bytes(b) for k in group for b in k.arguments if b.name not in private}
    if min(private.values()) < MIN_INTERMEDIATE_RATIO * sum(outside.values()):
        return list(group)
    work = sum(_points((*s.axes, *s.reduce_axes)) for k in group for s in k.stages)
    most = min(MAX_SLICES, work // MIN_SLICE_POINTS)
    lead = gcd(*(_literal(k.stages[-1].axes[0].extent) for k in group))
    counts = [n for n in range(1, most + 1) if lead % n == 0]
    count = next((n for n in counts if sum(private.values()) <= n * cache_bytes), counts[-1] if counts else 1)
    if count == 1:
        return list(group)
    slices = Slices(group[0].arguments[-1].name, count, frozenset(private))
    return [_slice_kernel(k, slices) for k in group]


def _slice_kernel(kernel: Kernel, slices: Slices) -> Kernel:
    """A kernel over one slice."""
    walked = {
        x.buffer.name for s in kernel.stages for x in loads(s.body) if x.indices and x.indices[0] is s.axes[0].var
    }
    walked |= {s.output.name for s in kernel.stages}

    def part(b: Buffer) -> Buffer:
        if b.name not in walked:
            return b
        return replace(b, shape=(const(_literal(b.shape[0]) // slices.count), *b.shape[1:]))

    stages: list[Computation] = []
    for s in kernel.stages:
        lead = Axis(s.axes[0].var, const(_literal(s.axes[0].extent) // slices.count))
        body = replace_loads(s.body, lambda x: Load(part(x.buffer), x.indices))
        stages.append(replace(s, output=part(s.output), axes=(lead, *s.axes[1:]), body=body))
    params = tuple(map(part, kernel.params))
    cut = frozenset(b.name for b in kernel.params if b.name in walked)
    return replace(kernel, stages=tuple(stages), params=params, slices=slices, sliced_params=cut)


def _bytes(b: Buffer) -> int:
    return prod(map(_literal, b.shape)) * b.dtype.bytes


def _points(axes: Sequence[Axis]) -> int:
    return prod(_literal(a.extent) for a in axes)


def _literal(e: Expr) -> int:
    assert isinstance(e, Const)
    return int(e.value)
