"""Kinds of nodes: conditionals, loops, recurrences and sequences."""

import numpy as np
from onnx import GraphProto, helper
from tests.fuzz_models.builder import BOOL, FLOAT, INT, Builder, UnfitError, Value, derived


def _float(v: Value) -> bool:
    return v.is_float and v.rank > 0


def _branch(b: Builder, n: str, x: Value) -> GraphProto:
    op = b.choice(f"{n} op", ["Neg", "Relu", "Abs", "Tanh"])
    shape = list(x.array.shape) if b.flag(f"{n} declared", 0.3) else None
    nodes = [helper.make_node(op, [x.name], [f"{n}_r"])]
    return helper.make_graph(nodes, n, [], [helper.make_tensor_value_info(f"{n}_r", FLOAT, shape)])


def conditional(b: Builder, n: str) -> None:
    """One of two branches, which capture a value, by an input or by the data."""
    x = b.pick(n, _float)
    if b.flag(f"{n} data", 0.5):
        if not x.exact or b.opset < 9 or not x.array.size:
            raise UnfitError
        (largest,) = b.emit("ReduceMax", [x.name], [()], True, keepdims=0)
        (c,) = b.emit("Greater", [largest.name, b.constant(np.float32(1))], [()], True)
    else:
        c = b.pick(f"{n} by", lambda v: v.array.dtype == bool and v.array.size == 1)
    first, second = _branch(b, f"{n}t", x), _branch(b, f"{n}e", x)
    exact = x.exact and "Tanh" not in (b.record[f"{n}t op"], b.record[f"{n}e op"])
    b.emit("If", [c.name], [x.dims], exact, then_branch=first, else_branch=second)


