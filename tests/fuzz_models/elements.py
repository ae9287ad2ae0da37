"""Kinds of nodes: element-wise ones, reductions, products, normalisations."""

import numpy as np
from onnx import TensorProto
from tests.fuzz_models.builder import Builder, UnfitError, Value, derived


def is_float(v: Value) -> bool:
    """Whether elements are float32."""
    return v.is_float


UNARY = {
    "Relu": (6, True), "Neg": (6, True), "Abs": (6, True), "Identity": (1, True), "Floor": (6, True), "Ceil": (6, True),
    "Sign": (9, True), "Sigmoid": (6, False), "Tanh": (6, False), "Exp": (6, False), "LeakyRelu": (6, False),
    "Elu": (6, False), "Selu": (6, False), "Softsign": (1, False), "Softplus": (1, False), "HardSigmoid": (6, False),
    "Erf": (9, False), "Sin": (7, False), "Atan": (7, False), "Asinh": (9, False), "HardSwish": (14, False),
    "Gelu": (20, False), "Mish": (18, False), "ThresholdedRelu": (10, True),
}  # fmt: skip
"""Operators with the version from which on they are drawn, and whether whole numbers stay whole."""

JUMPS = ("Floor", "Ceil", "Sign", "ThresholdedRelu")


def unary(b: Builder, n: str) -> None:
    """y = f(x)."""
    op = b.choice(f"{n} op", [k for k, (since, _) in UNARY.items() if since <= b.opset])
    x = b.pick(n, lambda v: v.is_float and (v.exact or op not in JUMPS))
    b.emit(op, [x.name], [x.dims], x.exact and UNARY[op][1])


def binary(b: Builder, n: str) -> None:
    """Two values of equal dimensions, or one and a constant that is broadcast."""
    op = b.choice(f"{n} op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"])
    x = b.pick(n, is_float)
    other = b.choice(f"{n} other", ["value", "scalar", "last", "row", "meets"])
    old = {"broadcast": 1} if b.opset < 7 and op in ("Add", "Sub", "Mul", "Div") else {}
    if op in ("Max", "Min") and b.opset < 8:
        other = "value"
    if op == "Div":
        below = b.pick(f"{n} below", lambda v: v.is_float and v.dims == x.dims)
        (size,) = b.emit("Abs", [below.name], [x.dims], below.exact)
        one = b.constant(np.float32(1.5))
        (safe,) = b.emit("Add", [size.name, one], [x.dims], **old)
        b.emit("Div", [x.name, safe.name], [x.dims])
        return
    if other in ("value", "meets"):
        # "meets": sizes that are equal in this run, whatever they are called
        y = b.pick(
            f"{n} second",
            lambda v: v.is_float and (v.array.shape == x.array.shape if other == "meets" else v.dims == x.dims),
        )
        if y.dims != x.dims:
            b.record["one run"] = True
        dims = [min(p, q, key=lambda d: (not d.isdigit(), len(d), d)) for p, q in zip(x.dims, y.dims, strict=True)]
        b.emit(op, [x.name, y.name], [dims], x.exact and y.exact and op != "PRelu")
        return
    exact = b.flag(f"{n} whole", 0.7)
    shape = {"scalar": (), "last": x.array.shape[-1:], "row": (1, *x.array.shape[1:])}[other]
    texts = {"scalar": (), "last": x.dims[-1:], "row": x.dims[1:]}[other]
    if not all(d.isdigit() for d in texts):
        raise UnfitError
    b.emit(op, [x.name, b.weights(*shape, exact=exact)], [x.dims], x.exact and exact and op != "PRelu", **old)


def clip(b: Builder, n: str) -> None:
    """Both bounds, or one of them."""
    x = b.pick(n, is_float)
    which = b.choice(f"{n} bounds", ["both", "low", "high"])
    low, high = np.float32(-2), np.float32(3)
    if b.opset < 11:
        bounds = {"min": -2.0 if which != "high" else None, "max": 3.0 if which != "low" else None}
        b.emit("Clip", [x.name], [x.dims], x.exact, **bounds)
        return
    ends = {"both": [low, high], "low": [low], "high": [None, high]}[which]
    b.emit("Clip", [x.name, *("" if e is None else b.constant(np.asarray(e)) for e in ends)], [x.dims], x.exact)


