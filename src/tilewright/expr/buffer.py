"""Buffers: named, shaped, typed storage with a memory scope. Tensors of a computation are buffers too."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from tilewright.expr.dtype import DType

if TYPE_CHECKING:
    from tilewright.expr.nodes import Expr


class MemoryScope(StrEnum):
    """Where a buffer lives. `register` buffers have constant shapes and indices and become SSA values."""

    MEMORY = "memory"
    STACK = "stack"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Row-major storage.

    Attributes:
        name: unique within one function or program.
        shape: int64 expressions over the symbols of dimensions; () for a scalar.
        dtype: element type.
        scope: where it lives.
    """

    name: str
    shape: "tuple[Expr, ...]"
    dtype: DType
    scope: MemoryScope = MemoryScope.MEMORY

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> "Expr":
        """Number of elements."""
        from tilewright.expr.nodes import Expr, const

        total: Expr = const(1)
        for extent in self.shape:
            total = total * extent
        return total

    def renamed(self, name: str) -> "Buffer":
        """The same buffer under another name."""
        return replace(self, name=name)

    def __getitem__(self, indices: "tuple[Expr | int, ...] | Expr | int") -> "Expr":
        from tilewright.expr.nodes import Load, as_expr

        listed = indices if isinstance(indices, tuple) else (indices,)
        if len(listed) != self.rank:
            raise TypeError(f"buffer {self.name!r} has {self.rank} dimensions, got {len(listed)} indices")
        return Load(self, tuple(as_expr(i) for i in listed))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
