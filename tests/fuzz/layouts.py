"""Random layouts: for parameters before the loops are made, and for internal buffers as an argument of primitives."""

from collections.abc import Sequence
from random import Random

from tilewright.errors import LayoutError
from tilewright.expr.nodes import Const, Expr
from tilewright.layout.layout import Layout

FACTORS = (2, 3, 4, 8, 16)


def random_layout(rng: Random, shape: Sequence[Expr], steps: int = 3) -> Layout:
    """A few random primitives on a shape, those that are not legal left out."""
    layout = Layout.of(shape)
    for _ in range(rng.randint(1, steps)):
        if not layout.physical_shape:
            break
        try:
            layout = _longer(rng, layout)
        except LayoutError:
            continue
    return layout


def _longer(rng: Random, layout: Layout) -> Layout:
    shape = layout.physical_shape
    dim = rng.randrange(len(shape))
    factor = rng.choice(FACTORS)
    match rng.choice(("tile", "tile", "reorder", "reorder", "fuse", "split", "pad", "unfold")):
        case "tile":
            inner = len(shape)
            tiled = layout.pad_to(dim, factor).split(dim, (None, factor))
            order = [k for k in range(inner + 1) if k != dim + 1]
            return tiled.reorder((*order, dim + 1)) if rng.random() < 0.7 else tiled
        case "reorder":
            return layout.reorder(rng.sample(range(len(shape)), len(shape)))
        case "fuse":
            return layout.fuse(dim, 2)
        case "split":
            size = shape[dim]
            divisors = [f for f in (2, 3, 4, 5) if isinstance(size, Const) and int(size.value) % f == 0]
            return layout.split(dim, (None, rng.choice(divisors))) if divisors else layout
        case "pad":
            return layout.pad(dim, rng.randint(0, 2), rng.randint(0, 3))
        case _:
            tile = rng.randint(2, 5)
            return layout.unfold(dim, tile, rng.randint(1, tile))
