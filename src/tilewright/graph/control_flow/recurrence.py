"""LSTM, GRU and RNN as a matrix product for all steps at once and a loop over the steps.

The definitions are those of ONNX: gates `i o f c` of an LSTM, `z r h` of a GRU. The reverse direction goes from the
last step to the first; a step beyond the length of a sequence leaves its state as it is and gives zeros. A length
below zero or beyond the number of steps is refused at a call.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from tilewright.errors import Defect
from tilewright.expr.dtype import opaque
from tilewright.expr.nodes import Const
from tilewright.graph.control_flow.node_list import OPSET, NodeList, NodeSource
from tilewright.graph.ir import Array, Node, Subgraph
from tilewright.graph.program import Constraint
from tilewright.ops.definition import OpValue

GATES: Mapping[str, int] = {"RNN": 1, "GRU": 3, "LSTM": 4}
"""Recurrent operators with the number of their gates."""

_DEFAULT_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_PARAMETERS: Mapping[str, Mapping[str, float]] = {
    "LeakyRelu": {"alpha": 0.01}, "ThresholdedRelu": {"alpha": 1.0}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Elu": {"alpha": 1.0}, "Tanh": {}, "Sigmoid": {}, "Relu": {}, "Softsign": {}, "Softplus": {},
}  # fmt: skip
"""Activations with the defaults of their parameters."""

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class Activation:
    """An operator with its attributes."""

    op_type: str
    attributes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Cell:
    """What one direction of a recurrent node computes.

    Attributes:
        kind: the operator.
        hidden: size of a state.
        activations: of the direction.
        clip: limit of what activations are applied to; None without one.
        coupled: whether an LSTM's forget gate is 1 minus the input gate.
        reset_after: whether a GRU resets the product of the state rather than the state.
        dtype: of the values.
    """

    kind: str
    hidden: int
    activations: tuple[Activation, ...]
    clip: float | None
    coupled: bool
    reset_after: bool
    dtype: np.dtype


def recurrent_nodes(
    node: Node, operands: Sequence[OpValue | None], node_source: NodeSource
) -> tuple[tuple[Node, ...], Mapping[str, Array], tuple[Constraint, ...]] | Defect | None:
    """The nodes that stand for a recurrent node, their constants, and conditions on its operands' sizes; None where it
    has no such form; a defect where its operands' ranks are wrong.

    Args:
        node: an LSTM, GRU or RNN.
        operands: its arguments; None for one that is omitted or no tensor.
        node_source: the serialized node of an operator.
    """
    given = [*operands, *[None] * (8 - len(operands))]
    reverse = _DIRECTIONS.get(str(node.attributes.get("direction", "forward")))
    x, recurrent = given[0], given[2]
    if reverse is None or x is None or recurrent is None or given[1] is None:
        return None
    for name, operand in zip("XWR", (x, given[1], recurrent), strict=True):
        if operand.dtype is opaque:
            return None
        if operand.rank != 3:
            return Defect("shape", f"node {node.label}", f"{name}: expected 3 dimensions, got {operand.rank}")
    hidden = getattr(recurrent.shape[2], "value", None)
    cells = _cells(node, len(reverse), hidden, x)
    names = [*node.arguments, *[""] * (8 - len(node.arguments))]
    if cells is None or any(name and operand is None for name, operand in zip(names, given, strict=True)):
        return None
    work = NodeList(node, node_source, "")
    layout = bool(node.attributes.get("layout", 0))
    if layout:
        names[0] = work.add("Transpose", names[0], perm=(1, 0, 2))
    results = [
        _add_direction(work, names, cell, (k, is_reverse, layout))
        for k, (cell, is_reverse) in enumerate(zip(cells, reverse, strict=True))
    ]
    _place_results(work, node, results, layout)
    return tuple(work.nodes), work.constants, tuple(_batch_constraints(node, x, given[5:7], layout))


def _batch_constraints(node: Node, x: OpValue, states: Sequence[OpValue | None], layout: bool) -> Iterator[Constraint]:
    """That the initial states have as many rows as the input."""
    batch = x.shape[0 if layout else 1]
    for name, state in zip(("initial_h", "initial_c"), states, strict=True):
        if state is not None and state.rank == 3:
            rows = state.shape[0 if layout else 1]
            condition = batch.equals(rows)
            if not isinstance(condition, Const) or not condition.value:
                message = f"the batch of {batch} and the {rows} rows of {name} in node {node.label} to be equal"
                yield Constraint(condition, message)


def _cells(node: Node, directions: int, hidden: object, x: OpValue) -> tuple[_Cell, ...] | None:
    """The cell of each direction; None where an attribute has no native form."""
    kind, attributes = node.op_type, node.attributes
    defaults = _DEFAULT_ACTIVATIONS[kind]
    names = attributes.get("activations", defaults * directions)
    if not isinstance(names, tuple) or len(names) != len(defaults) * directions or not isinstance(hidden, int | float):
        return None
    parameters = {p: _float_values(attributes.get(f"activation_{p}")) for p in ("alpha", "beta")}
    known = {name.lower(): name for name in _PARAMETERS}
    activations: list[Activation] = []
    for text in names:
        op_type = known.get(str(text).lower())
        if op_type is None:
            return None
        values = {p: float(parameters[p].pop(0)) if parameters[p] else v for p, v in _PARAMETERS[op_type].items()}
        activations.append(Activation(op_type, values))
    clip = attributes.get("clip")
    limit = float(clip) if isinstance(clip, float) else None
    coupled, reset_after = (bool(attributes.get(x, 0)) for x in ("input_forget", "linear_before_reset"))
    size, per = int(hidden), len(defaults)
    groups = [tuple(activations[k * per : (k + 1) * per]) for k in range(directions)]
    return tuple(_Cell(kind, size, g, limit, coupled, reset_after, x.dtype.numpy) for g in groups)


def _float_values(values: object) -> list[float]:
    return [float(v) for v in cast("tuple[float, ...]", values)] if isinstance(values, tuple) else []


def _add_direction(work: NodeList, names: Sequence[str], cell: _Cell, place: tuple[int, bool, bool]) -> tuple[str, ...]:
    """Adds one direction; returns the names of all its hidden states [T, B, H], and of its last states.

    Args:
        work: receives the nodes.
        names: of the node's arguments, the input with steps first.
        cell: what it computes.
        place: its number, whether it is reverse, and whether batches come first in initial states.
    """
    (index, is_reverse, layout), width = place, GATES[cell.kind] * cell.hidden
    number = work.constant(np.array(index, np.int64))
    weights = [work.add("Transpose", work.add("Gather", names[k], number, axis=0), perm=(1, 0)) for k in (1, 2)]
    inputs, hidden_bias = work.add("MatMul", names[0], weights[0]), ""
    if names[3]:
        bias = work.add("Gather", names[3], number, axis=0)
        inputs = work.add("Add", inputs, work.slice(bias, 0, width, 0))
        hidden_bias = work.slice(bias, width, 2 * width, 0)
        if cell.kind != "GRU" or not cell.reset_after:
            inputs, hidden_bias = work.add("Add", inputs, hidden_bias), ""
    shape = work.add("Shape", names[0])
    trips = work.add("Gather", shape, work.constant(np.array(0, np.int64)), axis=0)
    sizes = work.add("Concat", work.slice(shape, 1, 2, 0), work.ints(cell.hidden), axis=0)
    states = [
        work.add("Gather", names[k], number, axis=int(layout))
        if names[k]
        else work.add("Expand", work.constant(np.zeros((1, 1), cell.dtype)), sizes)
        for k in ((5, 6) if cell.kind == "LSTM" else (5,))
    ]
    lengths = _checked_lengths(work, names[4], trips, work.slice(shape, 0, 2, 0)) if names[4] else ""
    captured = {"inputs": inputs, "weights": weights[1], "bias": hidden_bias, "lengths": lengths, "trips": trips}
    if names[7]:
        peepholes = work.add("Gather", names[7], number, axis=0)
        captured |= {f"peephole{k}": work.slice(peepholes, k * cell.hidden, (k + 1) * cell.hidden, 0) for k in range(3)}
    captured = {k: v for k, v in captured.items() if v}
    body = _body(work, cell, index, is_reverse, captured)
    outputs = [work.name(f"result{k}of{index}.") for k in range(len(states) + 1)]
    inputs_of_loop = (trips, "", *states, *captured.values())
    loop = Node(
        f"{work.owner.name}/loop{index}", "Loop", "", OPSET, inputs_of_loop, tuple(outputs), {},
        captures=tuple(captured), subgraphs={"body": body},
    )  # fmt: skip
    work.nodes.append(loop)
    *last, all_states = outputs
    if is_reverse:
        bounds = (work.ints(-1), work.ints(-(1 << 63)), work.ints(0), work.ints(-1))
        all_states = work.add("Slice", all_states, *bounds)
    return all_states, *last


def _checked_lengths(work: NodeList, lengths: str, trips: str, shape: str) -> str:
    """The lengths for every step, [T, B], from a node that refuses those out of range: what ReverseSequence moves are
    numbers from T on, so that the smaller of these and a length is the length."""
    lengths, one = work.add("Cast", lengths, to=7), work.constant(np.array(1, np.int64))
    beyond = work.add("Range", trips, work.add("Add", trips, trips), one)
    columns = work.add("Expand", work.add("Unsqueeze", beyond, work.ints(1)), shape)
    return work.add("Min", lengths, work.add("ReverseSequence", columns, lengths, batch_axis=1, time_axis=0))


def _body(work: NodeList, cell: _Cell, index: int, is_reverse: bool, captured: Mapping[str, str]) -> Subgraph:
    """The loop's body: one step; it reads captured values by the keys of `captured`."""
    inner = NodeList(work.owner, work.node_source, f"step{index}/")
    step, h, c = "step", "h", "c"
    if is_reverse:
        step = inner.add("Sub", inner.add("Sub", "trips", inner.constant(np.array(1, np.int64))), "step")
    gates = inner.add("Gather", "inputs", step, axis=0)
    new = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}[cell.kind](inner, cell, gates, captured)
    shown = new[0]
    if "lengths" in captured:
        lengths = inner.add("Gather", "lengths", step, axis=0)
        within = inner.add("Unsqueeze", inner.add("Less", step, lengths), inner.ints(1))
        shown = inner.add("Where", within, new[0], inner.constant(np.zeros((), cell.dtype)))
        new = tuple(inner.add("Where", within, a, b) for a, b in zip(new, (h, c), strict=False))
    states = (h, c)[: len(new)]
    return Subgraph(("step", "go", *states), ("go", *new, shown), inner.constants, tuple(inner.nodes))


