"""Loops with fewer carried values and, where their condition compares a counter with a bound, a number of iterations.

Exporters of TensorFlow write recurrent layers as a Loop that carries its weights, which no iteration changes, and a
counter i with the condition i + 1 < n. A carried value that no iteration changes is captured instead; a counter is a
function of the iteration's number (an induction variable); and the condition gives the number of iterations, so that
native code can run the loop and sizes that it brings are known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.expr.dtype import DType, int64
from tilewright.expr.operations import cast
from tilewright.graph.control_flow.conditional import EXACT_FLOAT32, is_within, known_condition
from tilewright.graph.control_flow.lower_control_flow import is_endless
from tilewright.graph.control_flow.node_list import NodeList, NodeSource
from tilewright.graph.ir import Array, Node
from tilewright.ops.definition import OpValue

_ELEMENT_TYPES = {"int32": 6, "int64": 7}
"""ONNX's numbers of the types that a counter may have."""

_EXACT_CASTS = frozenset({1, 6, 7, 11})
"""Conversions (to float32, int32, int64, float64) that keep integers up to 2^24."""

_INT32_MAX = (1 << 31) - 1

_MOST_ITERATIONS = 1 << 62
"""Bounds are cut off here, where nothing overflows."""


@dataclass(frozen=True, slots=True)
class SimplifiedLoop:
    """The nodes that stand for a Loop.

    Attributes:
        before: compute the number of iterations.
        loop: the Loop that is left.
        after: give the results of carried values that it no longer carries.
        constants: that the nodes read, by value name.
    """

    before: tuple[Node, ...]
    loop: Node
    after: tuple[Node, ...]
    constants: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class _Counter:
    """A carried integer to which every iteration adds the same number.

    Attributes:
        position: among the carried values.
        step: what is added, at least 1.
        dtype: of the counter.
    """

    position: int
    step: int
    dtype: DType


class _BodyReader:
    """Answers what the values of a loop's body are.

    Args:
        node: the Loop.
        operands: its arguments.
        constant_of: the array of a constant of the graph around, by name.
    """

    def __init__(
        self, node: Node, operands: Sequence[OpValue | None], constant_of: Callable[[str], Array | None]
    ) -> None:
        self.node, self.operands, self._constant_of = node, operands, constant_of
        self.body = node.subgraphs["body"]
        self._producers = {o: n for n in self.body.nodes for o in n.outputs if o}

    @property
    def carried(self) -> range:
        """The positions of carried values."""
        return range(len(self.node.arguments) - 2)

    def producer(self, value: str) -> Node | None:
        """The node that computes a value, behind identities; None for a parameter, a constant or a captured value."""
        return self._producers.get(self.behind(value))

    def behind(self, value: str) -> str:
        """The value of which another one is the result of identities."""
        while (node := self._producers.get(value)) is not None and node.op_type == "Identity" and not node.domain:
            value = node.inputs[0]
        return value

    def without_casts(self, value: str) -> tuple[str, bool] | None:
        """The value behind identities and conversions, and whether there are conversions; None where one of these may
        change an integer below 2^24."""
        has_casts = False
        while (node := self._producers.get(value)) is not None and node.op_type in ("Identity", "Cast"):
            if node.domain or (node.op_type == "Cast" and node.attributes.get("to") not in _EXACT_CASTS):
                return None
            has_casts |= node.op_type == "Cast"
            value = node.inputs[0]
        return value, has_casts

    def is_invariant(self, k: int) -> bool:
        """Whether no iteration changes a carried value."""
        return self.behind(self.body.outputs[1 + k]) == self.body.inputs[2 + k]

    def integer(self, value: str) -> int | None:
        """The value of a scalar constant of integers."""
        array = self.body.constants.get(value)
        if array is None and value in self.node.captured:
            array = self._constant_of(self.node.captured[value])
        return int(array) if array is not None and array.ndim == 0 and array.dtype.kind == "i" else None

    def counter(self, k: int) -> _Counter | None:
        """A carried value as a counter."""
        operand, add = self.operands[2 + k], self.producer(self.body.outputs[1 + k])
        if operand is None or operand.rank or operand.dtype.name not in _ELEMENT_TYPES or add is None:
            return None
        if add.op_type != "Add" or add.domain:
            return None
        values = [self.behind(v) for v in add.inputs]
        if self.body.inputs[2 + k] not in values:
            return None
        values.remove(self.body.inputs[2 + k])
        step = self.integer(values[0])
        return None if step is None or step < 1 else _Counter(k, step, operand.dtype)

    def outer(self, value: str) -> str | None:
        """The value of the graph around that one of the body always is; None where an iteration computes it."""
        if value in self.node.captured:
            return self.node.captured[value]
        for k in self.carried:
            if self.body.inputs[2 + k] == value and self.is_invariant(k):
                return self.node.arguments[2 + k]
        return None