def compare(b: Builder, n: str) -> None:
    """A comparison, and what it chooses between."""
    x = b.pick(n, lambda v: v.is_float and v.exact)
    op = b.choice(f"{n} op", ["Greater", "Less", "Equal"])
    if b.opset < 9 or (op == "Equal" and b.opset < 11):
        raise UnfitError
    y = b.pick(f"{n} second", lambda v: v.is_float and v.exact and v.dims == x.dims)
    (c,) = b.emit(op, [x.name, y.name], [x.dims], True)
    if b.flag(f"{n} negated", 0.3):
        (c,) = b.emit("Not", [c.name], [x.dims], True)
    if b.flag(f"{n} chosen", 0.7):
        b.emit("Where", [c.name, x.name, b.constant(np.float32(2))], [x.dims], True)
    else:
        b.emit("Cast", [c.name], [x.dims], True, to=TensorProto.FLOAT)


def cast(b: Builder, n: str) -> None:
    """Whole numbers to another type, or to float32."""
    x = b.pick(n, lambda v: v.exact and v.array.dtype.kind in "fib")
    to = b.choice(f"{n} to", ["FLOAT", "INT64", "INT32", "DOUBLE"]) if x.is_float else "FLOAT"
    b.emit("Cast", [x.name], [x.dims], True, to=TensorProto.DataType.Value(to))


REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
          "ReduceLogSumExp", "ReduceProd")  # fmt: skip


def reduction(b: Builder, n: str) -> None:
    """Over one axis, the last two, or all."""
    op = b.choice(f"{n} op", REDUCE)
    x = b.pick(n, lambda v: v.is_float and v.rank > 0 and v.array.size > 0)
    which = b.choice(f"{n} axes", ["one", "two", "all"])
    first = b.number(f"{n} axis", 0, x.rank - 1)
    axes = {"one": [first], "two": sorted({first, x.rank - 1}), "all": None}[which]
    keep = b.flag(f"{n} keeps")
    gone = range(x.rank) if axes is None else axes
    dims = [("1" if k in gone else d) for k, d in enumerate(x.dims) if keep or k not in gone]
    signed = None if axes is None else [a - x.rank if b.opset >= 11 and b.flag(f"{n} back", 0.3) else a for a in axes]
    exact = x.exact and op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")
    if b.opset >= (13 if op == "ReduceSum" else 18):
        inputs = [x.name] if signed is None else [x.name, b.constant(np.asarray(signed, np.int64))]
        b.emit(op, inputs, [dims], exact, keepdims=int(keep))
    else:
        b.emit(op, [x.name], [dims], exact, keepdims=int(keep), axes=signed)


def place(b: Builder, n: str) -> None:
    """Where the largest or smallest element is."""
    x = b.pick(n, lambda v: v.is_float and v.exact and v.rank > 0 and v.array.size > 0)
    axis = b.number(f"{n} axis", 0, x.rank - 1)
    keep = b.flag(f"{n} keeps")
    dims = [("1" if k == axis else d) for k, d in enumerate(x.dims) if keep or k != axis]
    b.emit(b.choice(f"{n} op", ["ArgMax", "ArgMin"]), [x.name], [dims], True, axis=axis, keepdims=int(keep))


def softmax(b: Builder, n: str) -> None:
    """Softmax or its logarithm over one axis; before version 13 over all from it on."""
    x = b.pick(n, lambda v: v.is_float and v.rank > 0 and v.array.size > 0)
    op = b.choice(f"{n} op", ["Softmax", "LogSoftmax"])
    b.emit(op, [x.name], [x.dims], axis=b.number(f"{n} axis", 0, x.rank - 1))