def _activated(inner: NodeList, cell: _Cell, value: str, activation: Activation) -> str:
    if cell.clip is not None:
        limits = [inner.constant(np.array(x, cell.dtype)) for x in (-cell.clip, cell.clip)]
        value = inner.add("Clip", value, *limits)
    return inner.add_with(activation.op_type, (value,), activation.attributes)


def _gate_columns(inner: NodeList, cell: _Cell, value: str, k: int, count: int = 1) -> str:
    """The part of gate k and of those behind it."""
    return inner.slice(value, k * cell.hidden, (k + count) * cell.hidden, 1)


def _lstm_step(inner: NodeList, cell: _Cell, gates: str, captured: Mapping[str, str]) -> tuple[str, ...]:
    f, g, h = cell.activations
    total = inner.add("Add", gates, inner.add("MatMul", "h", "weights"))
    i_sum, o_sum, f_sum, c_sum = (_gate_columns(inner, cell, total, k) for k in range(4))

    def with_peephole(value: str, k: int, state: str) -> str:
        name = f"peephole{k}"
        return inner.add("Add", value, inner.add("Mul", name, state)) if name in captured else value

    i = _activated(inner, cell, with_peephole(i_sum, 0, "c"), f)
    if cell.coupled:
        forget = inner.add("Sub", inner.constant(np.ones((), cell.dtype)), i)
    else:
        forget = _activated(inner, cell, with_peephole(f_sum, 2, "c"), f)
    candidate = _activated(inner, cell, c_sum, g)
    c = inner.add("Add", inner.add("Mul", forget, "c"), inner.add("Mul", i, candidate))
    o = _activated(inner, cell, with_peephole(o_sum, 1, c), f)
    return inner.add("Mul", o, inner.add_with(h.op_type, (c,), h.attributes)), c


