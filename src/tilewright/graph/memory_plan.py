"""Memory planning: where every buffer of a run of kernels lives, with memory reused as soon as it is free.

Sizes are expressions over the symbols of dimensions, so the plan is made of *slots*: buffers that never live at the
same time share one, its size is the largest of theirs, and offsets are sums of sizes. Native code evaluates them
once per shape. Slots are filled by falling size at representative sizes of the symbols (greedy by size; Pisarchyk and
Lee, "Efficient memory management for deep neural net inference", 2020, section 4.2, for shared objects).
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
"""Size that a symbolic dimension is taken to have when buffers are compared."""

_MAX_PROVED_SIZES = 8
"""Size expressions of one slot up to which proofs shorten their maximum."""


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """What one kernel touches. Its buffers never share memory with each other.

    Attributes:
        reads: buffers that it reads.
        writes: buffers that it writes, each for the first time.
        scratch: buffers that it uses alone, without meaning before or after.
    """

    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputCopy:
    """At the end output `index` is filled with the data of `source`, which lives elsewhere."""

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
    """Where the buffers of a run of kernels live.

    Attributes:
        places: by buffer name; views are where their source is.
        copies: what has to be copied into outputs after the last kernel.
        slots: the parts of the workspace, in the order of their offsets.
        total: bytes of the workspace.
        unshared: bytes that the buffers of the workspace would take one after the other, without alignment.
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
    """A buffer of the workspace with the steps between which its memory is in use, both inclusive."""

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
    """Places for all buffers of a run of kernels.

    Args:
        steps: kernels and views in order of execution.
        inputs: buffers that are filled before the first step and stay as they are.
        outputs: buffers whose data must stand in the caller's output memory at the end; repetitions, inputs,
            constants and views of them are allowed and cost a copy. All others are computed in place.
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
    lives = _live_ranges(steps, roots, [c.source for c in copies])
    lives = [life for life in lives if life.buffer.name not in places]
    slots = _assign_slots(lives)
    offset: Expr = const(0)
    for k, slot in enumerate(slots):
        places |= {name: WorkspaceLocation(offset, k) for name in slot.buffers}
        offset = offset + slot.size
    unshared: Expr = const(0)
    for life in lives:
        unshared = unshared + life.buffer.size * life.buffer.dtype.bytes
    places |= {name: places[root.name] for name, root in roots.items()}
    return MemoryPlan(places, tuple(copies), slots, offset, unshared)


def _roots(
    steps: Sequence[KernelAccess | View], inputs: Sequence[Buffer], constants: Sequence[Buffer]
) -> dict[str, Buffer]:
    """For every buffer the one whose memory it has."""
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
    """Lives of all roots that steps write, in the order of their first step."""
    lives: dict[str, _LiveRange] = {}
    for t, step in enumerate(steps):
        if isinstance(step, View):
            continue
        for b in (*step.writes, *step.scratch):
            lives[b.name] = _LiveRange(b, t, t)
        for b in step.reads:
            root = roots[b.name].name
            if root in lives:
                lives[root].last = t
    for b in live_out:
        root = roots[b.name].name
        if root in lives:
            lives[root].last = len(steps)
    return list(lives.values())


def _assign_slots(live_ranges: Sequence[_LiveRange]) -> tuple[Slot, ...]:
    """The lives in slots: the largest first, each into the smallest slot that is free all its life."""
    sizes = [life.buffer.size * life.buffer.dtype.bytes for life in live_ranges]
    typical = {size: _representative_size(size) for size in dict.fromkeys(sizes)}
    order = sorted(range(len(live_ranges)), key=lambda k: (-typical[sizes[k]], k))
    slots: list[_OpenSlot] = []
    for k in order:
        free = [slot for slot in slots if slot.fits(live_ranges[k])]
        # Slots were opened by falling size, so the last free one is the smallest.
        chosen = free[-1] if free else _OpenSlot()
        if not free:
            slots.append(chosen)
        chosen.live_ranges.append(live_ranges[k])
        chosen.sizes[sizes[k]] = None
    result: list[Slot] = []
    for slot in slots:
        ordered = sorted(slot.live_ranges, key=lambda life: life.first)
        result.append(Slot(_round_up(_max_size(list(slot.sizes))), tuple(life.buffer.name for life in ordered)))
    return tuple(result)


def _representative_size(size: Expr) -> int:
    """A size with representative values of its symbols."""
    values = {v: _representative_value(v) for v in free_vars(size)}
    return int(evaluate_expr(size, Environment(values, {})))


def _representative_value(symbol: Var) -> int:
    low = symbol.lo if symbol.lo is not None else 1
    high = symbol.hi if symbol.hi is not None else max(low, _REPRESENTATIVE_DIM)
    return min(max(low, _REPRESENTATIVE_DIM), high)


def _max_size(sizes: Sequence[Expr]) -> Expr:
    """The maximum of sizes, without those that are proved never to exceed another."""
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
    """Of c1*x, c2*x, ... with one product x of sizes only the largest; everything else stays."""
    products: dict[Monomial, tuple[int, Expr]] = {}
    others: list[Expr] = []
    for size in sizes:
        terms = list(polynomial(size).items())
        if len(terms) != 1:
            others.append(size)
        elif terms[0][0] not in products or terms[0][1] > products[terms[0][0]][0]:
            products[terms[0][0]] = (terms[0][1], size)
    return [size for _, size in products.values()] + others
