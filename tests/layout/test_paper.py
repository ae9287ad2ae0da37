"""The examples of ALT: shapes and accesses of Section 4.1.1, the programs of Figs. 2, 3, 6 and 7."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.layout.stages import axis, buffer, check_same, convolution, lowered, reads_once

from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Expr, Symbol, Var, as_expr
from tilewright.expr.operations import binary
from tilewright.layout.layout import Layout
from tilewright.layout.rewrite_stage import rewrite_stage
from tilewright.loops.ir import For, walk
from tilewright.loops.printer import show

Size = int | Expr
N, H, W, O, P, Q = (Symbol(name, 1, 64) for name in "NHWOPQ")  # noqa: E741 - the paper's names
n, h, w, o = (Var(name) for name in "nhwo")
SMALL = {N: 2, P: 3, Q: 4}


def shape(*sizes: Size) -> tuple[Expr, ...]:
    return tuple(as_expr(s) for s in sizes)


@pytest.mark.parametrize(
    ("sizes", "ot"), [((2, 32, 5, 6), 16), ((N, P * 16, H, W), 16), ((N, P * Q, H, W), Q)], ids=str
)
def test_channels_tiled(sizes: Sequence[Size], ot: Size):
    """split(O/ot, ot), then reorder: N O H W becomes N O/ot H W ot."""
    size = shape(*sizes)
    layout = Layout.of(size).split(1, (size[1] // ot, ot)).reorder((0, 1, 3, 4, 2))
    assert layout.physical_shape == (size[0], size[1] // ot, size[2], size[3], as_expr(ot))
    assert layout.forward((n, o, h, w)) == (n, o // ot, h, w, o % ot)
    assert not layout.expands


@pytest.mark.parametrize("sizes", [(2, 6, 7, 12), (N, H, W, P * 4)], ids=str)
def test_packed_into_spatial_blocks(sizes: Sequence[Size]):
    """fuse(H, W, O), split(O/4, 4, H*W), reorder: every step as the paper has it."""
    n_, h_, w_, o_ = shape(*sizes)
    e = h * (w_ * o_) + w * o_ + o
    fused = Layout.of((n_, h_, w_, o_)).fuse(1, 3)
    assert fused.physical_shape == (n_, h_ * w_ * o_)
    assert fused.forward((n, h, w, o)) == (n, e)
    split = fused.split(1, (o_ // 4, 4, h_ * w_))
    assert split.physical_shape == (n_, o_ // 4, as_expr(4), h_ * w_)
    assert split.forward((n, h, w, o)) == (n, e // (h_ * w_ * 4), e // (h_ * w_) % 4, e % (h_ * w_))
    packed = split.reorder((0, 1, 3, 2))
    assert packed.physical_shape == (n_, o_ // 4, h_ * w_, as_expr(4))
    assert packed.forward((n, h, w, o)) == (n, e // (h_ * w_ * 4), e % (h_ * w_), e // (h_ * w_) % 4)


def test_texts_of_the_accesses(golden):
    layouts = [
        Layout.of((N, P * 16, H, W)).split(1, (None, 16)).reorder((0, 1, 3, 4, 2)),
        Layout.of((N, H, W, P * 4)).fuse(1, 3).split(1, (P, 4, H * W)).reorder((0, 1, 3, 2)),
        Layout.of((2, 6, 7, 12)).fuse(1, 3).split(1, (3, 4, 42)).reorder((0, 1, 3, 2)),
    ]
    lines: list[str] = []
    for x in layouts:
        there = x.forward((n, o, h, w) if x.rename("nohw")[-1] == "o_i" else (n, h, w, o))
        lines += [str(x), f"    T[{', '.join(map(str, there))}]"]
    golden("\n".join(lines))


def test_unfold_of_five_elements():
    layout = Layout.of((5,)).unfold(0, 3, 2)
    np.testing.assert_array_equal(layout.transform(np.array([1, 2, 3, 4, 5])), [[1, 2, 3], [3, 4, 5]])
    assert layout.expands


def tiled(c: Computation, ot: int, ht: Size, wt: Size) -> dict[str, Layout]:
    """The layouts of Fig. 2: tiles of the output, overlapping tiles of the input, blocked output channels."""
    source, weights = c.inputs
    kh, kw = weights.shape[2:]
    rows = Layout.of(c.output.shape).split(3, (None, wt)).split(2, (None, ht)).split(1, (None, ot))
    windows = Layout.of(source.shape).unfold(3, wt + kw - 1, wt).unfold(2, ht + kh - 1, ht)
    return {
        "Conv": rows.reorder((0, 3, 5, 1, 4, 6, 2)),
        "Inp": windows.reorder((0, 2, 4, 1, 3, 5)),
        "Ker": Layout.of(weights.shape).split(0, (None, ot)).reorder((0, 2, 3, 4, 1)),
    }


@pytest.mark.parametrize(("height", "width", "ht", "wt"), [(8, 6, 4, 3), (P * 2, Q * 2, P, Q)], ids=str)
def test_overlapped_tiling(golden, height: Size, width: Size, ht: Size, wt: Size):
    """Fig. 2 and Fig. 3."""
    c = convolution((N, 8, height, width), 2, (3, 3))
    chosen = tiled(c, 4, ht, wt)
    assert chosen["Conv"].physical_shape == shape(N, 2, 2, 2, ht, wt, 4)
    assert chosen["Inp"].physical_shape == shape(N, 2, 2, 2, ht + 2, wt + 2)
    changed = check_same(c, chosen, SMALL)
    assert reads_once(changed)
    golden(show(lowered(changed, (N, P, Q))))


def nest(c: Computation) -> list[tuple[str, Expr]]:
    """Spatial loops from outside in."""
    actual = [(s.var.name, s.extent) for s, _ in walk(lowered(c, (N,)).body) if isinstance(s, For)]
    return actual[: len(c.axes)]


def relu(sizes: Sequence[Size]) -> Computation:
    axes = tuple(axis(name, size) for name, size in zip("nohw", sizes, strict=True))
    value = binary("max", buffer("Conv", *sizes)[tuple(a.var for a in axes)], 0.0)
    return Computation(buffer("ReLU", *sizes), axes, (), value)


@pytest.mark.parametrize("template", ["rows", "tiles"])
def test_convolution_and_relu_of_one_layout_have_one_nest(golden, template: str):
    """Fig. 6 and Fig. 7: with its producer's layout, the element-wise consumer gets the same loops."""
    c = convolution((N, 8, 8, 6), 2, (3, 3))
    if template == "rows":
        layout = Layout.of(c.output.shape).split(2, (None, 4)).reorder((0, 2, 4, 1, 3))
    else:
        layout = tiled(c, 4, 4, 3)["Conv"]
    chosen = {"Conv": layout, "ReLU": layout}
    after = relu(c.output.shape)
    both = [check_same(s, chosen, {N: 2}) for s in (c, after)]
    assert nest(both[0]) == nest(both[1])
    assert nest(both[1]) != nest(rewrite_stage(after, {"Conv": layout}))
    golden("\n".join(show(lowered(s, (N,))) for s in both))
