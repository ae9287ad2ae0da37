"""Kinds of nodes that lead to kernels with several outputs: statistics beside what is normalised, several reductions of
one value. (Maxima with their places are in `windows.py`, splits in `moves.py`.)"""

import numpy as np
from tests.fuzz_models.builder import Builder, UnfitError, Value
from tests.fuzz_models.elements import REDUCE


def _reduce(b: Builder, op: str, x: Value, axis: int, keep: bool, exact: bool) -> Value:
    """A reduction over one axis."""
    dims = [("1" if k == axis else d) for k, d in enumerate(x.dims) if keep or k != axis]
    if b.opset >= (13 if op == "ReduceSum" else 18):
        return b.emit(op, [x.name, b.constant(np.asarray([axis], np.int64))], [dims], exact, keepdims=int(keep))[0]
    return b.emit(op, [x.name], [dims], exact, keepdims=int(keep), axes=[axis])[0]


def statistics(b: Builder, n: str) -> None:
    """Several reductions of one value, over its last axis or another one."""
    x = b.pick(n, lambda v: v.is_float and v.rank > 0 and v.array.size > 0)
    axis = x.rank - 1 if b.flag(f"{n} last", 0.7) else b.number(f"{n} axis", 0, x.rank - 1)
    for k in range(b.number(f"{n} count", 2, 3)):
        op = b.choice(f"{n} op {k}", REDUCE)
        exact = x.exact and op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")
        _reduce(b, op, x, axis, b.flag(f"{n} keeps {k}"), exact)


def deviation(b: Builder, n: str) -> None:
    """Mean and variance from single nodes, as exporters write them, and what is normalised by them."""
    x = b.pick(n, lambda v: v.is_float and v.rank > 0 and v.array.shape[-1] > 1 and v.array.size > 0)
    if b.opset < 7:
        raise UnfitError
    mean = _reduce(b, "ReduceMean", x, x.rank - 1, True, False)
    (low,) = b.emit("Sub", [x.name, mean.name], [x.dims])
    (square,) = b.emit("Mul", [low.name, low.name], [x.dims])
    variance = _reduce(b, "ReduceMean", square, x.rank - 1, True, False)
    if b.flag(f"{n} normalised", 0.6):
        one = b.constant(np.array(1, np.float32))
        (added,) = b.emit("Add", [variance.name, one], [variance.dims])
        (root,) = b.emit("Sqrt", [added.name], [variance.dims])
        b.emit("Div", [low.name, root.name], [x.dims])


def softmax_in_parts(b: Builder, n: str) -> None:
    """A softmax from single nodes, the maxima and sums of which others may read."""
    x = b.pick(n, lambda v: v.is_float and v.rank > 0 and v.array.size > 0)
    if b.opset < 7:
        raise UnfitError
    top = _reduce(b, "ReduceMax", x, x.rank - 1, True, x.exact)
    (low,) = b.emit("Sub", [x.name, top.name], [x.dims], x.exact)
    (power,) = b.emit("Exp", [low.name], [x.dims])
    total = _reduce(b, "ReduceSum", power, x.rank - 1, True, False)
    b.emit("Div", [power.name, total.name], [x.dims])


def layer_norm_with_statistics(b: Builder, n: str) -> None:
    """LayerNormalization with mean and 1 / standard deviation, behind a sum or alone."""
    x = b.pick(n, lambda v: v.is_float and v.rank > 1 and v.dims[-1].isdigit() and v.array.size > 0)
    if b.opset < 17:
        raise UnfitError
    if b.flag(f"{n} behind a sum"):
        # read again where the sum is an output or something else picks it
        (x,) = b.emit("Add", [x.name, b.weights(x.array.shape[-1])], [x.dims])
    c = x.array.shape[-1]
    kept = (*x.dims[:-1], "1")
    # a large epsilon: rows whose elements are all but equal would only tell rounding errors apart
    b.emit("LayerNormalization", [x.name, b.weights(c), b.weights(c)], [x.dims, kept, kept], epsilon=0.1)