def simplify_loop(
    node: Node,
    operand_of: Callable[[str], OpValue | None],
    constant_of: Callable[[str], Array | None],
    node_source: NodeSource,
) -> SimplifiedLoop | None:
    """The nodes that stand for a Loop; None where there is nothing to simplify.

    Args:
        node: a Loop whose body fits it.
        operand_of: the operand of a value of the graph around.
        constant_of: the array of a constant of the graph around.
        node_source: the serialized node of an operator.
    """
    operands = [operand_of(v) if v else None for v in node.arguments]
    body = node.subgraphs["body"]
    if len(body.inputs) != len(node.arguments) or len(body.outputs) < len(node.arguments) - 1 or len(operands) < 3:
        return None
    reader = _BodyReader(node, operands, constant_of)
    invariant = [k for k in reader.carried if reader.is_invariant(k)]
    bound = _bounded_counter(reader, operand_of)
    if not invariant and bound is None:
        return None
    work = NodeList(node, node_source, "")
    trips = None if bound is None else _trip_count(work, node, bound, operands[0])
    before = tuple(work.nodes)
    inner = NodeList(node, node_source, "body/")
    removed = set(invariant)
    after = NodeList(node, node_source, "after/")
    for k in invariant:
        _add_result(after, node, k, node.arguments[2 + k])
    if bound is not None and trips is not None:
        removed.add(bound[0].position)
        _add_counter(inner, after, node, bound[0], trips)
    loop = _simpler_loop(node, removed, inner, trips)
    constants = {**work.constants, **after.constants}
    return SimplifiedLoop(before, loop, tuple(after.nodes), constants)


def _bounded_counter(reader: _BodyReader, operand_of: Callable[[str], OpValue | None]) -> tuple[_Counter, str] | None:
    """The counter that the condition compares with a bound, and the bound, a value of the graph around.

    The loop has to have a first iteration, and the number of the iteration has to be a scalar.
    """
    node, body = reader.node, reader.body
    declared = body.declared_types.get(body.inputs[0])
    compare = reader.producer(body.outputs[0])
    if compare is None or compare.op_type not in ("Less", "Greater") or (declared is not None and declared.shape):
        return None
    if node.arguments[1] and known_condition(reader.operands[1]) is not True:
        return None
    sides = [reader.without_casts(v) for v in compare.inputs[:: 1 if compare.op_type == "Less" else -1]]
    if any(s is None for s in sides):
        return None
    (left, left_casts), (right, right_casts) = (s for s in sides if s is not None)
    bound = reader.outer(right)
    operand = None if bound is None else operand_of(bound)
    if bound is None or operand is None or operand.rank or operand.dtype.name not in _ELEMENT_TYPES:
        return None
    for k in reader.carried:
        counter, first = reader.counter(k), reader.operands[2 + k]
        if counter is None or first is None or left != reader.behind(body.outputs[1 + k]):
            continue
        # the counter is compared up to the bound plus a step less one
        most = EXACT_FLOAT32 + 1 - counter.step
        is_small = _is_known_within(first, EXACT_FLOAT32) and _is_known_within(operand, most)
        fits = counter.step == 1 or _is_known_within(operand, _INT32_MAX - counter.step)
        is_plain = not left_casts and not right_casts and fits and _is_known_within(first, _INT32_MAX)
        return (counter, bound) if is_small or is_plain else None
    return None


