"""Basic layout primitives, which store every element in exactly one place: split, reorder, fuse.

Table 1 of ALT, Section 4.1.1; dimensions are counted from 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.errors import LayoutError
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.simplify import simplify
from tilewright.expr.nodes import TRUE, Expr, Var, as_expr, const
from tilewright.layout.primitive import (
    NO_ARRAYS,
    Array,
    Indices,
    Primitive,
    Shape,
    Size,
    as_int,
    as_shape,
    as_sizes,
    check_at_least,
    check_dims,
    check_indices,
    element_count,
    floordiv,
    is_provably_equal,
    mod,
    show_argument,
    show_shape,
)


@dataclass(frozen=True, slots=True)
class Split(Primitive):
    """Splits a dimension into several, the last of them the fastest.

    Equation: N_k becomes F_1, ..., F_m; i_k becomes i_k // (F_2*...*F_m), ..., (i_k // F_m) % F_{m-1}, i_k % F_m.

    Args:
        dim: the dimension k.
        factors: F_1 .. F_m; expressions where they depend on symbols.

    Legality: the product of the factors is N_k; a factor is 0 only where there is no element.

        [N, 64]  split(1, (4, 16))  [N, 4, 16]      A[n, c] -> A[n, c // 16, c % 16]
    """

    dim: int
    factors: tuple[Size, ...]
    name: ClassVar[str] = "split"
    minimums: ClassVar[Mapping[str, int]] = {"dim": 0, "factors": 1}

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", as_sizes(self.factors, "split, factors"))

    def invalid_arguments(self) -> Iterator[tuple[str, str]]:
        """Factors below 1, or none."""
        yield from Primitive.invalid_arguments(self)
        if not self.factors:
            yield "factors", "expected at least one factor, got none"

    def shape(self, shape: Shape) -> Shape:
        """N_k replaced by the factors."""
        self.check(shape)
        return (*shape[: self.dim], *as_shape(self.factors), *shape[self.dim + 1 :])

    def check(self, shape: Shape) -> None:
        """The product of the factors is the size of the dimension."""
        check_dims(shape, self.dim, 1, self.name)
        where = f"split of dimension {self.dim}"
        if not self.factors:
            raise LayoutError("expected at least one factor, got none", where=where)
        product, size = element_count(self.factors), shape[self.dim]
        for f in self.factors:
            check_at_least(f, 0 if size is const(0) else 1, "factors", where)
        if not is_provably_equal(product, size):
            raise LayoutError(
                f"expected factors whose product is {size}, got {show_argument(self.factors)} with product {product}",
                where=where,
                hint="pad the dimension to a multiple first, or choose factors that divide it",
            )

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """The digits of i_k."""
        check_indices(indices, shape, self.name)
        k = self.dim
        return (*indices[:k], *delinearize(indices[k], self.factors, bounds), *indices[k + 1 :])

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """The mixed-radix number of the digits."""
        k, m = self.dim, len(self.factors)
        return (*indices[:k], linearize(indices[k : k + m], self.factors, bounds), *indices[k + m :]), TRUE

    def inverse(self, shape: Shape) -> "Fuse":
        """The `Fuse` of the parts."""
        return Fuse(self.dim, len(self.factors))

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """The same elements under another shape."""
        factors = tuple(as_int(f) for f in self.factors)
        return array.reshape((*array.shape[: self.dim], *factors, *array.shape[self.dim + 1 :]))

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the dimensions afterwards: h becomes h_o and h_i, or h_0, h_1, ... where it has more parts."""
        axis, m = names[self.dim], len(self.factors)
        parts = (axis,) if m == 1 else (f"{axis}_o", f"{axis}_i") if m == 2 else tuple(f"{axis}_{j}" for j in range(m))
        return (*names[: self.dim], *parts, *names[self.dim + 1 :])


@dataclass(frozen=True, slots=True)
class Reorder(Primitive):
    """Permutes dimensions.

    Equation: N'_j = N_{order(j)}, i'_j = i_{order(j)}.

    Legality: `order` is a permutation of all dimensions.

        [N, C, H]  reorder((0, 2, 1))  [N, H, C]      A[n, c, h] -> A[n, h, c]
    """

    order: tuple[int, ...]
    name: ClassVar[str] = "reorder"
    minimums: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", tuple(self.order))

    def invalid_arguments(self) -> Iterator[tuple[str, str]]:
        """An order that is not a permutation."""
        if sorted(self.order) != list(range(len(self.order))):
            yield "order", f"expected a permutation of 0..{len(self.order) - 1}, got {show_argument(self.order)}"

    def shape(self, shape: Shape) -> Shape:
        """The sizes in the new order."""
        self.check(shape)
        return tuple(shape[k] for k in self.order)

    def check(self, shape: Shape) -> None:
        """The order is a permutation of all dimensions."""
        if sorted(self.order) != list(range(len(shape))):
            raise LayoutError(
                f"expected a permutation of 0..{len(shape) - 1}, got {show_argument(self.order)}",
                where=self.name,
                hint=f"the shape here is {show_shape(shape)}",
            )

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """The indices in the new order."""
        check_indices(indices, shape, self.name)
        return tuple(indices[k] for k in self.order)

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """The indices in the old order."""
        return tuple(indices[k] for k in inverse_permutation(self.order)), TRUE

    def inverse(self, shape: Shape) -> "Reorder":
        """The inverse permutation."""
        return Reorder(inverse_permutation(self.order))

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """The transposed array."""
        return np.ascontiguousarray(array.transpose(self.order))

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the dimensions afterwards, in the new order."""
        return tuple(names[k] for k in self.order)


@dataclass(frozen=True, slots=True)
class Fuse(Primitive):
    """Fuses adjacent dimensions into one.

    Equation: N_k, ..., N_{k+m} become their product; their indices become i_k*N_{k+1}*...*N_{k+m} + ... + i_{k+m}.

    Args:
        dim: the first dimension k.
        count: number of dimensions, at least 1.

    Legality: the dimensions exist.

        [N, H, W]  fuse(1, 2)  [N, H * W]      A[n, h, w] -> A[n, h * W + w]
    """

    dim: int
    count: int
    name: ClassVar[str] = "fuse"
    minimums: ClassVar[Mapping[str, int]] = {"dim": 0, "count": 1}

    def shape(self, shape: Shape) -> Shape:
        """The sizes replaced by their product."""
        self.check(shape)
        k, end = self.dim, self.dim + self.count
        return (*shape[:k], element_count(shape[k:end]), *shape[end:])

    def check(self, shape: Shape) -> None:
        """There is at least one dimension, and all of them exist."""
        check_at_least(self.count, 1, "a count", f"fuse at dimension {self.dim}")
        check_dims(shape, self.dim, self.count, self.name)

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """The mixed-radix number of the indices."""
        check_indices(indices, shape, self.name)
        k, end = self.dim, self.dim + self.count
        return (*indices[:k], linearize(indices[k:end], shape[k:end], bounds), *indices[end:])

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """The digits of the fused index."""
        k, end = self.dim, self.dim + self.count
        return (*indices[:k], *delinearize(indices[k], shape[k:end], bounds), *indices[k + 1 :]), TRUE

    def inverse(self, shape: Shape) -> Split:
        """The `Split` into the fused dimensions."""
        return Split(self.dim, shape[self.dim : self.dim + self.count])

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """The same elements under another shape."""
        k, end = self.dim, self.dim + self.count
        return array.reshape((*array.shape[:k], int(np.prod(array.shape[k:end])), *array.shape[end:]))

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the dimensions afterwards: h and w become h_w."""
        k, end = self.dim, self.dim + self.count
        return (*names[:k], "_".join(names[k:end]), *names[end:])


def delinearize(index: Expr, sizes: Sequence[Size], bounds: Bounds) -> Indices:
    """The digits of a number below the product of `sizes` in the mixed radix of `sizes`; zeros where a size is 0."""
    if any(as_expr(n) is const(0) for n in sizes):
        return (const(0),) * len(sizes)
    result: list[Expr] = []
    weight: Expr = const(1)
    for j in range(len(sizes) - 1, -1, -1):
        quotient = floordiv(index, weight, bounds)
        result.append(mod(quotient, sizes[j], bounds) if j else quotient)
        weight = weight * sizes[j]
    return tuple(reversed(result))


def linearize(indices: Sequence[Expr], sizes: Sequence[Size], bounds: Bounds) -> Expr:
    """The number with the digits `indices` in the mixed radix of `sizes`."""
    result: Expr = const(0)
    for index, n in zip(indices, sizes, strict=True):
        result = result * n + index
    return simplify(result, bounds)


def inverse_permutation(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `order`."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))
