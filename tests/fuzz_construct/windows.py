"""Random operators that slide a window: convolutions, also transposed ones, and pooling."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tests.fuzz_construct.builder import FLOATS, Builder, Dim, RandomModel, Rounding
from tests.fuzz_construct.products import summed


@dataclass(frozen=True)
class Window:
    """One axis of a sliding window."""

    size: Dim
    kernel: int
    stride: int
    dilation: int
    pads: tuple[int, int]


KERNELS, FREQUENT = (1, 2, 3, 4, 5), (1, 2, 3, 3, 3, 5)
"""Sizes of kernels: all, and with those that are the most frequent in networks more often."""


def windows(
    b: Builder, rank: int, dilated: bool = True, kernels: Sequence[int] = KERNELS, longest: int = 3
) -> tuple[list[Window], dict[str, list[int]]]:
    """Axes of a window, and the attributes that say so."""
    candidates: list[Window] = []
    for axis in "zyx"[3 - rank :]:
        kernel = b.choice(f"kernel {axis}", kernels)
        stride = b.number(f"stride {axis}", 1, longest)
        dilation = b.number(f"dilation {axis}", 1, 2) if dilated else 1
        pads = (b.number(f"before {axis}", 0, kernel - 1), b.number(f"behind {axis}", 0, kernel - 1))
        least = max(1, dilation * (kernel - 1) + 1 - sum(pads))
        size = b.dim(f"size {axis}", max(least, (70, 36, 12)[rank - 1]), least)
        candidates.append(Window(size, kernel, stride, dilation, pads))
    shape = {"kernel_shape": [w.kernel for w in candidates], "strides": [w.stride for w in candidates]}
    pads = {"pads": [w.pads[0] for w in candidates] + [w.pads[1] for w in candidates]}
    return candidates, {**shape, **pads, **({"dilations": [w.dilation for w in candidates]} if dilated else {})}


def convolution(b: Builder) -> RandomModel:
    """Convolutions along 1 to 3 axes: strides, dilations, unequal padding, groups, one filter per channel."""
    t = b.choice("dtype", FLOATS)
    rank = b.number("rank", 1, 3)
    # those that are the most frequent in networks, and that minimal filtering is for
    plain = b.flag("plain", 0.4)
    axes, attributes = windows(b, rank, not plain, FREQUENT if plain else KERNELS, 1 if plain else 3)
    kind = "one" if plain else b.choice("groups", ("one", "some", "depthwise"))
    groups = b.extent("channels", 33) if kind == "depthwise" else b.number("group", 2, 3) if kind == "some" else 1
    cin = 1 if kind == "depthwise" else b.extent("cin", 20 // groups)
    cout = b.number("multiplier", 1, 2) if kind == "depthwise" else b.extent("cout", 49 // groups)
    x = b.feed("X", (b.dim("batch", 3), Dim(groups * cin), *(a.size for a in axes)), t)
    w = b.weights("W", (groups * cout, cin, *(a.kernel for a in axes)), t)
    bias = [b.weights("B", (groups * cout,), t)] if b.flag("with bias") else []
    y = b.node("Conv", x, w, *bias, group=groups, **attributes)
    return b.finished(b.epilogue(y, t, groups * cout, -1 - rank), t, summed(b, t))


def transposed_convolution(b: Builder) -> RandomModel:
    """ConvTranspose along one or two axes."""
    t = b.choice("dtype", FLOATS)
    rank = b.number("rank", 1, 2)
    axes, attributes = windows(b, rank, kernels=KERNELS[:4])
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


def pooling(b: Builder) -> RandomModel:
    """MaxPool, AveragePool, and pooling of all positions."""
    op = b.choice("op", ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    t = b.choice("dtype", (*FLOATS, "int8") if op == "MaxPool" else FLOATS)
    rank = b.number("rank", 1, 3)
    axes, attributes = windows(b, rank, dilated=op == "MaxPool")
    x = b.feed("X", (b.dim("batch", 3), b.dim("channels", 40), *(a.size for a in axes)), t)
    if op.startswith("Global"):
        attributes = {}
    rest = {"count_include_pad": int(b.flag("padding counts"))} if op == "AveragePool" else {}
    rest |= {} if op.startswith("Global") else {"ceil_mode": int(b.flag("rounded up", 0.2))}
    places = ("int64",) if op == "MaxPool" and b.flag("places", 0.4) else ()
    y = b.node_with_results(op, places, x, **attributes, **rest)
    return b.finished(b.epilogue(y, t), t, Rounding.NONE if "Max" in op else Rounding.LINEAR)
