"""Layouts: how a tensor is stored, as its logical shape and the primitives that lead to the physical one.

Layout.of((N, 64, H, W)).split(1, (4, 16)).reorder((0, 1, 3, 4, 2)) [N, 64, H, W] -> split(1, (4, 16)) -> reorder((0, 1,
3, 4, 2)) -> [N, 4, H, W, 16]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from tilewright.errors import LayoutError
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, as_expr
from tilewright.expr.operations import ceildiv, conjunction
from tilewright.expr.traversal import free_vars
from tilewright.layout import layout_json
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
    element_count,
    is_provably_equal,
    show_argument,
    show_shape,
)
from tilewright.layout.primitives import DecoupleAt, Fold, Fuse, Pad, Reorder, Split, StoreAt, Unfold, Unpad


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor of a logical shape is stored.

    Attributes:
        shape: the logical shape.
        primitives: applied to the logical shape, in order.

    Raises:
        LayoutError: a size is invalid, or a primitive is not legal on the shape that it is applied to.
    """

    shape: Shape
    primitives: tuple[Primitive, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", as_shape(self.shape))
        for k, n in enumerate(self.shape):
            check_at_least(n, 0, "a size", f"dimension {k}")
        object.__setattr__(self, "primitives", tuple(self.primitives))
        _shapes(self)

    @classmethod
    def of(cls, shape: Sequence[Size]) -> "Layout":
        """The layout of a row-major tensor."""
        return cls(as_shape(shape))

    # Properties

    @property
    def physical_shape(self) -> Shape:
        """The shape of the stored tensor."""
        return _shapes(self)[-1]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape before each primitive, and the physical shape."""
        return _shapes(self)

    @property
    def is_plain(self) -> bool:
        """Whether there are no primitives: the tensor is stored row-major."""
        return not self.primitives

    @property
    def expands(self) -> bool:
        """Whether elements are repeated, added or dropped: advanced primitives that are not trivial (Section 4.2)."""
        return any(p.expands(shape) for p, shape in zip(self.primitives, self.shapes, strict=False))

    @property
    def attached(self) -> tuple[StoreAt, ...]:
        """The tensors that are stored inside this one."""
        return tuple(p for p in self.primitives if isinstance(p, StoreAt))

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The symbols of all its sizes, sorted by name."""
        symbols = frozenset[Var]().union(*(free_vars(n) for n in self.shape), *(p.symbols for p in self.primitives))
        return tuple(sorted(symbols, key=lambda v: v.name))

    def forward(
        self, indices: Sequence[Expr], bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """The physical indices of the element at logical `indices`; of several places, one.

        Args:
            indices: one per logical dimension; inside the shape wherever the access happens.
            bounds: of the variables of `indices`.
            window: variables that move inside a sliding window, see `Primitive.forward`.
        """
        place = tuple(indices)
        check_indices(place, self.shape, f"access to a tensor of shape {show_shape(self.shape)}")
        for p, shape in zip(self.primitives, self.shapes, strict=False):
            place = p.forward(place, shape, bounds, window)
        return place

    def backward(self, indices: Sequence[Expr], bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """The logical indices of the element at physical `indices`, and the condition under which there is one (the
        place is neither padding nor part of another tensor)."""
        place = tuple(indices)
        check_indices(place, self.physical_shape, f"access to a buffer of shape {show_shape(self.physical_shape)}")
        conditions: list[Expr] = []
        for p, shape in reversed(tuple(zip(self.primitives, self.shapes, strict=False))):
            place, holds = p.backward(place, shape, bounds)
            conditions.append(holds)
        return place, conjunction(*conditions)

    def attached_forward(
        self, other: str, indices: Sequence[Expr], bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """The physical indices of the element at `indices` of the attached tensor `other`.

        Raises:
            LayoutError: no tensor of that name is attached.
        """
        for position, p in enumerate(self.primitives):
            if isinstance(p, StoreAt) and p.other == other:
                place = p.attached_indices(tuple(indices), self.shapes[position])
                rest = Layout(self.shapes[position + 1], self.primitives[position + 1 :])
                return rest.forward(place, bounds, window)
        raise LayoutError(f"no tensor {other!r} is stored here", where=str(self))

    def rename(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of the physical dimensions, derived from those of the logical ones: h becomes h_o, h_i."""
        physical = tuple(names)
        for p in self.primitives:
            physical = p.rename(physical)
        return physical

    # Derived layouts

    def then(self, *primitives: Primitive) -> "Layout":
        """The layout with more primitives applied."""
        return Layout(self.shape, (*self.primitives, *primitives))

    def inverse(self) -> "Layout":
        """The layout from the physical shape back to the logical one; added elements are dropped."""
        undone = [p.inverse(shape) for p, shape in zip(self.primitives, self.shapes, strict=False)]
        return Layout(self.physical_shape, tuple(reversed(undone)))

    def at(self, sizes: Mapping[Var, int] | Mapping[Var, Expr]) -> "Layout":
        """The layout with symbols replaced by sizes."""
        substitution = {v: as_expr(n) for v, n in sizes.items()}
        return Layout(
            tuple(substitute(n, substitution) for n in self.shape), tuple(p.at(substitution) for p in self.primitives)
        )

    def split(self, dim: int, factors: Sequence[Size | None]) -> "Layout":
        """Splits a dimension; a factor None stands for the dimension's size over the product of the other factors."""
        check_dims(self.physical_shape, dim, 1, "split")
        if isinstance(factors, str) or not isinstance(factors, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            hint = f"write ({factors},) or (None, {factors})"
            raise LayoutError(f"expected a sequence of factors, got {factors!r}", where="split", hint=hint)
        stated = as_sizes([f for f in factors if f is not None], "split, factors")
        if None in factors and any(is_provably_equal(f, 0) for f in stated):
            raise LayoutError(f"expected factors of at least 1 beside None, got {show_argument(stated)}", where="split")
        size, product = self.physical_shape[dim], element_count(stated)
        return self.then(Split(dim, tuple(size // product if f is None else f for f in factors)))

    def reorder(self, order: Sequence[int]) -> "Layout":
        """Permutes the dimensions."""
        return self.then(Reorder(_integers(order, "reorder")))

    def fuse(self, dim: int, count: int = 2) -> "Layout":
        """Fuses `count` dimensions from `dim` on."""
        return self.then(Fuse(dim, count))

    def unfold(self, dim: int, tile: Size, stride: Size) -> "Layout":
        """Splits a dimension into overlapping tiles."""
        return self.then(Unfold(dim, tile, stride))

    def fold(self, dim: int, tile: Size, stride: Size, size: Size) -> "Layout":
        """Undoes `unfold`."""
        return self.then(Fold(dim, tile, stride, size))

    def pad(self, dim: int, before: Size = 0, after: Size = 0) -> "Layout":
        """Pads a dimension with zeros."""
        return self.then(Pad(dim, before, after))

    def pad_to(self, dim: int, multiple: int) -> "Layout":
        """Pads a dimension at its end to the next multiple; unchanged where its size is provably a multiple."""
        check_dims(self.physical_shape, dim, 1, "pad")
        size = self.physical_shape[dim]
        missing = ceildiv(size, multiple) * multiple - size
        return self if missing is as_expr(0) else self.pad(dim, 0, missing)

    def unpad(self, dim: int, before: Size = 0, after: Size = 0) -> "Layout":
        """Undoes `pad`."""
        return self.then(Unpad(dim, before, after))

    def store_at(self, other: str, other_shape: Sequence[Size], dim: int) -> "Layout":
        """Attaches another tensor at the ends of the lines of a dimension."""
        return self.then(StoreAt(other, as_sizes(other_shape, "store_at"), dim))

    def decouple_at(self, other: str, other_shape: Sequence[Size], dim: int) -> "Layout":
        """Undoes `store_at`."""
        return self.then(DecoupleAt(other, as_sizes(other_shape, "decouple_at"), dim))

    # Data

    def transform(
        self, array: Array, others: Mapping[str, Array] = NO_ARRAYS, sizes: Mapping[Var, int] | None = None
    ) -> Array:
        """An array of the logical shape in its physical form.

        Args:
            array: its shape determines the symbols that are dimensions.
            others: data of attached tensors by name.
            sizes: values of the other symbols.

        Raises:
            LayoutError: the array has another shape, the size of a symbol is missing, or an attached tensor is missing.
        """
        array = np.asarray(array)
        values = {**_sizes_of(self.shape, array), **(sizes or {})}
        missing = [v.name for v in self.symbols if v not in values]
        if missing and array.ndim == len(self.shape):
            what = (
                f"an array of shape {list(array.shape)} does not determine the size of {', '.join(map(repr, missing))}"
            )
            raise LayoutError(what, where=str(self), hint=f"pass sizes={{{missing[0]}: ...}}")
        concrete = self.at(values)
        if concrete.shape != as_shape(array.shape):
            expected = show_shape(concrete.shape)
            raise LayoutError(f"expected an array of shape {expected}, got {list(array.shape)}", where=str(self))
        for p in concrete.primitives:
            array = p.apply(array, others)
        return array

    def restore(
        self, array: Array, sizes: Mapping[Var, int] | None = None, others: Mapping[str, Array] = NO_ARRAYS
    ) -> Array:
        """The logical array of a physical one.

        Args:
            array: its shape determines the symbols that are dimensions of the physical shape.
            sizes: values of the other symbols.
            others: data by name of tensors that the layout detaches (`decouple_at`), to be attached again.

        Raises:
            LayoutError: the array has another shape, the size of a symbol is missing, or a detached tensor is missing.
        """
        return self.inverse().transform(array, others, sizes)

    # Text

    def __str__(self) -> str:
        inner = "".join(f" -> {p}" for p in self.primitives)
        return f"{show_shape(self.shape)}{inner} -> {show_shape(self.physical_shape)}"

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON values: shape, ranges of symbols, primitives."""
        return layout_json.encode_layout(self.shape, self.primitives, self.symbols)

    @classmethod
    def from_json(cls, data: Any) -> "Layout":
        """The layout that `to_json` wrote.

        Raises:
            LayoutError: the data has another format; names the place.
        """
        return cls(*layout_json.decode_layout(data))


@lru_cache(maxsize=4096)
def _shapes(layout: Layout) -> tuple[Shape, ...]:
    """The shape before each primitive, and the physical shape."""
    shapes = [layout.shape]
    for position, p in enumerate(layout.primitives):
        try:
            shapes.append(p.shape(shapes[-1]))
        except LayoutError as e:
            raise LayoutError(e.what, where=f"primitive {position}, {e.where}", hint=e.hint) from None
    return tuple(shapes)


def _integers(values: Sequence[int], where: str) -> tuple[int, ...]:
    """Dimension numbers as `int`, NumPy's included."""
    try:
        return tuple(index(v) for v in values)
    except TypeError:
        raise LayoutError(f"expected a sequence of integers, got {values!r}", where=where) from None


def _sizes_of(shape: Shape, array: Array) -> dict[Var, int]:
    """The values of the symbols that are dimensions of a shape, taken from an array."""
    return {v: n for v, n in zip(shape, array.shape, strict=False) if isinstance(v, Var)}
