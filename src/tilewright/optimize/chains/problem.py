"""The chain of contractions that is to be fused, as the search sees it: axes, statements and what these load and store.

    C[m,n] = sum over k of A[m,k] B[k,n]
    E[m,h] = sum over n of C[m,n] D[n,h]

has the axes m, n, k, h and two statements. Element-wise work and row reductions between contractions (a softmax, a
mask, a normalisation) are statements of their own. Axes are those of `tile/statements.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.expr.nodes import Var
from tilewright.tile.index_masks import IndexMask

GRANULE = 16
"""Tiles are multiples of so many points: one vector of the widest processors, and the least of the paper."""

DimIndex = tuple[tuple[str, int], ...]
"""The index of one dimension: (axis, its coefficient); () for a constant."""


@dataclass(frozen=True, slots=True)
class ChainAxis:
    """An axis of a chain.

    Attributes:
        name: its name.
        extent: its points; of a symbolic axis those at the representative sizes.
        is_symbolic: whether the extent is known only when the kernel runs.
        is_batch: whether every operand of every contraction has it, so that nothing is shared along it; tiles have one
            point.
        is_whole: whether it has to be one tile: a statement needs the finished result of a reduction along it before it
            goes along it itself.
        granule: tiles are multiples of so many points.
        largest: the largest extent of a symbolic axis that tiles are chosen for.
    """

    name: str
    extent: int
    is_symbolic: bool = False
    is_batch: bool = False
    is_whole: bool = False
    granule: int = GRANULE
    largest: int = 0

    @property
    def is_single_tile(self) -> bool:
        """Whether the whole axis is the only tile there is."""
        is_small = self.extent <= self.granule and not self.is_symbolic
        return not self.is_batch and (self.is_whole or is_small)


@dataclass(frozen=True, slots=True)
class ChainTensor:
    """A tensor as a statement accesses it.

    Attributes:
        name: of the buffer.
        bytes: of an element.
        dims: the index of every dimension.
    """

    name: str
    bytes: int
    dims: tuple[DimIndex, ...]

    @property
    def axes(self) -> frozenset[str]:
        """The axes that index it."""
        return frozenset(axis for dim in self.dims for axis, _ in dim)

    def occurrences(self, axis: str) -> int:
        """In how many dimensions an axis occurs."""
        return sum(a == axis for dim in self.dims for a, _ in dim)


@dataclass(frozen=True, slots=True)
class ChainWork:
    """Floating-point work of a statement.

    Attributes:
        axes: those it is repeated along; work on fewer axes than the statement's is done once for a tile of them.
        flops: operations per point, a fused multiply-add counting two.
    """

    axes: frozenset[str]
    flops: float


@dataclass(frozen=True, slots=True)
class ChainStatement:
    """A statement: one block of the kernel.

    Attributes:
        name: of the block.
        axes: of its iteration variables.
        reductions: those of them that it reduces along.
        is_contraction: whether it sums products of two operands of different axes.
        work: its operations.
        loads: the inputs of the kernel that it reads.
        reads: the statements whose results it reads.
        online: those of `reads` whose running results are enough, because it is rescaled when they change.
        result: what it writes.
        is_output: whether that is a result of the kernel.
    """

    name: str
    axes: frozenset[str]
    reductions: frozenset[str]
    is_contraction: bool
    work: tuple[ChainWork, ...]
    loads: tuple[ChainTensor, ...]
    reads: tuple[str, ...]
    online: frozenset[str]
    result: ChainTensor
    is_output: bool


# without slots, because cached properties need a place
@dataclass(frozen=True)
class Chain:
    """A chain of contractions.

    Attributes:
        axes: in the order of their first statement.
        statements: in the order of execution.
        samples: the chain at sampled sizes of its symbols; () where all are literal.
        masks: those that exclude tiles by their indices.
        symbols: the sizes of symbols that extents are those at.
    """

    axes: tuple[ChainAxis, ...]
    statements: tuple[ChainStatement, ...]
    samples: "tuple[Chain, ...]" = field(default=(), compare=False, repr=False)
    masks: tuple[IndexMask, ...] = ()
    symbols: Mapping[Var, int] = field(default_factory=dict[Var, int], compare=False, repr=False)
    _axes_by_name: dict[str, ChainAxis] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_axes_by_name", {a.name: a for a in self.axes})

    def axis(self, name: str) -> ChainAxis:
        """The axis of a name."""
        return self._axes_by_name[name]

    def statement(self, name: str) -> ChainStatement:
        """The statement of a name."""
        return next(s for s in self.statements if s.name == name)

    def extent(self, dim: DimIndex) -> int:
        """Points of a dimension that is indexed so."""
        return 1 + sum(c * (self.axis(a).extent - 1) for a, c in dim)

    @cached_property
    def batch(self) -> tuple[str, ...]:
        """The batch axes."""
        return tuple(a.name for a in self.axes if a.is_batch)

    @cached_property
    def loop_axes(self) -> tuple[str, ...]:
        """The axes that tiling expressions have loops over: all but the batch axes and those of a single tile."""
        return tuple(a.name for a in self.axes if not a.is_batch and not a.is_single_tile)

    @cached_property
    def grid_axes(self) -> frozenset[str]:
        """The axes whose tiles may be computed by different units: nothing reduces along them, and every result of the
        kernel has them."""
        reduced = {axis for s in self.statements for axis in s.reductions}
        stored = [s.result.axes for s in self.statements if s.is_output]
        return frozenset(a.name for a in self.axes if a.name not in reduced and all(a.name in x for x in stored))

    def tensors(self) -> Iterator[ChainTensor]:
        """The tensors in memory: distinct inputs, then outputs."""
        seen: dict[str, ChainTensor] = {}
        for s in self.statements:
            for x in s.loads:
                seen.setdefault(x.name, x)
        yield from seen.values()
        yield from (s.result for s in self.statements if s.is_output)