def matmul(b: Builder, n: str) -> None:
    """By a constant, or by another value whose sizes fit."""
    x = b.pick(n, lambda v: v.is_float and v.rank >= 2)
    if b.flag(f"{n} both", 0.4):
        y = b.pick(f"{n} second", lambda v: v.is_float and v.rank == 2 and v.dims[0] == x.dims[-1])
        b.emit("MatMul", [x.name, y.name], [(*x.dims[:-1], y.dims[1])])
        return
    size = b.number(f"{n} columns", 1, 9)
    if not x.dims[-1].isdigit():
        if not b.flag(f"{n} meets", 0.5):
            raise UnfitError
        b.record["one run"] = True
    b.emit("MatMul", [x.name, b.weights(x.array.shape[-1], size)], [(*x.dims[:-1], str(size))])


def gemm(b: Builder, n: str) -> None:
    """alpha A B + beta C, each perhaps transposed."""
    x = b.pick(n, lambda v: v.is_float and v.rank == 2)
    first, second = b.flag(f"{n} transA", 0.3), b.flag(f"{n} transB", 0.5)
    rows, inner = (1, 0) if first else (0, 1)
    if not x.dims[inner].isdigit() or b.opset < 7:
        raise UnfitError
    k, columns = x.array.shape[inner], b.number(f"{n} columns", 1, 9)
    w = b.weights(*((columns, k) if second else (k, columns)))
    bias = [b.weights(columns)] if b.opset < 11 or b.flag(f"{n} bias", 0.7) else []
    alpha = 0.5 if b.flag(f"{n} alpha", 0.3) else None
    dims = (x.dims[rows], str(columns))
    b.emit("Gemm", [x.name, w, *bias], [dims], transA=int(first), transB=int(second), alpha=alpha)


def normalization(b: Builder, n: str) -> None:
    """Batch, instance or layer normalisation."""
    op = b.choice(f"{n} op", ["BatchNormalization", "InstanceNormalization", "LayerNormalization"])
    least = 1 if op == "LayerNormalization" else 3
    axis = -1 if op == "LayerNormalization" else 1
    x = b.pick(n, lambda v: v.is_float and v.rank >= least and v.dims[axis].isdigit() and v.array.size > 0)
    c = x.array.shape[axis]
    scale, shift = b.weights(c), b.weights(c)
    if op == "BatchNormalization":
        if b.opset < 7:
            raise UnfitError
        mean, variance = b.weights(c), b.constant(np.linspace(0.5, 2, c).astype(np.float32))
        b.emit(op, [x.name, scale, shift, mean, variance], [x.dims])
    elif op == "InstanceNormalization" and np.prod(x.array.shape[2:]) < 2:
        raise UnfitError  # all that is left is the rounding of 0
    elif op == "InstanceNormalization" or b.opset >= 17:
        b.emit(op, [x.name, scale, shift], [x.dims])
    else:
        raise UnfitError


def summed(b: Builder, n: str) -> None:
    """Sums along an axis up to each element."""
    x = b.pick(n, lambda v: v.is_float and v.rank > 0)
    if b.opset < 11:
        raise UnfitError
    axis = b.constant(np.asarray(b.number(f"{n} axis", 0, x.rank - 1), np.int32))
    flags = {"exclusive": int(b.flag(f"{n} exclusive", 0.3)), "reverse": int(b.flag(f"{n} reverse", 0.3))}
    b.emit("CumSum", [x.name, axis], [x.dims], x.exact, **flags)


def doubled(b: Builder, n: str) -> None:
    """Concatenation with itself or another value along an axis."""
    x = b.pick(n, lambda v: v.rank > 0 and v.array.dtype.kind in "fi")
    axis = b.number(f"{n} axis", 0, x.rank - 1)

    def fits(v: Value) -> bool:
        same = [p == q for k, (p, q) in enumerate(zip(v.dims, x.dims, strict=False)) if k != axis]
        return v.rank == x.rank and v.array.dtype == x.array.dtype and all(same)

    y = b.pick(f"{n} second", fits)
    size = x.array.shape[axis] + y.array.shape[axis]
    text = derived(x.dims[axis] if not x.dims[axis].isdigit() else y.dims[axis], f"{x.dims[axis]}+{y.dims[axis]}", size)
    dims = (*x.dims[:axis], text, *x.dims[axis + 1 :])
    b.emit("Concat", [x.name, y.name], [dims], x.exact and y.exact, axis=axis)
