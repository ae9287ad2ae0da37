"""Layout primitives for overlapped tiling: unfold and its inverse, fold (ALT, Section 4.1.2)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.errors import LayoutError
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.polynomial import divide, expression, polynomial
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import make_binary
from tilewright.expr.nodes import TRUE, Expr, Var, as_expr
from tilewright.expr.operations import ceildiv
from tilewright.layout.primitive import (
    NO_ARRAYS,
    Array,
    Indices,
    Primitive,
    Shape,
    Size,
    as_int,
    as_size,
    check_at_least,
    check_dims,
    check_indices,
    floordiv,
    is_provably_equal,
)
from tilewright.layout.sliding_window import find_window_tile


@dataclass(frozen=True, slots=True)
class Unfold(Primitive):
    """Splits a dimension into tiles, which overlap where `stride < tile`.

    Equation: D becomes T = ceil((D - B) / S) + 1 tiles of size B; element x is in tile t at offset x - S*t. A sliding
    window V*i + r, 0 <= r < M, is entirely in tile i // (floor((B - M) / V) + 1) (ALT, Eq. 1) where that is so, see
    `sliding_window.py`; every other access goes to tile min(x // S, T - 1). A last tile that ends past the data is
    filled with zeros.

    Args:
        dim: the dimension, of size D.
        tile: the size B of a tile.
        stride: the distance S between the beginnings of two tiles.

    Legality: 1 <= S <= B, so that no element is lost; D - B > -S, so that there is a tile.

        [5]  unfold(0, 3, 2)  [2, 3]      {1, 2, 3, 4, 5} -> {{1, 2, 3}, {3, 4, 5}}
    """

    dim: int
    tile: Size
    stride: Size
    name: ClassVar[str] = "unfold"
    minimums: ClassVar[Mapping[str, int]] = {"dim": 0, "tile": 1, "stride": 1}

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", as_size(self.tile))
        object.__setattr__(self, "stride", as_size(self.stride))

    def invalid_arguments(self) -> Iterator[tuple[str, str]]:
        """Numbers that are too small, and strides that leave gaps between tiles."""
        yield from Primitive.invalid_arguments(self)
        yield from _gap_problems(self.tile, self.stride)

    def shape(self, shape: Shape) -> Shape:
        """The shape after unfolding: dimension `dim` becomes two, tiles and elements per tile."""
        self.check(shape)
        k = self.dim
        return (*shape[:k], tile_count(shape[k], self.tile, self.stride), as_expr(self.tile), *shape[k + 1 :])

    def check(self, shape: Shape) -> None:
        """Tiles leave no gaps, and there is at least one."""
        check_dims(shape, self.dim, 1, self.name)
        where = f"unfold of dimension {self.dim}"
        check_at_least(self.stride, 1, "a stride", where)
        tile, stride, size = as_expr(self.tile), as_expr(self.stride), shape[self.dim]
        if not can_prove(stride <= tile):
            raise LayoutError(
                f"expected a stride of at most the tile size {tile}, got {stride}", where=where,
                hint="larger strides lose elements: make the tile as large as the stride",
            )  # fmt: skip
        if not can_prove(tile < size + stride):
            raise LayoutError(
                f"expected a tile smaller than size + stride = {size + stride}, got {tile}", where=where,
                hint="choose a smaller tile, or pad the dimension first",
            )  # fmt: skip

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """The tile and the offset in it."""
        check_indices(indices, shape, self.name)
        k, x = self.dim, indices[self.dim]
        count = tile_count(shape[k], self.tile, self.stride)
        t = find_window_tile(x, as_expr(self.tile), as_expr(self.stride), count, bounds, window)
        if t is None:
            t = last_tile(x, count, self.stride, bounds)
        return (*indices[:k], t, x - t * self.stride, *indices[k + 1 :])

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """S*t + offset, with the condition that it is inside of the data."""
        k = self.dim
        x = indices[k] * self.stride + indices[k + 1]
        return (*indices[:k], x, *indices[k + 2 :]), make_binary("lt", x, shape[k], bounds)

    def inverse(self, shape: Shape) -> "Fold":
        """The `Fold` of the overlapping tiles."""
        return Fold(self.dim, self.tile, self.stride, shape[self.dim])

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """The tiles, copied."""
        k, tile, stride = self.dim, as_int(self.tile), as_int(self.stride)
        count = -(-(array.shape[k] - tile) // stride) + 1
        missing = (count - 1) * stride + tile - array.shape[k]
        filled = np.pad(array, [(0, missing if d == k else 0) for d in range(array.ndim)])
        return np.take(filled, np.arange(count)[:, None] * stride + np.arange(tile)[None, :], axis=k)

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the dimensions afterwards: h becomes h_o and h_i."""
        axis = names[self.dim]
        return (*names[: self.dim], f"{axis}_o", f"{axis}_i", *names[self.dim + 1 :])


@dataclass(frozen=True, slots=True)
class Fold(Primitive):
    """Joins overlapping tiles to one dimension; of an element in several tiles the last tile's copy is kept.

    Equation: T, B become D; the element at tile t and offset b is element S*t + b.

    Args:
        dim: the dimension of the tiles; the next one is that of their elements.
        tile: the size B of a tile.
        stride: the distance S between the beginnings of two tiles.
        size: the size D of the result.

    Legality: there are ceil((D - B) / S) + 1 tiles of size B.

        [2, 3]  fold(0, 3, 2, 5)  [5]      {{1, 2, 3}, {3, 4, 5}} -> {1, 2, 3, 4, 5}
    """

    dim: int
    tile: Size
    stride: Size
    size: Size
    name: ClassVar[str] = "fold"
    minimums: ClassVar[Mapping[str, int]] = {"dim": 0, "tile": 1, "stride": 1, "size": 0}

    def __post_init__(self) -> None:
        for field in ("tile", "stride", "size"):
            object.__setattr__(self, field, as_size(getattr(self, field)))

    def invalid_arguments(self) -> Iterator[tuple[str, str]]:
        """Numbers that are too small, and strides that leave gaps between tiles."""
        yield from Primitive.invalid_arguments(self)
        yield from _gap_problems(self.tile, self.stride)

    def shape(self, shape: Shape) -> Shape:
        """The shape after folding: dimensions `dim` (tiles) and `dim` + 1 (elements per tile) become one of `size`."""
        self.check(shape)
        return (*shape[: self.dim], as_expr(self.size), *shape[self.dim + 2 :])

    def check(self, shape: Shape) -> None:
        """The tiles are those that unfold makes of `size` elements."""
        check_dims(shape, self.dim, 2, self.name)
        k = self.dim
        wanted = Unfold(k, self.tile, self.stride).shape((*shape[:k], as_expr(self.size)))[k : k + 2]
        for d, (n, m) in enumerate(zip(wanted, shape[k : k + 2], strict=True)):
            if not is_provably_equal(n, m):
                raise LayoutError(f"expected size {n} of dimension {k + d}, got {m}", where=f"fold of dimension {k}")

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """S*t + offset."""
        check_indices(indices, shape, self.name)
        k = self.dim
        return (*indices[:k], indices[k] * self.stride + indices[k + 1], *indices[k + 2 :])

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """The last tile that holds the element, and the offset in it."""
        k, x = self.dim, indices[self.dim]
        t = last_tile(x, shape[k], self.stride, bounds)
        return (*indices[:k], t, x - t * self.stride, *indices[k + 1 :]), TRUE

    def inverse(self, shape: Shape) -> Unfold:
        """The `Unfold` into overlapping tiles."""
        return Unfold(self.dim, self.tile, self.stride)

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """The elements, each from the last tile that holds it."""
        k, stride = self.dim, as_int(self.stride)
        x = np.arange(as_int(self.size))
        t = np.minimum(x // stride, array.shape[k] - 1)
        flat = array.reshape((*array.shape[:k], array.shape[k] * array.shape[k + 1], *array.shape[k + 2 :]))
        return np.take(flat, t * array.shape[k + 1] + x - t * stride, axis=k)

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """h_o and h_i become h_o_h_i."""
        k = self.dim
        return (*names[:k], f"{names[k]}_{names[k + 1]}", *names[k + 2 :])


def _gap_problems(tile: Size, stride: Size) -> Iterator[tuple[str, str]]:
    """A stride that is not provably at most the tile, with a message."""
    if not can_prove(as_expr(stride) <= tile):
        yield "stride", f"expected at most the tile size {tile}, got {stride}"


def tile_count(size: Size, tile: Size, stride: Size) -> Expr:
    """ceil((size - tile) / stride) + 1, without rounding where the division is exact."""
    room, step = as_expr(size) - tile, as_expr(stride)
    quotient, rest = divide(polynomial(room), polynomial(step))
    return (ceildiv(room, step) if rest else expression(quotient)) + 1


def last_tile(x: Expr, count: Expr, stride: Size, bounds: Bounds) -> Expr:
    """The last tile that holds element x: tiles that begin at or before it, at most `count`."""
    return make_binary("min", floordiv(x, stride, bounds), count - 1, bounds)
