"""Layout primitives that store one tensor inside another: store_at and its inverse, decouple_at (ALT, Section
4.1.2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.errors import LayoutError
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.simplify import make_binary
from tilewright.expr.nodes import TRUE, Expr, Var
from tilewright.layout.primitive import (
    NO_ARRAYS,
    Array,
    Indices,
    Primitive,
    Shape,
    Size,
    as_shape,
    as_sizes,
    check_at_least,
    check_dims,
    check_indices,
    is_provably_equal,
    show_shape,
)


@dataclass(frozen=True, slots=True)
class StoreAt(Primitive):
    """Attaches another tensor U as one more slice: every element of U is stored at the end of a line of T along `dim`.

    Equation: N_k becomes N_k + 1; T's indices stay, and U[j] is stored at T[j_0, ..., j_{k-1}, N_k, j_k, ...].

    Args:
        other: the name of U's buffer.
        other_shape: U's shape.
        dim: the dimension k along which T's lines run.

    Legality: U's shape is T's without dimension k, and both have one element type.

        W: [K, N], bias: [N]  store_at(bias, (N,), 0)  W: [K + 1, N]      bias[j] -> W[K, j]
    """

    other: str
    other_shape: tuple[Size, ...]
    dim: int
    name: ClassVar[str] = "store_at"
    minimums: ClassVar[Mapping[str, int]] = {"dim": 0, "other_shape": 0}

    def __post_init__(self) -> None:
        object.__setattr__(self, "other_shape", as_sizes(self.other_shape, self.name))

    def shape(self, shape: Shape) -> Shape:
        """N_k grown by one."""
        self.check(shape)
        k = self.dim
        return (*shape[:k], shape[k] + 1, *shape[k + 1 :])

    def check(self, shape: Shape) -> None:
        """U's shape is T's without the dimension."""
        check_dims(shape, self.dim, 1, self.name)
        expected = (*shape[: self.dim], *shape[self.dim + 1 :])
        actual = as_shape(self.other_shape)
        if len(actual) != len(expected) or not all(
            is_provably_equal(a, b) for a, b in zip(actual, expected, strict=True)
        ):
            raise LayoutError(
                f"expected shape {show_shape(expected)} of {self.other!r}, got {show_shape(actual)}",
                where=f"store_at along dimension {self.dim}",
                hint="the attached tensor has the shape of the other without that dimension",
            )

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """T's own indices."""
        check_indices(indices, shape, self.name)
        return indices

    def attached_indices(self, indices: Indices, shape: Shape) -> Indices:
        """Where an element of U is stored."""
        check_indices(indices, as_shape(self.other_shape), f"{self.name} of {self.other!r}")
        return (*indices[: self.dim], shape[self.dim], *indices[self.dim :])

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """T's own indices, with the condition that they are outside of U's slice."""
        return indices, make_binary("lt", indices[self.dim], shape[self.dim], bounds)

    def inverse(self, shape: Shape) -> "DecoupleAt":
        """The `DecoupleAt` that separates both tensors again."""
        return DecoupleAt(self.other, self.other_shape, self.dim)

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """Both arrays in one."""
        if self.other not in others:
            raise LayoutError(f"expected the data of {self.other!r}, got none", where=self.name)
        return np.concatenate([array, np.expand_dims(others[self.other], self.dim)], axis=self.dim)

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names stay."""
        return names


@dataclass(frozen=True, slots=True)
class DecoupleAt(Primitive):
    """Detaches the tensor that `store_at` attached.

    Equation: N_k becomes N_k - 1; indices stay.

    Args:
        other: the name of U's buffer.
        other_shape: U's shape.
        dim: the dimension k along which T's lines run.

    Legality: U's shape is the shape without dimension k, and dimension k has a slice to detach.

        W: [K + 1, N]  decouple_at(bias, (N,), 0)  W: [K, N]
    """

    other: str
    other_shape: tuple[Size, ...]
    dim: int
    name: ClassVar[str] = "decouple_at"
    minimums: ClassVar[Mapping[str, int]] = {"dim": 0, "other_shape": 0}

    def __post_init__(self) -> None:
        object.__setattr__(self, "other_shape", as_sizes(self.other_shape, self.name))

    def shape(self, shape: Shape) -> Shape:
        """N_k less one."""
        StoreAt(self.other, self.other_shape, self.dim).check(shape)
        k = self.dim
        check_at_least(shape[k], 1, "a dimension", f"decouple_at along dimension {k}")
        return (*shape[:k], shape[k] - 1, *shape[k + 1 :])

    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """The same indices."""
        check_indices(indices, shape, self.name)
        return indices

    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """The same indices."""
        return indices, TRUE

    def inverse(self, shape: Shape) -> StoreAt:
        """The `StoreAt` that joins both tensors again."""
        return StoreAt(self.other, self.other_shape, self.dim)

    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """T alone."""
        return np.take(array, np.arange(array.shape[self.dim] - 1), axis=self.dim)

    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names stay."""
        return names
