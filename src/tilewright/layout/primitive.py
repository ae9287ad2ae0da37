"""Base class of layout primitives: a map of shapes, of accesses and of data, with an inverse.

A primitive takes a *logical* shape to a *physical* one. Primitives are applied one after the other, so the physical
shape of one is the logical shape of the next.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from tilewright.errors import LayoutError
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import make_binary, substitute
from tilewright.expr.nodes import Expr, Var, as_expr, const
from tilewright.expr.traversal import free_vars
from tilewright.layout.sizes import Size, WrongSizeError, check_size

Array = np.ndarray[Any, Any]
Shape = tuple[Expr, ...]
Indices = tuple[Expr, ...]

NO_ARRAYS: Mapping[str, Array] = {}


class Primitive(ABC):
    """Base class of all layout primitives; subclasses are frozen dataclasses of integers, sizes and names."""

    name: ClassVar[str]
    """Name of the primitive in texts and JSON, and of the method of `Layout`."""

    minimums: ClassVar[Mapping[str, int]] = {"dim": 0}
    """Minimum values of arguments on any shape."""

    @abstractmethod
    def shape(self, shape: Shape) -> Shape:
        """The physical shape.

        Raises:
            LayoutError: the primitive is not legal on this shape.
        """

    @abstractmethod
    def forward(
        self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS, window: frozenset[Var] = frozenset()
    ) -> Indices:
        """The physical indices of the element at logical `indices`, which are inside of `shape`.

        Args:
            indices: one per dimension of the logical shape.
            shape: the logical shape.
            bounds: of the variables of `indices`; determines what simplifies.
            window: variables that move inside a sliding window (the reduction axes of a convolution); `unfold` puts all
                of one window into one tile where it can.
        """

    @abstractmethod
    def backward(self, indices: Indices, shape: Shape, bounds: Bounds = NO_BOUNDS) -> tuple[Indices, Expr]:
        """The logical indices of the element at physical `indices`, and the condition under which there is one.

        Args:
            indices: one per dimension of the physical shape.
            shape: the logical shape.
            bounds: of the variables of `indices`.
        """

    @abstractmethod
    def inverse(self, shape: Shape) -> "Primitive":
        """The primitive that takes the physical shape back to the logical `shape`."""

    @abstractmethod
    def apply(self, array: Array, others: Mapping[str, Array] = NO_ARRAYS) -> Array:
        """The data in physical form; sizes are integers (see `at`) and `others` holds attached arrays by name."""

    @abstractmethod
    def rename(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the physical dimensions, derived from those of the logical ones."""

    def invalid_arguments(self) -> Iterator[tuple[str, str]]:
        """Arguments that are legal on no shape: the name of each, and a message."""
        for name, minimum in self.minimums.items():
            value = getattr(self, name)
            elements = (
                [(f"{name}[{k}]", n) for k, n in enumerate(value)] if isinstance(value, tuple) else [(name, value)]
            )
            for place, n in elements:
                if can_prove(as_expr(n) < minimum):
                    yield place, f"expected at least {minimum}, got {n}"

    def expands(self, shape: Shape) -> bool:
        """Whether the number of elements changes, so that elements are repeated, added or dropped."""
        return not is_provably_equal(element_count(shape), element_count(self.shape(shape)))

    def at(self, sizes: Mapping[Var, Expr]) -> Self:
        """The same primitive with symbols replaced."""

        def substituted(value: Any) -> Any:
            if isinstance(value, Expr):
                return substitute(value, sizes)
            return tuple(substituted(v) for v in value) if isinstance(value, tuple) else value

        return replace(self, **{f.name: substituted(getattr(self, f.name)) for f in fields(self)})  # pyright: ignore

    @property
    def symbols(self) -> frozenset[Var]:
        """The symbols in its sizes."""

        def symbols_of(value: Any) -> frozenset[Var]:
            if isinstance(value, Expr):
                return free_vars(value)
            return frozenset[Var]().union(*(symbols_of(v) for v in value)) if isinstance(value, tuple) else frozenset()

        return frozenset[Var]().union(*(symbols_of(getattr(self, f.name)) for f in fields(self)))  # pyright: ignore

    def __str__(self) -> str:
        shown = ", ".join(show_argument(getattr(self, f.name)) for f in fields(self))  # pyright: ignore
        return f"{self.name}({shown})"


