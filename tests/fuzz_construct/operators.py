"""Random operators: one function per kind, from a builder to a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
from tests.fuzz_construct.builder import FLOATS, Builder, Dim, Made, Rounding


def summed(b: Builder, dtype: str) -> Rounding:
    """The rounding of sums of products."""
    return Rounding.NONE if b.whole or "int" in dtype else Rounding.LINEAR


def gemm(b: Builder) -> Made:
    """Gemm: transposed operands, factors, C of every shape that broadcasts."""
    t = b.choice("dtype", (*FLOATS, "int32"))
    m, n, k = b.dim("m", 130), b.dim("n", 130), b.dim("k", 130)
    ta, tb = b.flag("transposed A", 0.4), b.flag("transposed B", 0.4)
    operands = [b.operand("A", (k, m) if ta else (m, k), t), b.operand("B", (n, k) if tb else (k, n), t)]
    factors = {} if "int" in t else {"alpha": float(b.choice("alpha", ("1", "2", "0.5"))), "beta": 2.0}
    shape = b.choice("C", ("none", "row", "column", "one", "whole"))
    if shape != "none":
        dims = {"row": (n,), "column": (m, Dim(1)), "one": (), "whole": (m, n)}[shape]
        operands.append(b.operand("C", dims, t))
    y = b.node("Gemm", *operands, transA=int(ta), transB=int(tb), **factors)
    return b.finished(b.epilogue(y, t, None if n.name else n.size), t, summed(b, t))


def matmul(b: Builder) -> Made:
    """MatMul: batches that broadcast, rows and columns alone."""
    t = b.choice("dtype", (*FLOATS, "int32"))
    m, n, k = b.dim("m", 70), b.dim("n", 130), b.dim("k", 130)
    p, q = b.dim("p", 3), b.dim("q", 3)
    left = {"matrix": (m, k), "batch": (q, m, k), "batches": (p, q, m, k), "row": (k,)}
    right = {"matrix": (k, n), "same": (q, k, n), "one": (Dim(1), k, n), "column": (k,)}
    x = b.operand("A", left[b.choice("left", tuple(left))], t)
    y = b.operand("B", right[b.choice("right", tuple(right))], t)
    return b.finished(b.epilogue(b.node("MatMul", x, y), t), t, summed(b, t))


def integer_product(b: Builder) -> Made:
    """MatMulInteger and ConvInteger: products of bytes, sums in int32."""
    t = b.choice("dtype", ("uint8", "int8"))
    if b.flag("convolution", 0.5):
        c, f, size = b.extent("cin", 9), b.extent("cout", 33), b.dim("h", 20, 3)
        x = b.feed("X", (b.dim("batch", 2), Dim(c), size, b.dim("w", 35, 3)), t)
        zero = [b.constant("zero", np.array(2, t))] if b.flag("zero point") else []
        y = b.node("ConvInteger", x, b.weights("W", (f, c, 3, 3), "int8"), *zero)
    else:
        m, n, k = b.dim("m", 65), b.dim("n", 130), b.dim("k", 100)
        x, w = b.feed("A", (m, k), t), b.operand("B", (k, n), "int8")
        zero = [b.constant("zero", np.array(2, t))] if b.flag("zero point") else []
        y = b.node("MatMulInteger", x, w, *zero)
    return b.finished(y, "int32", Rounding.NONE)


@dataclass(frozen=True)
class Window:
    """One axis of a sliding window."""

    size: Dim
    kernel: int
    stride: int
    dilation: int
    pads: tuple[int, int]


def windows(b: Builder, rank: int, dilated: bool = True, most: int = 5) -> tuple[list[Window], dict[str, list[int]]]:
    """Axes of a window, and the attributes that say so."""
    found: list[Window] = []
    for axis in "zyx"[3 - rank :]:
        kernel = b.number(f"kernel {axis}", 1, most)
        stride = b.number(f"stride {axis}", 1, 3)
        dilation = b.number(f"dilation {axis}", 1, 2) if dilated else 1
        pads = (b.number(f"before {axis}", 0, kernel - 1), b.number(f"behind {axis}", 0, kernel - 1))
        least = max(1, dilation * (kernel - 1) + 1 - sum(pads))
        size = b.dim(f"size {axis}", max(least, (70, 36, 12)[rank - 1]), least)
        found.append(Window(size, kernel, stride, dilation, pads))
    shape = {"kernel_shape": [w.kernel for w in found], "strides": [w.stride for w in found]}
    pads = {"pads": [w.pads[0] for w in found] + [w.pads[1] for w in found]}
    return found, {**shape, **pads, **({"dilations": [w.dilation for w in found]} if dilated else {})}


def convolution(b: Builder) -> Made:
    """Convolutions along 1 to 3 axes: strides, dilations, unequal padding, groups, one filter per channel."""
    t = b.choice("dtype", FLOATS)
    rank = b.number("rank", 1, 3)
    axes, attributes = windows(b, rank)
    kind = b.choice("groups", ("one", "some", "depthwise"))
    groups = b.extent("channels", 33) if kind == "depthwise" else b.number("group", 2, 3) if kind == "some" else 1
    cin = 1 if kind == "depthwise" else b.extent("cin", 20 // groups)
    cout = b.number("multiplier", 1, 2) if kind == "depthwise" else b.extent("cout", 49 // groups)
    x = b.feed("X", (b.dim("batch", 3), Dim(groups * cin), *(a.size for a in axes)), t)
    w = b.weights("W", (groups * cout, cin, *(a.kernel for a in axes)), t)
    bias = [b.weights("B", (groups * cout,), t)] if b.flag("with bias") else []
    y = b.node("Conv", x, w, *bias, group=groups, **attributes)
    return b.finished(b.epilogue(y, t, groups * cout, -1 - rank), t, summed(b, t))


def transposed_convolution(b: Builder) -> Made:
    """ConvTranspose along one or two axes."""
    t = b.choice("dtype", FLOATS)
    rank = b.number("rank", 1, 2)
    axes, attributes = windows(b, rank, most=4)
    groups = b.number("group", 1, 2)
    cin, cout = b.extent("cin", 16 // groups), b.extent("cout", 33 // groups)
    extra = [b.number(f"extra {k}", 0, a.stride - 1) for k, a in enumerate(axes)]
    # at least one point must be left of what the padding takes away
    least = [max(1, 1 + ceil((sum(a.pads) - a.dilation * (a.kernel - 1)) / a.stride)) for a in axes]
    sizes = [Dim(max(a.size.size, n), a.size.name, n) for a, n in zip(axes, least, strict=True)]
    x = b.feed("X", (b.dim("batch", 2), Dim(groups * cin), *sizes), t)
    w = b.weights("W", (groups * cin, cout, *(a.kernel for a in axes)), t)
    y = b.node("ConvTranspose", x, w, group=groups, output_padding=extra, **attributes)
    return b.finished(b.epilogue(y, t, groups * cout, -1 - rank), t, summed(b, t))


def pooling(b: Builder) -> Made:
    """MaxPool, AveragePool, and pooling of all positions."""
    op = b.choice("op", ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    t = b.choice("dtype", (*FLOATS, "int8") if op == "MaxPool" else FLOATS)
    rank = b.number("rank", 1, 3)
    axes, attributes = windows(b, rank, dilated=False)
    x = b.feed("X", (b.dim("batch", 3), b.dim("channels", 40), *(a.size for a in axes)), t)
    if op.startswith("Global"):
        attributes = {}
    rest = {"count_include_pad": int(b.flag("padding counts"))} if op == "AveragePool" else {}
    y = b.node(op, x, **attributes, **rest)
    return b.finished(b.epilogue(y, t), t, Rounding.NONE if "Max" in op else Rounding.LINEAR)


REDUCERS: Mapping[str, Rounding] = {
    "ReduceSum": Rounding.NONE, "ReduceMax": Rounding.NONE, "ReduceMin": Rounding.NONE, "ReduceMean": Rounding.LINEAR,
    "ReduceL2": Rounding.SMOOTH, "ReduceSumSquare": Rounding.NONE, "ReduceLogSumExp": Rounding.SMOOTH,
}  # fmt: skip


def reduction(b: Builder) -> Made:
    """Any axes of a tensor of any rank reduced."""
    op = b.choice("op", tuple(REDUCERS))
    plain = op in ("ReduceSum", "ReduceMax", "ReduceMin")
    t = b.choice("dtype", (*FLOATS, "int32") if plain else FLOATS)
    rank = b.number("rank", 1, 4)
    dims = [b.dim(f"n{k}", (200, 130, 33, 9)[rank - 1]) for k in range(rank)]
    axes = [k for k in range(rank) if b.flag(f"over {k}", 0.5)] or [b.number("at least", 0, rank - 1)]
    over = b.constant("axes", np.array(axes, np.int64))
    y = b.node(op, b.feed("X", dims, t), over, keepdims=int(b.flag("kept")))
    rounding = REDUCERS[op]
    if rounding is Rounding.NONE and not b.whole and "int" not in t and op not in ("ReduceMax", "ReduceMin"):
        rounding = Rounding.LINEAR
    return b.finished(b.epilogue(y, t), t, rounding)


def softmax(b: Builder) -> Made:
    """Softmax and its logarithm along any axis."""
    t = b.choice("dtype", FLOATS)
    rank = b.number("rank", 1, 3)
    dims = [b.dim(f"n{k}", (300, 130, 33)[rank - 1]) for k in range(rank)]
    op = b.choice("op", ("Softmax", "LogSoftmax"))
    y = b.node(op, b.feed("X", dims, t), axis=b.number("axis", 0, rank - 1))
    return b.finished(b.epilogue(y, t), t, Rounding.SMOOTH)


def layer_norm(b: Builder) -> Made:
    """LayerNormalization over the last axes."""
    t = b.choice("dtype", FLOATS)
    rows, columns = b.dim("rows", 40), b.dim("columns", 200, fixed=True)
    x = b.feed("X", (b.dim("batch", 3), rows, columns), t)
    operands = [b.weights("scale", (columns.size,), t)]
    operands += [b.weights("shift", (columns.size,), t)] if b.flag("shifted") else []
    # a large epsilon: rows whose elements are all but equal would only tell rounding errors apart
    y = b.node("LayerNormalization", x, *operands, axis=-1, epsilon=0.1)
    return b.finished(b.epilogue(y, t), t, Rounding.SMOOTH)


def transpose(b: Builder) -> Made:
    """Any order of up to four axes."""
    t = b.choice("dtype", (*FLOATS, "int8", "int32"))
    rank = b.number("rank", 2, 4)
    dims = [b.dim(f"n{k}", (0, 130, 49, 17)[rank - 1]) for k in range(rank)]
    left, order = list(range(rank)), list[int]()
    for k in range(rank):
        order.append(left.pop(b.number(f"axis {k}", 0, len(left) - 1)))
    y = b.node("Transpose", b.feed("X", dims, t), perm=order)
    return b.finished(b.epilogue(y, t), t, Rounding.NONE)


def chain(b: Builder) -> Made:
    """Element-wise operators one behind the other, with operands that broadcast."""
    t = b.choice("dtype", (*FLOATS, "int32"))
    rank = b.number("rank", 1, 4)
    dims = [b.dim(f"n{k}", (300, 97, 33, 17)[rank - 1]) for k in range(rank)]
    y = b.feed("X", dims, t)
    smooth = False
    for step in range(b.number("length", 1, 4)):
        ops = ("Add", "Mul", "Sub", "Max", "Min", "Relu", "Abs", "Neg") + (() if "int" in t else ("Tanh", "Sigmoid"))
        op = b.choice(f"op {step}", ops)
        smooth = smooth or op in ("Tanh", "Sigmoid")
        if op in ("Add", "Mul", "Sub", "Max", "Min"):
            other = [Dim(1) if b.flag(f"broadcast {step} {k}", 0.3) else d for k, d in enumerate(dims)]
            first = b.number(f"first {step}", 0, rank - 1)
            y = b.node(op, y, b.operand(f"Y{step}", other[first:], t))
        else:
            y = b.node(op, y)
    return b.finished(y, t, Rounding.SMOOTH if smooth or (not b.whole and "int" not in t) else Rounding.NONE)


def resize(b: Builder) -> Made:
    """Pictures enlarged and made smaller: the nearest element, or a weighted mean of neighbours."""
    t = b.choice("dtype", ("float32", "float64"))
    mode = b.choice("mode", ("nearest", "linear"))
    where = b.choice("where", ("asymmetric", "half_pixel", "align_corners"))
    dims = (b.dim("batch", 2), b.dim("channels", 20), b.dim("h", 24), b.dim("w", 40))
    by = [float(b.choice(f"scale {k}", ("1", "2", "3", "0.5", "1.5"))) for k in "hw"]
    # a picture of which nothing is left is none
    by = [max(s, 1.0) if d.least * s < 1 else s for s, d in zip(by, dims[2:], strict=True)]
    scales = b.constant("scales", np.array([1, 1, *by], np.float32))
    x = b.feed("X", dims, t)
    y = b.node("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=where, nearest_mode="floor")
    return b.finished(b.epilogue(y, t), t, Rounding.NONE if mode == "nearest" else Rounding.LINEAR)


KINDS: Mapping[str, Callable[[Builder], Made]] = {
    f.__name__: f
    for f in (
        gemm, matmul, integer_product, convolution, transposed_convolution, pooling, reduction, softmax, layer_norm,
        transpose, chain, resize,
    )
}  # fmt: skip
"""Every kind of operator by name."""

OFTEN = ("gemm", "matmul", "convolution", "convolution", "pooling", "reduction", *KINDS)
"""From which kinds are drawn: those that construction has most to choose for come up more often."""
