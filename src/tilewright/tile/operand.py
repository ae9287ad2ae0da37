"""Affine accesses of a block as plain numbers: which elements of a buffer each point of the iteration space touches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.nodes import TRUE, Buffer, Expr, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.access import accesses
from tilewright.loops.ir import Block
from tilewright.tile.shape_samples import value_of


@dataclass(frozen=True)
class Operand:
    """One access of a block.

    Attributes:
        buffer: name of the buffer.
        element_bytes: size of one element.
        constant: whether the data is known at compile time, so that it can be stored in any layout.
        shape: of the buffer.
        index: per dimension of the buffer the coefficient of every axis.
        written: whether it is stored to.
        private: whether the buffer is internal to the kernel, on the stack of a thread.
        conditional: whether a select decides if it is read.
    """

    buffer: str
    element_bytes: int
    constant: bool
    shape: tuple[int, ...]
    index: tuple[tuple[int, ...], ...]
    written: bool
    private: bool = False
    conditional: bool = False

    # cached: the cost model reads these thousands of times per problem

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Per axis the distance, in elements, between the elements of neighbouring points."""
        pitches = [prod(self.shape[d + 1 :]) for d in range(len(self.shape))]
        axes = range(len(self.index[0]))
        return tuple(sum(pitches[d] * row[a] for d, row in enumerate(self.index)) for a in axes)

    @property
    def bytes(self) -> int:
        """Size of the buffer."""
        return prod(self.shape) * self.element_bytes

    @cached_property
    def byte_strides(self) -> tuple[tuple[int, int], ...]:
        """(axis, absolute stride in bytes) of the axes with a stride other than 0."""
        return tuple((a, abs(s) * self.element_bytes) for a, s in enumerate(self.strides) if s)

    @cached_property
    def dim_sizes(self) -> tuple[int, ...]:
        """The shape, with dimensions of at least one element."""
        return tuple(max(1, size) for size in self.shape)

    @cached_property
    def used_axes(self) -> frozenset[int]:
        """The axes that the index depends on."""
        return frozenset(k for row in self.index for k, c in enumerate(row) if c)

    @cached_property
    def index_terms(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per dimension (absolute coefficient, axis) of the axes in its index, by rising coefficients."""
        return tuple(tuple(sorted((abs(c), k) for k, c in enumerate(row) if c)) for row in self.index)

    @property
    def structure(self) -> tuple[object, ...]:
        """All of it but its name and its sizes; of strides, which are 0, 1 or more."""
        flags = (self.constant, self.written, self.private, self.conditional)
        return self.index, self.element_bytes, flags, tuple(min(abs(s), 2) for s in self.strides)

    def uses(self, axis: int) -> bool:
        """Whether the index depends on an axis."""
        return axis in self.used_axes

    def per_shape(self, function: "Callable[[Operand], Sequence[float]]") -> tuple[float, ...]:
        """`function` of the operand; the scalar case of `cost.shape_family.BatchedOperand.per_shape`."""
        return tuple(function(self))

    def dimension(self, axis: int) -> int | None:
        """The one dimension that is indexed by an axis alone, with coefficient 1; None where there is none."""
        indexed = [d for d, row in enumerate(self.index) if row[axis]]
        if len(indexed) != 1:
            return None
        row = self.index[indexed[0]]
        return indexed[0] if row[axis] == 1 and sum(map(abs, row)) == 1 else None


def extract_operands(
    block: Block, variables: Sequence[Var], constants: frozenset[str], sizes: Mapping[Var, int], excluded: Buffer | None
) -> tuple[Operand, ...] | None:
    """The accesses of a block's body, its store last; None where one of them is not affine.

    Args:
        block: the block.
        variables: its iteration variables, in the order of the problem's axes.
        constants: names of parameters whose data is known at compile time.
        sizes: values of the symbols.
        excluded: a buffer whose accesses are left out.
    """
    operands: dict[tuple[str, tuple[Expr, ...], bool], Operand] = {}
    for a in accesses(block):
        if a.buffer == excluded:
            continue
        operand = extract_operand(a.buffer, a.indices, variables, constants, sizes, a.is_write)
        if operand is None:
            return None
        operands[a.buffer.name, a.indices, a.is_write] = replace(operand, conditional=a.condition is not TRUE)
    return tuple(operands.values())


def extract_operand(
    buffer: Buffer, indices: Sequence[Expr], variables: Sequence[Var], constants: frozenset[str],
    sizes: Mapping[Var, int], written: bool,
) -> Operand | None:  # fmt: skip
    """One access; None where it is not affine. The arguments are those of `extract_operands`."""
    rows = [affine_coefficients(i, variables) for i in indices]
    if any(r is None for r in rows):
        return None
    # a scalar is a row of one element
    shape = tuple(value_of(n, sizes) for n in buffer.shape) or (1,)
    index = tuple(r for r in rows if r is not None) or ((0,) * len(variables),)
    return Operand(buffer.name, max(1, buffer.dtype.bits // 8), buffer.name in constants, shape, index, written)


def affine_coefficients(index: Expr, variables: Sequence[Var]) -> tuple[int, ...] | None:
    """The coefficient of every variable in an index; None where it is not affine with literal coefficients."""
    if loads(index):
        return None
    iteration_vars = set(variables)
    coefficients = dict.fromkeys(variables, 0)
    for monomial, c in polynomial(index).items():
        if not any(free_vars(atom) & iteration_vars for atom in monomial):
            continue
        if len(monomial) != 1 or not isinstance(monomial[0], Var):
            return None
        coefficients[monomial[0]] += c
    return tuple(coefficients[v] for v in variables)
