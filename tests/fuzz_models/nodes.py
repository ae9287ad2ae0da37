"""Every kind of node: one function each, and how a model is drawn from them."""

from collections.abc import Callable, Mapping

from tests.fuzz_models import control, data, elements, moves, several, windows
from tests.fuzz_models.builder import Builder, UnfitError

Kind = Callable[[Builder, str], None]

KINDS: Mapping[str, Kind] = {
    f.__name__: f
    for f in (
        elements.unary, elements.binary, elements.clip, elements.compare, elements.cast, elements.reduction,
        elements.place, elements.softmax, elements.matmul, elements.gemm, elements.normalization, elements.summed,
        elements.doubled, windows.convolution, windows.pooling, windows.whole_pooling, moves.transpose, moves.flat,
        moves.computed, moves.unit, moves.slice_, moves.split, moves.gather, moves.pad, moves.expand, moves.tile,
        moves.counting, data.top_k, data.compress, data.non_zero, data.unique, data.suppression, control.conditional,
        control.loop, control.nested, control.scan, control.recurrent, control.sequence,
        several.statistics, several.deviation, several.softmax_in_parts,
        several.layer_norm_with_statistics,
    )
}  # fmt: skip
"""Every kind of node by name."""

OFTEN = (*KINDS, "unary", "binary", "binary", "binary", "top_k", "compress", "non_zero", "unique", "convolution",
         "pooling", "pooling", "matmul", "reduction", "statistics", "deviation", "softmax_in_parts",
         "layer_norm_with_statistics", "conditional", "loop", "nested", "scan", "recurrent")  # fmt: skip
"""From which kinds are drawn."""

MOST_NODES = 12

INPUTS = (
    ("images", (("n", 2), ("3", 3), ("h", 7), ("w", 9))),
    ("images of one size", (("n", 2), ("4", 4), ("6", 6), ("8", 8))),
    ("signal", (("n", 2), ("4", 4), ("t", 11))),
    ("rows", (("n", 5), ("d", 7))),
    ("rows of one size", (("n", 3), ("8", 8))),
    ("list", (("n", 8),)),
    ("all fixed", (("3", 3), ("5", 5))),
)
"""Shapes of the first input: (text, size) of each dimension."""


def draw(b: Builder) -> None:
    """Draws the inputs and nodes of a model."""
    shapes = dict(INPUTS)
    first = shapes[b.choice("first", list(shapes))]
    b.input("x", first, b.choice("x data", ["whole", "normal"]))
    if b.flag("second input", 0.5):
        again = first if b.flag("second alike", 0.5) else shapes[b.choice("second", list(shapes))]
        b.input("z", again, b.choice("z data", ["whole", "normal"]))
    if b.flag("truth", 0.3):
        b.input("q", (), "bool")
    for k in range(MOST_NODES):
        if not b.flag(f"n{k}", 0.75):
            continue
        kind = b.choice(f"n{k} kind", OFTEN)
        before = len(b.nodes), len(b.values)
        try:
            KINDS[kind](b, f"n{k}")
            b.kinds.append(kind)
        except UnfitError:
            del b.nodes[before[0] :], b.values[before[1] :]
    if not b.nodes:
        # any other one may not fit the input
        (x,) = (v for v in b.values if v.name == "x")
        b.emit("Identity", [x.name], [x.dims], x.exact)