def _is_known_within(value: OpValue, limit: int) -> bool:
    """Whether an integer is known to be from -limit to limit."""
    elements = value.known_elements
    return elements is not None and is_within(cast(int64, elements[0]), limit)


def _trip_count(work: NodeList, node: Node, bound: tuple[_Counter, str], given: OpValue | None) -> str:
    """The number of iterations, an int64: one, and others while the counter is below the bound."""
    counter, limit = bound
    first = work.add("Cast", node.arguments[2 + counter.position], to=_ELEMENT_TYPES["int64"])
    end = work.add("Max", work.add("Cast", limit, to=_ELEMENT_TYPES["int64"]), first)
    end = work.add("Min", end, work.constant(np.array(_MOST_ITERATIONS, np.int64)))
    trips = work.add("Sub", end, first)
    if counter.step > 1:
        rounded = work.add("Add", trips, work.constant(np.array(counter.step - 1, np.int64)))
        trips = work.add("Div", rounded, work.constant(np.array(counter.step, np.int64)))
    trips = work.add("Max", trips, work.constant(np.array(1, np.int64)))
    if given is None or is_endless(given):
        return trips
    most = node.arguments[0] if not given.rank else work.add("Squeeze", node.arguments[0], work.ints(0))
    return work.add("Max", work.add("Min", trips, most), work.constant(np.array(0, np.int64)))


def _add_result(after: NodeList, node: Node, k: int, value: str) -> None:
    if k < len(node.outputs) and node.outputs[k]:
        after.add("Identity", value, output=node.outputs[k])


def _add_counter(inner: NodeList, after: NodeList, node: Node, counter: _Counter, trips: str) -> None:
    """The counter by the number of the iteration, inside the body, and its result."""
    body, k = node.subgraphs["body"], counter.position
    to = _ELEMENT_TYPES[counter.dtype.name]
    for work, count, first, output in (
        (inner, body.inputs[0], _first_value(node, k), body.inputs[2 + k]),
        (after, trips, node.arguments[2 + k], node.outputs[k] if k < len(node.outputs) else ""),
    ):
        if not output:
            continue
        value = count
        if counter.step > 1:
            value = work.add("Mul", value, work.constant(np.array(counter.step, np.int64)))
        value = work.add("Cast", value, to=to)
        work.add("Add", value, first, output=output)


def _first_value(node: Node, k: int) -> str:
    """The name inside a body of the first value of a carried value."""
    return f"{node.name}/body/first{k}"


def _simpler_loop(node: Node, removed: set[int], inner: NodeList, trips: str | None) -> Node:
    """The Loop without some of its carried values."""
    body = node.subgraphs["body"]
    carried = len(node.arguments) - 2
    kept = [k for k in range(carried) if k not in removed]
    captured = dict(node.captured)
    for k in sorted(removed):
        name = body.inputs[2 + k]
        is_counter = any(name in n.outputs for n in inner.nodes)
        captured[_first_value(node, k) if is_counter else name] = node.arguments[2 + k]
    condition = body.inputs[1] if trips is not None else body.outputs[0]
    outputs = (condition, *(body.outputs[1 + k] for k in kept), *body.outputs[1 + carried :])
    subgraph = replace(
        body,
        inputs=(*body.inputs[:2], *(body.inputs[2 + k] for k in kept)),
        outputs=outputs,
        constants={**body.constants, **inner.constants},
        nodes=(*inner.nodes, *body.nodes),
        declared_types={v: t for v, t in body.declared_types.items() if v not in body.inputs[2:]},
    )
    names = [*node.outputs, *[""] * (carried - len(node.outputs))]
    return replace(
        node,
        inputs=(
            trips or node.arguments[0], "" if trips is not None else node.arguments[1],
            *(node.arguments[2 + k] for k in kept), *captured.values(),
        ),
        outputs=(*(names[k] for k in kept), *names[carried:]),
        captures=tuple(captured),
        subgraphs={"body": subgraph},
    )  # fmt: skip
