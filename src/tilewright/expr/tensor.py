"""Tensors with their defining computation, reduction axes and reductions: the terms of `define.py`."""

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.errors import DefinitionError, pluralize
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var, const


class ReduceAxis(Var):
    """The variable of a reduction (`sum`, `max`, ...) with its extent; made by `reduce_axis`."""

    __slots__ = ("extent",)
    __match_args__ = ("name", "extent")

    def __init__(self, name: str, extent: Expr) -> None:
        super().__init__(name)
        self.extent = extent


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor(Buffer):
    """A tensor of a kernel: an input or the result of a computation. Equality is identity.

    `A[i, j]` is an element; indices are int64 expressions, such as the axes that `compute` passes to its body.

    Attributes:
        stage: the computation; None for an input.
        sources: the tensors that the stage reads, in order of first use.
    """

    stage: Computation | None = None
    sources: "tuple[Tensor, ...]" = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def plain_buffer(self) -> Buffer:
        """The buffer of this tensor in computations and loops."""
        return Buffer(self.name, self.shape, self.dtype)

    def __getitem__(self, indices: "tuple[Expr | int, ...] | Expr | int") -> Expr:
        index_list = indices if isinstance(indices, tuple) else (indices,)
        if len(index_list) != self.rank:
            actual = pluralize(len(index_list), "index", "indices")
            raise DefinitionError(f"it has {pluralize(self.rank, 'dimension')}, got {actual}", where=f"tensor {self}")
        return Load(self, tuple(self._index(axis, i) for axis, i in enumerate(index_list)))

    def _index(self, axis: int, index: object) -> Expr:
        where = f"tensor {self}, index {axis}"
        if isinstance(index, slice):
            raise DefinitionError("slices are not supported", where=where, hint="give one index per dimension")
        if isinstance(index, Reduction):
            raise index.misplaced_error()
        if isinstance(index, Tensor):
            raise DefinitionError(f"expected an int64 expression, got tensor {index.name!r}", where=where)
        if isinstance(index, Expr):
            if index.dtype is not int64 and index.dtype != int64:
                hint = 'write cast(..., "int64")' if index.dtype.is_int else ""
                raise DefinitionError(f"expected an int64 expression, got {index.dtype}", where=where, hint=hint)
            return index
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise DefinitionError(f"expected an int64 expression, got {type(index).__name__}", where=where)
        return self._literal(axis, int(index), where)  # pyright: ignore[reportArgumentType]

    def _literal(self, axis: int, index: int, where: str) -> Expr:
        size = self.shape[axis]
        if index < 0:
            raise DefinitionError(f"index {index} is negative", where=where, hint=f"count from 0, as in {size - 1}")
        if isinstance(size, Const) and index >= int(size.value):
            raise DefinitionError(f"index {index} is outside of 0..{int(size.value) - 1}", where=where)
        return const(index)

    def __iter__(self) -> Iterator[Expr]:
        raise DefinitionError("a tensor can't be iterated over", where=f"tensor {self}", hint="index it: A[i, j]")

    def __repr__(self) -> str:
        return f"<Tensor {self}>"


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """A value combined along reduction axes; it must be the whole body of a `compute`, not part of an expression.

    Attributes:
        reducer: how values are combined.
        body: the value at one point.
        axes: the reduction axes.
    """

    reducer: Reducer
    body: Expr
    axes: tuple[ReduceAxis, ...]

    def misplaced_error(self) -> DefinitionError:
        """The error for a reduction inside an expression."""
        return DefinitionError(
            "a reduction must be the whole body of a tensor and can't be part of an expression",
            where=f"{self.reducer} over {', '.join(a.name for a in self.axes)}",
            hint="compute it as a separate tensor and index that",
        )

    def _raise_misplaced(self, other: object = None) -> Expr:
        raise self.misplaced_error()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _raise_misplaced
    __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = _raise_misplaced
