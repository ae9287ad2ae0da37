"""Kinds of nodes: conditionals, loops and sequences."""

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
