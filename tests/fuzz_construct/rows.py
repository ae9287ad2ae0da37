"""Random reductions, and normalisations with them."""

from collections.abc import Mapping

import numpy as np
from tests.fuzz_construct.builder import FLOATS, Builder, Dim, RandomModel, Rounding, numpy_of, random_array
from tests.fuzz_construct.products import summed

REDUCERS: Mapping[str, Rounding] = {
    "ReduceSum": Rounding.NONE, "ReduceMax": Rounding.NONE, "ReduceMin": Rounding.NONE, "ReduceMean": Rounding.LINEAR,
    "ReduceL2": Rounding.SMOOTH, "ReduceSumSquare": Rounding.NONE, "ReduceLogSumExp": Rounding.SMOOTH,
    "ReduceL1": Rounding.NONE,
}  # fmt: skip


def reduction(b: Builder) -> RandomModel:
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
    if rounding is Rounding.NONE and op not in ("ReduceMax", "ReduceMin"):
        rounding = summed(b, t)
    return b.finished(b.epilogue(y, t), t, rounding)


def statistics(b: Builder) -> RandomModel:
    """Several reductions of one tensor over the same axis, and perhaps what is above the mean."""
    t = b.choice("dtype", FLOATS)
    rank = b.number("rank", 1, 3)
    dims = [b.dim(f"n{k}", (300, 130, 33)[rank - 1]) for k in range(rank)]
    x, axis = b.feed("X", dims, t), b.number("axis", 0, rank - 1)
    over = b.constant("axes", np.array([axis], np.int64))
    for k in range(b.number("count", 1, 3)):
        b.further[b.node(b.choice(f"op {k}", tuple(REDUCERS)), x, over, keepdims=int(b.flag(f"kept {k}")))] = t
    mean = b.node("ReduceMean", x, over, keepdims=1)
    b.further |= {mean: t} if b.flag("mean") else {}
    return b.finished(b.node("Sub", x, mean), t, Rounding.SMOOTH)


def place_of_extreme(b: Builder) -> RandomModel:
    """ArgMax and ArgMin: where the first or the last of the largest or smallest elements is."""
    t = b.choice("dtype", (*FLOATS, "int32", "int8"))
    rank = b.number("rank", 1, 3)
    dims = [b.dim(f"n{k}", (200, 97, 33)[rank - 1]) for k in range(rank)]
    op, last = b.choice("op", ("ArgMax", "ArgMin")), int(b.flag("last of equals"))
    y = b.node(op, b.feed("X", dims, t), axis=b.number("axis", 0, rank - 1), keepdims=int(b.flag("kept")),
               select_last_index=last)  # fmt: skip
    return b.finished(y, "int64", Rounding.NONE)


def softmax(b: Builder) -> RandomModel:
    """Softmax and its logarithm along any axis."""
    t = b.choice("dtype", FLOATS)
    rank = b.number("rank", 1, 3)
    dims = [b.dim(f"n{k}", (300, 130, 33)[rank - 1]) for k in range(rank)]
    op = b.choice("op", ("Softmax", "LogSoftmax"))
    y = b.node(op, b.feed("X", dims, t), axis=b.number("axis", 0, rank - 1))
    result = b.epilogue(y, t)
    alone = op == "Softmax" and b.record["epilogue"] in ("none", "relu", "scale")
    return b.finished(result, t, Rounding.RELATIVE if alone else Rounding.SMOOTH)


def layer_norm(b: Builder) -> RandomModel:
    """LayerNormalization over the last axes."""
    t = b.choice("dtype", FLOATS)
    rows, columns = b.dim("rows", 40), b.dim("columns", 200, fixed=True)
    x = b.feed("X", (b.dim("batch", 3), rows, columns), t)
    operands = [b.weights("scale", (columns.size,), t)]
    operands += [b.weights("shift", (columns.size,), t)] if b.flag("shifted") else []
    # a large epsilon: rows whose elements are all but equal would only tell rounding errors apart
    # statistics are computed in float32
    statistics = ("float32", "float32") if b.flag("statistics", 0.4) else ()
    y = b.node_with_results("LayerNormalization", statistics, x, *operands, axis=-1, epsilon=0.1)
    return b.finished(b.epilogue(y, t), t, Rounding.SMOOTH)


def root_mean_square_norm(b: Builder) -> RandomModel:
    """RMSNormalization over the last axes, behind an addition as in a transformer or alone."""
    t = b.choice("dtype", FLOATS)
    b.opset = 23
    rows, columns = b.dim("rows", 40), b.dim("columns", 200, fixed=True)
    dims = b.dim("batch", 3), rows, columns
    x = b.feed("X", dims, t)
    if b.flag("behind a sum"):
        x = b.node("Add", x, b.feed("skipped", dims, t))
    y = b.node("RMSNormalization", x, b.weights("scale", (columns.size,), t), axis=-1, epsilon=0.1)
    return b.finished(b.epilogue(y, t), t, Rounding.SMOOTH)


def image_norm(b: Builder) -> RandomModel:
    """Normalisations of pictures: by stored statistics, of an instance, of groups, of neighbouring channels."""
    op = b.choice("op", ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN",
                         "MeanVarianceNormalization", "LpNormalization"))  # fmt: skip
    t = b.choice("dtype", FLOATS if op in ("InstanceNormalization", "GroupNormalization") else FLOATS[:3])
    groups = b.number("groups", 1, 4)
    channels = groups * b.extent("channels of a group", 9)
    x = b.feed("X", (b.dim("batch", 3), Dim(channels), b.dim("h", 17), b.dim("w", 37)), t)
    operands = [b.weights(name, (channels,), t) for name in ("scale", "shift")]
    options: dict[str, object] = {"epsilon": 0.1}
    match op:
        case "BatchNormalization":
            variance = np.abs(random_array((channels,), t, b.data, False)) + np.array(0.5, numpy_of(t))
            operands += [b.weights("mean", (channels,), t), b.constant("variance", variance)]
        case "GroupNormalization":
            options["num_groups"] = groups
        case "LRN":
            operands, options = [], {"size": b.number("size", 1, 5), "bias": 1.0}
        case "LpNormalization":
            operands, options = [], {"axis": b.number("axis", 1, 3), "p": b.number("p", 1, 2)}
        case "MeanVarianceNormalization":
            # one element has no variance, and no epsilon keeps its square root away from zero
            operands, options = [], {"axes": [0, 1, 2, 3]}
            x = b.node("Concat", x, b.node("Add", x, b.constant("one", np.array(1, numpy_of(t)))), axis=3)
        case _:
            pass
    y = b.node(op, x, *operands, **options)
    return b.finished(b.epilogue(y, t), t, Rounding.SMOOTH)
