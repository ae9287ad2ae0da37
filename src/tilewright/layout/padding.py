"""Layout primitives that lengthen or shorten a dimension: pad and unpad (ALT, Section 4.1.2)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.errors import LayoutError
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import make_binary
from tilewright.expr.nodes import TRUE, Expr, Var, as_expr
from tilewright.expr.operations import conjunction
from tilewright.layout.primitive import (
    NO_ARRAYS,
    Array,
    Indices,
    Primitive,
    Shape,
    Size,
    as_int,
    as_size,
    check_dims,
    check_indices,
)


@dataclass(frozen=True, slots=True)
class Pad(Primitive):
    """Adds zeros before and after the elements of a dimension, to align rows or to make a size divisible.

    Equation: N_k becomes before + N_k + after; i_k becomes i_k + before.

    Args:
        dim: the dimension k.
        before: number of zeros before the elements.
        after: number of zeros after them.

    Legality: neither is negative.

        [N, 30]  pad(1, 0, 2)  [N, 32]      A[n, i] -> A[n, i]
    """

    dim: int
    before: Size
    after: Size
    name: ClassVar[str] = "pad"

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", as_size(self.before))
        object.__setattr__(self, "after", as_size(self.after))

    def invalid_arguments(self) -> Iterator[tuple[str, str]]:
        """Numbers of elements that may be negative."""
        yield from Primitive.invalid_arguments(self)
        yield from _negative_sizes(self.before, self.after)

    def shape(self, shape: Shape) -> Shape:
        """N_k grown by both."""
        self.check(shape)
        k = self.dim
        return (*shape[:k], shape[k] + self.before + self.after, *shape[k + 1 :])

    def check(self, shape: Shape) -> None:
        """Neither number is negative."""
        check_dims(shape, self.dim, 1, self.name)
        where = f"pad of dimension {self.dim}"
        for name, what in _negative_sizes(self.before, self.after):
            raise LayoutError(what.replace("at", f"{name} of at", 1), where=where, hint="cropping is `unpad`")

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """Shifted by `before`."""
        check_indices(indices, shape, self.name)
        return shift_index(indices, self.dim, as_expr(self.before))

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """Shifted back, with the condition that the index is inside of the data."""
        k, p = self.dim, indices[self.dim]
        above = make_binary("le", as_expr(self.before), p, bounds)
        below = make_binary("lt", p, shape[k] + self.before, bounds)
        return shift_index(indices, k, -as_expr(self.before)), conjunction(above, below)

    def inverse(self, shape: Shape) -> "Unpad":
        """The `Unpad` that removes the padding."""
        return Unpad(self.dim, self.before, self.after)

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """A larger copy."""
        ends = (as_int(self.before), as_int(self.after))
        return np.pad(array, [ends if d == self.dim else (0, 0) for d in range(array.ndim)])

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names stay."""
        return names


@dataclass(frozen=True, slots=True)
class Unpad(Primitive):
    """Drops elements at both ends of a dimension: the inverse of `pad`.

    Equation: N_k becomes N_k - before - after; i_k becomes i_k - before.

    Args:
        dim: the dimension k.
        before: number of elements dropped at the beginning.
        after: number of elements dropped at the end.

    Legality: neither is negative, and N_k is at least their sum. A dropped element must not be accessed.

        [N, 32]  unpad(1, 0, 2)  [N, 30]      A[n, i] -> A[n, i]
    """

    dim: int
    before: Size
    after: Size
    name: ClassVar[str] = "unpad"

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", as_size(self.before))
        object.__setattr__(self, "after", as_size(self.after))

    def invalid_arguments(self) -> Iterator[tuple[str, str]]:
        """Numbers of elements that may be negative."""
        yield from Primitive.invalid_arguments(self)
        yield from _negative_sizes(self.before, self.after)

    def shape(self, shape: Shape) -> Shape:
        """N_k less both."""
        self.check(shape)
        k = self.dim
        return (*shape[:k], shape[k] - self.before - self.after, *shape[k + 1 :])

    def check(self, shape: Shape) -> None:
        """Neither number is negative, and there are enough elements."""
        check_dims(shape, self.dim, 1, self.name)
        where = f"unpad of dimension {self.dim}"
        for name, what in _negative_sizes(self.before, self.after):
            raise LayoutError(what.replace("at", f"{name} of at", 1), where=where)
        dropped = as_expr(self.before) + self.after
        if not can_prove(dropped <= shape[self.dim]):
            raise LayoutError(f"expected to drop at most {shape[self.dim]} elements, got {dropped}", where=where)

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """Shifted back by `before`."""
        check_indices(indices, shape, self.name)
        return shift_index(indices, self.dim, -as_expr(self.before))

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """Shifted by `before`."""
        return shift_index(indices, self.dim, as_expr(self.before)), TRUE

    def inverse(self, shape: Shape) -> Pad:
        """The `Pad` that adds the padding again."""
        return Pad(self.dim, self.before, self.after)

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """A smaller copy."""
        first = as_int(self.before)
        return np.take(array, np.arange(first, array.shape[self.dim] - as_int(self.after)), axis=self.dim)

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names stay."""
        return names


def _negative_sizes(before: Size, after: Size) -> Iterator[tuple[str, str]]:
    """The numbers that are not provably >= 0, with messages."""
    for name, n in (("before", before), ("after", after)):
        if not can_prove(as_expr(n) >= 0):
            yield name, f"expected at least 0, got {n}"


def shift_index(indices: Indices, dim: int, by: Expr) -> Indices:
    """The indices with one of them shifted."""
    return (*indices[:dim], indices[dim] + by, *indices[dim + 1 :])
