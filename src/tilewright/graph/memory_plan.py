"""Memory planning: locations of all buffers of a run of kernels, with reuse of memory.

Sizes are expressions over the symbols of dimensions, so the plan consists of *slots*: buffers with disjoint live ranges
share a slot, the slot's size is the largest of theirs, and offsets are sums of sizes. Native code evaluates them once
per shape. Slots are filled in order of decreasing size at representative values of the symbols (greedy by size for
shared objects; Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, section 4.2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import InternalError
from tilewright.expr.algebra.polynomial import Monomial, polynomial
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.computation import View
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.operations import ceildiv, maximum
from tilewright.expr.traversal import free_vars
from tilewright.graph.buffer_location import (
    BufferLocation,
    ConstantLocation,
    InputLocation,
    OutputLocation,
    WorkspaceLocation,
)
from tilewright.machine.alignment import BUFFER_ALIGNMENT

_REPRESENTATIVE_DIM = 64
"""Size of a symbolic dimension in comparisons of buffers."""

_MAX_PROVED_SIZES = 8
"""Size expressions of one slot up to which proofs simplify their maximum."""


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """The buffers of one kernel, which never share memory with each other.

    Attributes:
        reads: buffers that it reads.
        writes: buffers that it writes, each for the first time.
        scratch: buffers that hold data during the kernel only.
    """

    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputCopy:
    """A copy of `source`, which is elsewhere, to output `index` after the last kernel."""

    index: int
    source: Buffer


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the workspace.

    Attributes:
        size: bytes, a multiple of `BUFFER_ALIGNMENT`.
        buffers: names of the buffers that use it, one after the other.
    """

    size: Expr
    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPlan:
    """The locations of the buffers of a run of kernels.

    Attributes:
        locations: by buffer name; a view has the location of its source.
        copies: copies to outputs after the last kernel.
        slots: the parts of the workspace, in order of their offsets.
        total: bytes of the workspace.
        size_without_reuse: bytes of the workspace's buffers without reuse and alignment.
    """

    locations: Mapping[str, BufferLocation]
    copies: tuple[OutputCopy, ...]
    slots: tuple[Slot, ...]
    total: Expr
    size_without_reuse: Expr


def byte_size(buffer: Buffer) -> Expr:
    """Bytes of a buffer, rounded up to `BUFFER_ALIGNMENT`."""
    return _round_up(buffer.size * buffer.dtype.bytes)


