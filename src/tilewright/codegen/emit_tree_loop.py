"""Loops of a step tree: carried values change their owners, stacked results grow, and Ctrl-C is noticed.

Sizes of carried values may change from iteration to iteration. Memory of stacked results doubles when it is full.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.llvm_types import I1, I8, I64, PTR
from tilewright.codegen.step_tree import RepeatStep, TreeBlock, TreeValue
from tilewright.codegen.timestamps import read_clock
from tilewright.codegen.tree_values import DataSlot, Sizes, TreeData, TreeFunction, Values
from tilewright.machine.tree_call import FIRST_LOOP, INTERRUPTED, POLL_CYCLES

_UNLIMITED = (1 << 63) - 1
_FIRST_CAPACITY = 16
"""Slices for which the memory of a stacked result is allocated at first."""

EmitBlock = Callable[[TreeBlock, Values, Sizes], list[TreeData]]


@dataclass(frozen=True, slots=True, eq=False)
class _Stack:
    """A stacked result: its memory, the bytes that it has room for, and the sizes of a slice."""

    value: TreeValue
    memory: ir.Value
    room: ir.Value
    sizes: tuple[ir.Value, ...]


class _Loop:
    """The slots of a loop while it is emitted."""

    def __init__(self, f: TreeFunction, step: RepeatStep) -> None:
        carried = len(step.initial)
        self.f, self.step = f, step
        self.number, self.condition = f.slot(I64), f.data_slot(len(step.body.inputs[1].dims))
        self.polled = f.slot(I64)
        self.carried: list[DataSlot] = [f.data_slot(len(v.dims)) for v in step.outputs[:carried]]
        self.stacks = [
            _Stack(v, f.slot(PTR), f.slot(I64), tuple(f.slot(I64) for _ in v.dims[1:])) for v in step.outputs[carried:]
        ]


def emit_tree_loop(
    f: TreeFunction, step: RepeatStep, values: Values, sizes: Sizes, emit_block: EmitBlock
) -> list[TreeData]:
    """Emits a loop; its results have a reference each.

    Args:
        f: the tree's function.
        step: the loop.
        values: those around it by name.
        sizes: of the symbols around it.
        emit_block: emits the body.
    """
    b, loop = f.builder, _Loop(f, step)
    trips, goes = _start(loop, values)
    head, body, end = (b.append_basic_block(f"loop.{name}") for name in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    number = b.load(loop.number, typ=I64)
    b.cbranch(b.and_(b.icmp_signed("<", number, trips), b.load(goes, typ=I1)), body, end)
    b.position_at_end(body)
    if step.trip_count is None:
        limit = b.load(f.state_word("limit"), typ=I64)
        f.fail_if(b.icmp_signed("==", number, limit), I64(FIRST_LOOP + step.number))
    _poll(loop)
    _iteration(loop, values, sizes, emit_block, goes)
    b.store(b.add(number, I64(1)), loop.number)
    b.branch(head)
    b.position_at_end(end)
    f.release(b.load(loop.condition.owner, typ=PTR))
    return [*(f.load(slot) for slot in loop.carried), *(_stacked(loop, stack, sizes) for stack in loop.stacks)]


def _start(loop: _Loop, values: Values) -> tuple[ir.Value, ir.Value]:
    """Fills the slots before the first iteration; the number of iterations, and the slot that says whether to go on."""
    f, b, step = loop.f, loop.f.builder, loop.step
    goes = f.slot(I1)
    b.store(I1(1) if step.condition is None else f.is_true(values[step.condition]), goes)
    trips: ir.Value = I64(_UNLIMITED)
    if step.trip_count is not None:
        count = values[step.trip_count]
        f.fail_if(f.differ(f.product(count.sizes, 1), I64(1)))
        trips = b.load(count.pointer, typ=I64)
    for name, slot in zip(step.initial, loop.carried, strict=True):
        f.memory.retain(b, values[name].owner)
        f.store(values[name], slot)
    always = f.slot(I8)
    b.store(I8(1), always)
    f.store(TreeData(always, PTR(None), tuple(I64(1) for _ in loop.condition.sizes)), loop.condition)
    b.store(I64(0), loop.number)
    b.store(read_clock(b), loop.polled)
    for stack in loop.stacks:
        b.store(PTR(None), stack.memory)
        b.store(I64(0), stack.room)
    return trips, goes


def _poll(loop: _Loop) -> None:
    """Asks now and then whether to stop; not more often, as it may have to wait for Python's other threads."""
    f, b = loop.f, loop.f.builder
    now = read_clock(b)
    is_long = b.icmp_unsigned(">", b.sub(now, b.load(loop.polled, typ=I64)), I64(POLL_CYCLES))
    with b.if_then(is_long, likely=False):
        b.store(now, loop.polled)
        poll = b.load(f.state_word("poll"), typ=ir.FunctionType(I64, []).as_pointer())
        stops = b.call(poll, [])
        f.fail_if(b.icmp_signed("!=", stops, I64(0)), I64(INTERRUPTED))