def show_argument(value: Any) -> str:
    """An argument of a primitive as text."""
    if isinstance(value, tuple):
        inner = ", ".join(show_argument(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)


def as_size(value: Size) -> Size:
    """A size in canonical form: integers as `int`, everything else as an expression.

    Raises:
        LayoutError: it is neither an integer nor an int64 expression, or too large to be a size.
    """
    try:
        return check_size(value)
    except WrongSizeError as error:
        raise LayoutError(f"expected {error}, got {value!r}", where="size") from None


def as_sizes(values: Sequence[Size], what: str) -> tuple[Size, ...]:
    """Sizes in canonical form.

    Raises:
        LayoutError: the value is not a sequence, or an element is not a size; names `what` they are.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LayoutError(f"expected a sequence of sizes, got {values!r}", where=what)
    return tuple(as_size(n) for n in values)


def as_int(value: Size) -> int:
    """A size as a number.

    Raises:
        LayoutError: it depends on a symbol.
    """
    if isinstance(value, Expr):
        raise LayoutError(f"expected a number, got {value}", hint="give the symbols' sizes, see `Layout.at`")
    return value


def as_shape(sizes: Sequence[Size]) -> Shape:
    """Sizes as expressions.

    Raises:
        LayoutError: one is neither an integer nor an int64 expression, or too large.
    """
    return tuple(as_expr(n) for n in as_sizes(sizes, "shape"))


def element_count(sizes: Sequence[Size]) -> Expr:
    """The product of sizes."""
    total: Expr = const(1)
    for n in sizes:
        total = total * n
    return total


def is_provably_equal(a: Size, b: Size) -> bool:
    """Whether two sizes are provably equal."""
    a, b = as_expr(a), as_expr(b)
    return a is b or constant_value(polynomial(a - b)) == 0 or can_prove(a.equals(b))


def floordiv(a: Expr, b: Size, bounds: Bounds) -> Expr:
    """a // b, simplified under bounds."""
    return make_binary("floordiv", a, as_expr(b), bounds)


def mod(a: Expr, b: Size, bounds: Bounds) -> Expr:
    """a % b, simplified under bounds."""
    return make_binary("mod", a, as_expr(b), bounds)


def check_dims(shape: Shape, dim: int, count: int, where: str) -> None:
    """Raises LayoutError unless dimensions dim .. dim + count - 1 exist."""
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise LayoutError(f"expected the number of a dimension, got {dim!r}", where=where)
    if not 0 <= dim <= len(shape) - count:
        last = len(shape) - count
        wanted = f"a dimension in 0..{last}" if last >= 0 else f"at least {count} dimensions"
        got = str(dim) if last >= 0 else str(len(shape))
        raise LayoutError(f"expected {wanted}, got {got}", where=where, hint=f"the shape here is {show_shape(shape)}")


def check_at_least(value: Size, least: int, what: str, where: str) -> None:
    """Raises LayoutError where a size is provably smaller than `least`."""
    if can_prove(as_expr(value) < least):
        raise LayoutError(f"expected {what} of at least {least}, got {value}", where=where)


def check_indices(indices: Indices, shape: Shape, where: str) -> None:
    """Raises LayoutError unless there is one index per dimension."""
    if len(indices) != len(shape):
        raise LayoutError(f"expected {len(shape)} indices, got {len(indices)}", where=where)


def show_shape(shape: Shape) -> str:
    """A shape as text."""
    return f"[{', '.join(map(str, shape))}]"
