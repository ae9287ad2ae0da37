"""Hypothesis strategies for shapes, layouts and accesses."""

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Const, Expr, Symbol, Var, as_expr, const
from tilewright.layout.layout import Layout
from tilewright.layout.primitives import Fuse, Pad, Primitive, Reorder, Split, StoreAt, Unfold

N, M = Symbol("N", 1, 9), Symbol("M", 2, 7)
SIZES = tuple({N: n, M: m} for n, m in ((1, 2), (5, 3), (8, 7)))
"""Values of the symbols: the smallest, primes, a multiple of small factors."""

MOST_ELEMENTS = 4000


def numbers(shape: tuple[Expr, ...], sizes: Mapping[Var, int]) -> tuple[int, ...]:
    """A shape in numbers."""
    env = Environment({v: np.int64(n) for v, n in sizes.items()}, {})
    return tuple(int(evaluate_expr(n, env)) for n in shape)


def extents(symbolic: bool = True) -> st.SearchStrategy[Expr]:
    """Sizes of dimensions."""
    plain = st.integers(1, 12).map(as_expr)
    return st.one_of(plain, st.sampled_from((N, M, N * 4, M + 3))) if symbolic else plain


def shapes(symbolic: bool = True, most: int = 3) -> st.SearchStrategy[tuple[Expr, ...]]:
    """Shapes of one to `most` dimensions."""
    return st.lists(extents(symbolic), min_size=1, max_size=most).map(tuple)


@st.composite
def primitives(draw: st.DrawFn, shape: tuple[Expr, ...]) -> list[Primitive]:
    """One primitive, or two that only fit together (pad and split), legal on `shape`."""
    dim = draw(st.integers(0, len(shape) - 1))
    size = shape[dim]
    kinds = ["reorder", "pad", "split"] + (["fuse"] if len(shape) > 1 else []) + (["unfold"] if len(shape) < 5 else [])
    match draw(st.sampled_from(kinds)):
        case "reorder":
            return [Reorder(tuple(draw(st.permutations(range(len(shape))))))]
        case "pad":
            return [Pad(dim, draw(st.integers(0, 3)), draw(st.integers(0, 3)))]
        case "fuse":
            first = draw(st.integers(0, len(shape) - 2))
            return [Fuse(first, draw(st.integers(1, len(shape) - first)))]
        case "unfold":
            stride = draw(st.integers(1, 4))
            least = size.value if isinstance(size, Const) else 1
            return [Unfold(dim, draw(st.integers(stride, max(stride, least + stride - 1))), stride)]
        case _:
            return draw(splits(dim, size))


@st.composite
def splits(draw: st.DrawFn, dim: int, size: Expr) -> list[Primitive]:
    """A split into two or three factors, after padding where the size may not be divisible."""
    inner = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    product = int(np.prod(inner))
    padded = Layout.of((size,)).pad_to(0, product)
    before = [Pad(dim, p.before, p.after) for p in padded.primitives if isinstance(p, Pad)]
    outer = padded.physical_shape[0] // product
    return [*before, Split(dim, (outer, *inner))]


@st.composite
def layouts(
    draw: st.DrawFn, shape: tuple[Expr, ...], most: int = 4, basic: bool = False, fused_tiles: bool = True
) -> Layout:
    """A layout of up to `most` random primitives.

    Args:
        draw: Hypothesis.
        shape: the logical shape.
        most: how many primitives are tried.
        basic: whether there are basic ones only.
        fused_tiles: whether something may be fused once there are overlapping tiles.
    """
    layout = Layout.of(shape)
    for _ in range(draw(st.integers(0, most))):
        steps = draw(primitives(layout.physical_shape))
        if basic and any(isinstance(p, Pad | Unfold) for p in steps):
            continue
        if not fused_tiles and isinstance(steps[0], Fuse) and any(isinstance(p, Unfold) for p in layout.primitives):
            continue
        candidate = layout.then(*steps)
        if (
            len(candidate.physical_shape) <= 7
            and np.prod(numbers(candidate.physical_shape, SIZES[-1])) <= MOST_ELEMENTS
        ):
            layout = candidate
    return layout


@st.composite
def attaching(draw: st.DrawFn, shape: tuple[Expr, ...]) -> Layout:
    """A layout that carries a second tensor "U"."""
    layout = draw(layouts(shape, 2))
    inner = layout.physical_shape
    dim = draw(st.integers(0, len(inner) - 1))
    layout = layout.then(StoreAt("U", (*inner[:dim], *inner[dim + 1 :]), dim))
    rest = draw(layouts(layout.physical_shape, 2))
    return layout.then(*rest.primitives)


def access(shape: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Bounds]:
    """One variable per dimension, 0 where that has one element, and the ranges of the variables."""
    bounds = Bounds()
    for k, n in enumerate(shape):
        bounds = bounds.with_loop(Var(f"i{k}"), n)
    return tuple(const(0) if n is const(1) else Var(f"i{k}") for k, n in enumerate(shape)), bounds


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """An array whose elements all differ, none of them 0."""
    return np.arange(1, int(np.prod(shape)) + 1, dtype=np.int64).reshape(shape)


def values(indices: tuple[Expr, ...], variables: tuple[Expr, ...], grid: tuple[int, ...], sizes: Mapping[Var, int]):
    """Indices over every point of a grid: `variables` run over it."""
    symbols = {v: np.int64(n) for v, n in sizes.items()}
    for d, v in ((d, v) for d, v in enumerate(variables) if isinstance(v, Var)):
        symbols[v] = np.arange(grid[d]).reshape([-1 if d == k else 1 for k in range(len(grid))])
    return tuple(np.broadcast_to(evaluate_expr(i, Environment(symbols, {})), grid) for i in indices)