def _gru_step(inner: NodeList, cell: _Cell, gates: str, captured: Mapping[str, str]) -> tuple[str, ...]:
    f, g = cell.activations
    hidden = cell.hidden
    if cell.reset_after:
        product = inner.add("MatMul", "h", "weights")
        if "bias" in captured:
            product = inner.add("Add", product, "bias")
        both, candidate = _gate_columns(inner, cell, product, 0, 2), _gate_columns(inner, cell, product, 2)
    else:
        both = inner.add("MatMul", "h", inner.slice("weights", 0, 2 * hidden, 1))
        candidate = ""
    zr = _activated(inner, cell, inner.add("Add", _gate_columns(inner, cell, gates, 0, 2), both), f)
    z, r = _gate_columns(inner, cell, zr, 0), _gate_columns(inner, cell, zr, 1)
    if cell.reset_after:
        recurrent = inner.add("Mul", r, candidate)
    else:
        recurrent = inner.add("MatMul", inner.add("Mul", r, "h"), inner.slice("weights", 2 * hidden, 3 * hidden, 1))
    n = _activated(inner, cell, inner.add("Add", _gate_columns(inner, cell, gates, 2), recurrent), g)
    kept = inner.add("Mul", z, "h")
    return (inner.add("Add", inner.add("Mul", inner.add("Sub", inner.constant(np.ones((), cell.dtype)), z), n), kept),)


def _rnn_step(inner: NodeList, cell: _Cell, gates: str, captured: Mapping[str, str]) -> tuple[str, ...]:
    total = inner.add("Add", gates, inner.add("MatMul", "h", "weights"))
    return (_activated(inner, cell, total, cell.activations[0]),)


def _place_results(work: NodeList, node: Node, results: Sequence[tuple[str, ...]], layout: bool) -> None:
    """Brings the states of all directions into the node's outputs."""
    for k, output in enumerate(node.outputs):
        if not output:
            continue
        axis = work.ints(1 if k == 0 else 0)
        parts = [work.add("Unsqueeze", r[k], axis) for r in results]
        joined = output if not layout else ""
        stacked = work.add("Concat", *parts, output=joined, axis=1 if k == 0 else 0)
        if layout:
            work.add("Transpose", stacked, output=output, perm=(2, 0, 1, 3) if k == 0 else (1, 0, 2))