def _round_up(size: Expr) -> Expr:
    return ceildiv(size, BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


@dataclass(slots=True)
class _LiveRange:
    """A buffer of the workspace with the first and last step that use its memory."""

    buffer: Buffer
    first: int
    last: int


@dataclass(slots=True)
class _OpenSlot:
    live_ranges: list[_LiveRange] = field(default_factory=list[_LiveRange])
    sizes: dict[Expr, None] = field(default_factory=dict[Expr, None])

    def fits(self, life: _LiveRange) -> bool:
        return all(life.last < other.first or other.last < life.first for other in self.live_ranges)


def plan_memory(
    steps: Sequence[KernelAccess | View],
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    constants: Sequence[Buffer],
) -> MemoryPlan:
    """The memory plan of a run of kernels.

    Args:
        steps: kernels and views in order of execution.
        inputs: buffers that are filled before the first step and stay unchanged.
        outputs: buffers whose data must be in the caller's output memory at the end. Repetitions, inputs, constants and
            views of them are allowed and cost a copy; all others are computed in place.
        constants: buffers with data of their own.

    Raises:
        InternalError: a buffer is read before it is written, or written twice.
    """
    roots = _roots(steps, inputs, constants)
    places: dict[str, BufferLocation] = {b.name: ConstantLocation(b.name) for b in constants}
    places |= {b.name: InputLocation(k) for k, b in enumerate(inputs)}
    copies: list[OutputCopy] = []
    for k, b in enumerate(outputs):
        if b.name not in roots:
            raise InternalError(f"output {b.name!r} is written by no step", where="memory plan")
        root = roots[b.name]
        if root.name in places:
            copies.append(OutputCopy(k, b))
        else:
            places[root.name] = OutputLocation(k)
    ranges = _live_ranges(steps, roots, [c.source for c in copies])
    ranges = [r for r in ranges if r.buffer.name not in places]
    slots = _assign_slots(ranges)
    offset: Expr = const(0)
    for k, slot in enumerate(slots):
        places |= {name: WorkspaceLocation(offset, k) for name in slot.buffers}
        offset = offset + slot.size
    unshared: Expr = const(0)
    for r in ranges:
        unshared = unshared + r.buffer.size * r.buffer.dtype.bytes
    places |= {name: places[root.name] for name, root in roots.items()}
    return MemoryPlan(places, tuple(copies), slots, offset, unshared)


def _roots(
    steps: Sequence[KernelAccess | View], inputs: Sequence[Buffer], constants: Sequence[Buffer]
) -> dict[str, Buffer]:
    """For every buffer the buffer whose memory it has: its source for a view, else itself."""
    roots = {b.name: b for b in (*inputs, *constants)}
    for step in steps:
        reads = step.inputs if isinstance(step, View) else step.reads
        for b in reads:
            if b.name not in roots:
                raise InternalError(f"buffer {b.name!r} is read before it is written", where="memory plan")
        for b in (step.output,) if isinstance(step, View) else (*step.writes, *step.scratch):
            if b.name in roots:
                raise InternalError(f"buffer {b.name!r} is written twice", where="memory plan")
            roots[b.name] = roots[step.source.name] if isinstance(step, View) else b
    return roots


def _live_ranges(
    steps: Sequence[KernelAccess | View], roots: Mapping[str, Buffer], live_out: Sequence[Buffer]
) -> list[_LiveRange]:
    """Live ranges of all roots that steps write, in order of their first step."""
    ranges: dict[str, _LiveRange] = {}
    for t, step in enumerate(steps):
        if isinstance(step, View):
            continue
        for b in (*step.writes, *step.scratch):
            ranges[b.name] = _LiveRange(b, t, t)
        for b in step.reads:
            root = roots[b.name].name
            if root in ranges:
                ranges[root].last = t
    for b in live_out:
        root = roots[b.name].name
        if root in ranges:
            ranges[root].last = len(steps)
    return list(ranges.values())


def _assign_slots(live_ranges: Sequence[_LiveRange]) -> tuple[Slot, ...]:
    """The live ranges in slots: the largest first, each in the smallest slot that is free during its whole range."""
    sizes = [r.buffer.size * r.buffer.dtype.bytes for r in live_ranges]
    representative = {size: representative_size(size) for size in dict.fromkeys(sizes)}
    order = sorted(range(len(live_ranges)), key=lambda k: (-representative[sizes[k]], k))
    slots: list[_OpenSlot] = []
    for k in order:
        free = [slot for slot in slots if slot.fits(live_ranges[k])]
        # Slots were opened in order of decreasing size, so the last free one is the smallest.
        target = free[-1] if free else _OpenSlot()
        if not free:
            slots.append(target)
        target.live_ranges.append(live_ranges[k])
        target.sizes[sizes[k]] = None
    result: list[Slot] = []
    for slot in slots:
        ordered = sorted(slot.live_ranges, key=lambda r: r.first)
        result.append(Slot(_round_up(_max_size(list(slot.sizes))), tuple(r.buffer.name for r in ordered)))
    return tuple(result)


def representative_size(size: Expr) -> int:
    """A size at representative values of its symbols, for comparisons of buffers."""
    values = {v: _representative_value(v) for v in free_vars(size)}
    return int(evaluate_expr(size, Environment(values, {})))


def _representative_value(symbol: Var) -> int:
    low = symbol.lo if symbol.lo is not None else 1
    high = symbol.hi if symbol.hi is not None else max(low, _REPRESENTATIVE_DIM)
    return min(max(low, _REPRESENTATIVE_DIM), high)


def _max_size(sizes: Sequence[Expr]) -> Expr:
    """The maximum of sizes, without those that provably never exceed another."""
    kept = _without_smaller_multiples(sizes)
    if len(kept) <= _MAX_PROVED_SIZES:
        for size in tuple(kept):
            others = [x for x in kept if x is not size]
            if any(can_prove_non_negative(x - size) for x in others):
                kept = others
    result = kept[0]
    for size in kept[1:]:
        result = maximum(result, size)
    return result


def _without_smaller_multiples(sizes: Sequence[Expr]) -> list[Expr]:
    """Of multiples c1*x, c2*x, ... of one product x only the largest; all other sizes stay."""
    products: dict[Monomial, tuple[int, Expr]] = {}
    others: list[Expr] = []
    for size in sizes:
        terms = list(polynomial(size).items())
        if len(terms) != 1:
            others.append(size)
        elif terms[0][0] not in products or terms[0][1] > products[terms[0][0]][0]:
            products[terms[0][0]] = (terms[0][1], size)
    return [size for _, size in products.values()] + others
