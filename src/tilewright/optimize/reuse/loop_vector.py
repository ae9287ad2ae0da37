"""Loop vectors: the extents of an operator's loop nest, by which operators of one kind are compared.

A tuned program of an operator says where good programs of another one lie if both are of one kind and one loop nest
dominates the other: every extent is at most, or at least, the other's (ETO, Definition 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

Access = tuple[tuple[int, ...], ...]
"""Which elements of an operand a point reads: per dimension, the last one contiguous, the axes whose sum is its index.
Axes are numbered through, the spatial ones first; an axis may be missing."""


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """What operators have in common that may reuse each other's programs.

    Attributes:
        name: of the operator's type and of the set of its sketches: kinds of different names are never compared.
        accesses: the operands that are read.
        k_block_axis: the reduction axis that is read in chunks, numbered among all axes; None where none is.
    """

    name: str
    accesses: tuple[Access, ...]
    k_block_axis: int | None


# without slots, because cached properties need a place
@dataclass(frozen=True)
class LoopVector:
    """The extents of an operator's major loop nest.

    Attributes:
        kind: the operator's kind.
        spatial: extents of the loops over results.
        reduction: extents of the loops over which values are combined.
    """

    kind: OperatorKind
    spatial: tuple[int, ...]
    reduction: tuple[int, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """All extents, the spatial ones first."""
        return (*self.spatial, *self.reduction)

    @cached_property
    def spatial_points(self) -> int:
        """Number of results."""
        return prod(self.spatial)

    @cached_property
    def reduction_points(self) -> int:
        """Number of values that are combined into one result."""
        return prod(self.reduction)

    @property
    def points(self) -> int:
        """Number of iterations of the loop nest."""
        return self.spatial_points * self.reduction_points

    @property
    def k_block_extent(self) -> int:
        """Extent of the reduction axis that is read in chunks; 1 where none is."""
        return 1 if self.kind.k_block_axis is None else self.extents[self.kind.k_block_axis]

    def has_kind_of(self, other: "LoopVector") -> bool:
        """Whether both are of one kind."""
        return self.kind == other.kind and len(self.spatial) == len(other.spatial)

    def dominates(self, other: "LoopVector") -> bool:
        """Whether both are of one kind and no extent is below the other's; true of equal vectors."""
        pairs = zip(self.extents, other.extents, strict=True)
        return self.has_kind_of(other) and all(a >= b for a, b in pairs)

    def can_reuse(self, other: "LoopVector") -> bool:
        """Whether two operators are a reuse pair, in either order (ETO, Definition 2)."""
        return self.dominates(other) or other.dominates(self)

    def __str__(self) -> str:
        return "x".join(str(n) for n in self.extents)


def bridge(a: LoopVector, b: LoopVector) -> LoopVector:
    """The loop nest that both of two operators of one kind dominate: the smaller of each two extents (ETO,
    Definition 5)."""

    def smaller(x: Sequence[int], y: Sequence[int]) -> tuple[int, ...]:
        return tuple(min(m, n) for m, n in zip(x, y, strict=True))

    return LoopVector(a.kind, smaller(a.spatial, b.spatial), smaller(a.reduction, b.reduction))