def _iteration(loop: _Loop, values: Values, sizes: Sizes, emit_block: EmitBlock, goes: ir.Value) -> None:
    """Emits the body and what follows from its results."""
    f, b, step, body = loop.f, loop.f.builder, loop.step, loop.step.body
    # a block of its own, as the body may return it
    number = f.allocate(I64(8))
    b.store(b.load(loop.number, typ=I64), number)
    given = [TreeData(number, number, tuple(I64(1) for _ in body.inputs[0].dims)), f.load(loop.condition)]
    given += [f.load(slot) for slot in loop.carried]
    given += [values[name] for name in body.captures]
    results = emit_block(body, {v.name: data for v, data in zip(body.inputs, given, strict=True)}, sizes)
    f.release(number)
    if not step.is_counted:
        condition, *results = results
        b.store(f.is_true(condition), goes)
        f.release(b.load(loop.condition.owner, typ=PTR))
        ones = tuple(I64(1) for _ in loop.condition.sizes)
        f.store(TreeData(condition.pointer, condition.owner, ones), loop.condition)
    count = len(loop.carried)
    for data, slot in zip(results[:count], loop.carried, strict=True):
        f.release(b.load(slot.owner, typ=PTR))
        f.store(data, slot)
    for data, stack in zip(results[count:], loop.stacks, strict=True):
        _append(loop, stack, data)
        f.release(data.owner)


def _append(loop: _Loop, stack: _Stack, data: TreeData) -> None:
    """Copies the result of an iteration behind those of the earlier ones, which have the same sizes."""
    f, b, number = loop.f, loop.f.builder, _number(loop)
    is_first = b.icmp_signed("==", number, I64(0))
    for size, place in zip(data.sizes, stack.sizes, strict=True):
        differs = b.icmp_signed("!=", size, b.load(place, typ=I64))
        f.fail_if(b.and_(b.not_(is_first), differs))
        b.store(size, place)
    length = f.product(data.sizes, stack.value.bytes)
    start = b.mul(number, length)
    needed, room = b.add(start, length), b.load(stack.room, typ=I64)
    is_full = b.or_(b.icmp_signed(">", needed, room), is_first)
    with b.if_then(is_full, likely=False):
        doubled = b.add(b.mul(room, I64(2)), b.mul(length, I64(_FIRST_CAPACITY)))
        grown, old = f.allocate(doubled), b.load(stack.memory, typ=PTR)
        f.copy(grown, old, start)
        b.call(f.memory.release, [old])
        b.store(grown, stack.memory)
        b.store(doubled, stack.room)
    f.copy(b.gep(b.load(stack.memory, typ=PTR), [start], source_etype=I8), data.pointer, length)


def _number(loop: _Loop) -> ir.Value:
    """The number of the iteration."""
    return loop.f.builder.load(loop.number, typ=I64)


def _stacked(loop: _Loop, stack: _Stack, sizes: Sizes) -> TreeData:
    """The stacked results; without any, the declared sizes, with 0 for those that no iteration determines."""
    f, b = loop.f, loop.f.builder
    number = _number(loop)
    with b.if_then(b.icmp_signed("==", number, I64(0)), likely=False):
        b.store(f.allocate(I64(0)), stack.memory)
        for dim, place in zip(stack.value.dims[1:], stack.sizes, strict=True):
            b.store(_declared_size(dim, sizes), place)
    memory = b.load(stack.memory, typ=PTR)
    return TreeData(memory, memory, (number, *(b.load(x, typ=I64) for x in stack.sizes)))


def _declared_size(dim: int | str | None, sizes: Sizes) -> ir.Value:
    return sizes.get(dim, I64(0)) if isinstance(dim, str) else I64(dim or 0)
