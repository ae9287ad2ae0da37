"""Random operators that move elements or compute each from its own: transposes, padding, chains, resizing."""

from collections.abc import Sequence

import numpy as np
from tests.fuzz_construct.builder import FLOATS, Builder, Dim, RandomModel, Rounding


def transpose(b: Builder) -> RandomModel:
    """Any order of up to four axes."""
    t = b.choice("dtype", (*FLOATS, "int8", "int32"))
    rank = b.number("rank", 2, 4)
    dims = [b.dim(f"n{k}", (0, 130, 49, 17)[rank - 1]) for k in range(rank)]
    left, order = list(range(rank)), list[int]()
    for k in range(rank):
        order.append(left.pop(b.number(f"axis {k}", 0, len(left) - 1)))
    y = b.node("Transpose", b.feed("X", dims, t), perm=order)
    return b.finished(b.epilogue(y, t), t, Rounding.NONE)


def moved(b: Builder) -> RandomModel:
    """Elements brought to other places: padded, cut, joined, repeated, chosen, interleaved."""
    t = b.choice("dtype", (*FLOATS, "int8", "int32"))
    op = b.choice("op", ("Pad", "Slice", "Concat", "Tile", "Gather", "DepthToSpace", "SpaceToDepth"))
    block = b.number("block", 1, 3)
    whole = op in ("DepthToSpace", "SpaceToDepth")
    n, c = b.dim("batch", 3), b.extent("channels", 9)
    h, w = b.dim("h", 13, 4, fixed=whole), b.dim("w", 33, 4, fixed=whole)
    if whole:
        c *= block * block
        h, w = Dim(h.size * block), Dim(w.size * block)
    x = b.feed("X", (n, Dim(c), h, w), t)
    match op:
        case "Pad":
            mode = b.choice("mode", ("constant", "reflect", "edge", "wrap"))
            before, behind = ([b.number(f"{where} {k}", 0, 3) for k in "hw"] for where in ("before", "behind"))
            y = b.node("Pad", x, numbers(b, "pads", [0, 0, *before, 0, 0, *behind]), mode=mode)
        case "Slice":
            back = b.flag("backwards", 0.3)
            starts = [-1 if back else b.number(f"from {k}", 0, 2) for k in "hw"]
            ends = [-(1 << 40) if back else 1 << 40] * 2
            steps = [b.number(f"step {k}", 1, 3) * (-1 if back else 1) for k in "hw"]
            cut = {"starts": starts, "ends": ends, "axes": [2, 3], "steps": steps}
            y = b.node("Slice", x, *(numbers(b, name, values) for name, values in cut.items()))
        case "Concat":
            other = b.operand("Y", (n, Dim(c), h, Dim(b.extent("more", 17))), t)
            y = b.node("Concat", *((x, other) if b.flag("behind") else (other, x)), axis=3)
        case "Tile":
            y = b.node("Tile", x, numbers(b, "times", [b.number(f"times {k}", 1, 3) for k in "nchw"]))
        case "Gather":
            chosen = b.data.integers(-4, 4, b.extent("chosen", 20))
            y = b.node("Gather", x, numbers(b, "indices", chosen.tolist()), axis=b.number("axis", 2, 3))
        case _:
            y = b.node(op, x, blocksize=block, **({"mode": b.choice("order", ("DCR", "CRD"))} if op[0] == "D" else {}))
    return b.finished(b.epilogue(y, t), t, Rounding.NONE)


def numbers(b: Builder, name: str, values: Sequence[int]) -> str:
    """Constant int64 numbers."""
    return b.constant(name, np.array(values, np.int64))


def chain(b: Builder) -> RandomModel:
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


def resize(b: Builder) -> RandomModel:
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