def nested(b: Builder, n: str) -> None:
    """A conditional by the number of the iteration inside of a loop, perhaps until the data say stop."""
    x = b.pick(n, _float)
    if b.opset < 10 or not x.array.size:
        raise UnfitError
    count = b.number(f"{n} count", 1, 4)
    by_data = x.exact and b.flag(f"{n} until", 0.4)
    shape = [None] * x.rank
    branches = {
        f"{k}_branch": helper.make_graph(
            [helper.make_node(op, [f"{n}_v", x.name], [f"{n}_{k}"])], f"{n}{k}", [],
            [helper.make_tensor_value_info(f"{n}_{k}", FLOAT, shape)],
        )
        for k, op in (("then", "Add"), ("else", b.choice(f"{n} op", ["Sub", "Add"])))
    }  # fmt: skip
    two, limit = b.constant(np.asarray(2, np.int64)), b.constant(np.asarray(3, np.float32))
    nodes = [
        helper.make_node("Mod", [f"{n}_i", two], [f"{n}_m"]),
        helper.make_node("Cast", [f"{n}_m"], [f"{n}_odd"], to=BOOL),
        helper.make_node("If", [f"{n}_odd"], [f"{n}_w"], **branches),
    ]
    if by_data:
        nodes += [
            helper.make_node("ReduceMax", [f"{n}_w"], [f"{n}_top"], keepdims=0),
            helper.make_node("Less", [f"{n}_top", limit], [f"{n}_on"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", [f"{n}_go"], [f"{n}_on"]))
    body = helper.make_graph(
        nodes, n,
        [helper.make_tensor_value_info(f"{n}_i", INT, []), helper.make_tensor_value_info(f"{n}_go", BOOL, []),
         helper.make_tensor_value_info(f"{n}_v", FLOAT, shape)],
        [helper.make_tensor_value_info(f"{n}_on", BOOL, []), helper.make_tensor_value_info(f"{n}_w", FLOAT, shape)],
    )  # fmt: skip
    start, go = b.constant(np.asarray(count, np.int64)), b.constant(np.asarray(True))
    b.emit("Loop", [start, go, x.name], [x.dims], x.exact, body=body)


def scan(b: Builder, n: str) -> None:
    """Slices of a value, each changed, in either direction."""
    x = b.pick(n, lambda v: v.is_float and v.rank > 1)
    if b.opset < 9 or not x.array.size:
        raise UnfitError
    axis, op = b.number(f"{n} axis", 0, x.rank - 1), b.choice(f"{n} op", ["Neg", "Relu", "Tanh"])
    shape = [None] * (x.rank - 1)
    body = helper.make_graph(
        [helper.make_node(op, [f"{n}_x"], [f"{n}_y"])], n, [helper.make_tensor_value_info(f"{n}_x", FLOAT, shape)],
        [helper.make_tensor_value_info(f"{n}_y", FLOAT, shape)],
    )  # fmt: skip
    rest = (*x.dims[:axis], *x.dims[axis + 1 :])
    place = b.number(f"{n} place", 0, x.rank - 1)
    directions = {f"scan_{k}_directions": [int(b.flag(f"{n} {k} reverse", 0.3))] for k in ("input", "output")}
    dims = (*rest[:place], x.dims[axis], *rest[place:])
    b.emit("Scan", [x.name], [dims], x.exact and op != "Tanh", body=body, num_scan_inputs=1, scan_input_axes=[axis],
           scan_output_axes=[place], **directions)  # fmt: skip


def recurrent(b: Builder, n: str) -> None:
    """A recurrent layer over the first dimension."""
    x = b.pick(n, lambda v: v.is_float and v.rank == 3 and v.dims[2].isdigit() and v.array.size > 0)
    op, hidden = b.choice(f"{n} op", ["LSTM", "GRU", "RNN"]), b.choice(f"{n} hidden", [1, 5, 16])
    direction = b.choice(f"{n} direction", ["forward", "reverse", "bidirectional"])
    count, gates = 2 if direction == "bidirectional" else 1, {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    names = [x.name, b.weights(count, gates * hidden, x.array.shape[2]), b.weights(count, gates * hidden, hidden)]
    if b.flag(f"{n} bias", 0.7):
        names.append(b.weights(count, 2 * gates * hidden))
    states = (str(count), x.dims[1], str(hidden))
    b.emit(op, names, [(x.dims[0], *states), states], hidden_size=hidden, direction=direction)


def loop(b: Builder, n: str) -> None:
    """Adds a captured value some times, and perhaps stacks what it had in between."""
    x = b.pick(n, _float)
    count = b.number(f"{n} count", 1, 3)
    nodes = [helper.make_node("Identity", [f"{n}_go"], [f"{n}_on"]),
             helper.make_node("Add", [f"{n}_v", x.name], [f"{n}_w"])]  # fmt: skip
    outputs = [helper.make_tensor_value_info(f"{n}_on", BOOL, []), helper.make_tensor_value_info(f"{n}_w", FLOAT, None)]
    dims: list[tuple[str, ...]] = [x.dims]
    if b.flag(f"{n} stacked", 0.5):
        nodes.append(helper.make_node("Neg", [f"{n}_w"], [f"{n}_s"]))
        shape = [None] * x.rank
        outputs.append(helper.make_tensor_value_info(f"{n}_s", FLOAT, shape))
        dims.append((str(count), *x.dims))
    outputs[1] = helper.make_tensor_value_info(f"{n}_w", FLOAT, [None] * x.rank)
    inputs = [helper.make_tensor_value_info(f"{n}_i", INT, []), helper.make_tensor_value_info(f"{n}_go", BOOL, []),
             helper.make_tensor_value_info(f"{n}_v", FLOAT, [None] * x.rank)]  # fmt: skip
    body = helper.make_graph(nodes, n, inputs, outputs)
    start, go = b.constant(np.asarray(count, np.int64)), b.constant(np.asarray(True))
    b.emit("Loop", [start, go, x.name], dims, x.exact, body=body)


def sequence(b: Builder, n: str) -> None:
    """Values in a sequence and out of it again."""
    x = b.pick(n, _float)
    if b.opset < 11 or x.rank > 4:
        raise UnfitError
    stacked = int(b.flag(f"{n} stacked", 0.5))
    text = "2" if stacked else derived(x.dims[0], "twice", 2 * x.array.shape[0])
    construct = helper.make_node("SequenceConstruct", [x.name, x.name], [f"{n}_q"], name=f"{n}q")
    b.nodes.append(construct)
    dims = (text, *x.dims) if stacked else (text, *x.dims[1:])
    parts = np.stack([x.array, x.array]) if stacked else np.concatenate([x.array, x.array])
    b.nodes.append(
        helper.make_node("ConcatFromSequence", [f"{n}_q"], [f"{n}_c"], name=f"{n}c", axis=0, new_axis=stacked)
    )
    b.values.append(Value(f"{n}_c", parts, dims, x.exact))
