"""What a tile program is about: the axes of a kernel and how its operands are accessed, as plain numbers.

A problem is read off a kernel's untransformed loops and holds no expressions, so that everything that is asked of a
tile (its footprint, its traffic, the work in it) is arithmetic on arrays. Kernels with an access that is not affine, a
gather or a division, have no problem; other optimizers take them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.dtype import boolean, int64
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, Load, Var
from tilewright.expr.traversal import free_vars, loads, post_order
from tilewright.loops.access import accesses
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.tile.operation_cost import operation_cost
from tilewright.tile.shape_samples import ShapeSamples, value_of


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a block.

    Attributes:
        name: of the block's iteration variable.
        extent: its size; a representative one where the size is a symbol.
        literal: whether the size is known.
        reduce: whether values are combined along it.
    """

    name: str
    extent: int
    is_static: bool
    is_reduction: bool


@dataclass(frozen=True)
class Operand:
    """One access of a block.

    Attributes:
        buffer: name of the buffer.
        bytes: of one element.
        constant: whether its data is known at compile time, so that it may be stored in any way.
        shape: of the buffer.
        index: per dimension the coefficient of every axis.
        written: whether it is stored to.
        private: whether it lives inside of the kernel, on the stack of a thread.
    """

    buffer: str
    element_bytes: int
    constant: bool
    shape: tuple[int, ...]
    index: tuple[tuple[int, ...], ...]
    written: bool
    private: bool = False

    # formulas ask for these thousands of times per problem

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """By how many elements the position in the buffer moves with each axis."""
        pitch = [prod(self.shape[d + 1 :]) for d in range(len(self.shape))]
        return tuple(sum(pitch[d] * row[a] for d, row in enumerate(self.index)) for a in range(len(self.index[0])))

    @cached_property
    def byte_strides(self) -> tuple[tuple[int, int], ...]:
        """(axis, bytes) of the axes that move the position, whichever way."""
        return tuple((a, abs(s) * self.element_bytes) for a, s in enumerate(self.strides) if s)

    @cached_property
    def dim_sizes(self) -> tuple[int, ...]:
        """Places in every dimension, at least one."""
        return tuple(max(1, size) for size in self.shape)

    @cached_property
    def used_axes(self) -> frozenset[int]:
        """The axes with which the position moves."""
        return frozenset(k for row in self.index for k, c in enumerate(row) if c)

    @cached_property
    def index_terms(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per dimension (step, axis) of the axes that move its index, by rising steps."""
        return tuple(tuple(sorted((abs(c), k) for k, c in enumerate(row) if c)) for row in self.index)

    def uses(self, axis: int) -> bool:
        """Whether another element is touched as the axis grows."""
        return axis in self.used_axes

    def per_shape(self, function: "Callable[[Operand], Sequence[float]]") -> tuple[float, ...]:
        """What is asked of it; see `tile.family`, where there is more than one."""
        return tuple(function(self))

    def dimension(self, axis: int) -> int | None:
        """The one dimension that an axis alone indexes, plainly; None where there is none."""
        moved = [d for d, row in enumerate(self.index) if row[axis]]
        if len(moved) != 1:
            return None
        row = self.index[moved[0]]
        return moved[0] if row[axis] == 1 and sum(map(abs, row)) == 1 else None


@dataclass(frozen=True)
class Problem:
    """A reduction with its epilogue, or element-wise work.

    Attributes:
        block: the block that reduces, or that does the element-wise work.
        final: the block behind it that uses its results, or the same one.
        axes: the block's, spatial ones first; those of `final` are its spatial ones.
        operands: what every point reads; for element-wise work the store is the last one.
        results: what is read and written once per result, the store last; empty for element-wise work.
        operations: instructions of one point; a multiplication and an addition are one.
        bits: of an element that is computed; of element-wise work the widest one that is loaded, computed or stored.
        samples: the same problem at other sizes, where some are symbols.
        added: whether what is summed is added as it is loaded.
    """

    block: str
    final: str
    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    operations: int
    bits: int
    samples: "tuple[Problem, ...]" = field(default=(), compare=False)
    is_plain_sum: bool = False

    @cached_property
    def spatial(self) -> tuple[int, ...]:
        """Positions of the axes along which results are independent."""
        return tuple([k for k, a in enumerate(self.axes) if not a.is_reduction])

    @cached_property
    def reduce(self) -> tuple[int, ...]:
        """Positions of the axes along which values are combined."""
        return tuple([k for k, a in enumerate(self.axes) if a.is_reduction])

    @cached_property
    def extents(self) -> npt.NDArray[np.int64]:
        """Those of the axes, as an array that can't be changed."""
        found = np.array([a.extent for a in self.axes], np.int64)
        found.setflags(write=False)
        return found

    @cached_property
    def reduction_length(self) -> int:
        """What is combined into one result."""
        return prod(self.axes[k].extent for k in self.reduce)

    @cached_property
    def has_reuse(self) -> bool:
        """Whether an element of an operand is used at several points."""
        return any(len(o.used_axes) < len(self.axes) for o in self.operands)

    @property
    def points(self) -> int:
        """Iterations of the block."""
        return prod(a.extent for a in self.axes)


def extract_problem(func: Func, constants: frozenset[str], samples: ShapeSamples | None = None) -> Problem | None:
    """The problem of a kernel at representative sizes, with samples of others; None where it has none.

    Args:
        func: untransformed loops: a reduction with at most one block behind it, or a block of element-wise work.
        constants: names of parameters whose data is known at compile time.
        samples: sizes of its symbols; by default those of their ranges.
    """
    sizes = samples or ShapeSamples.of(func.symbols)
    made = _problem_at(func, constants, sizes.representative)
    if made is None or all(a.is_static for a in made.axes):
        return made
    others = [_problem_at(func, constants, s) for s in sizes.shapes]
    return replace(made, samples=tuple(p for p in others if p is not None))


def _problem_at(func: Func, constants: frozenset[str], sizes: Mapping[Var, int]) -> Problem | None:
    """The problem at given sizes."""
    found = blocks(func.body)
    reduction = next((b for b in found if b.init is not None), None)
    main = found[-1] if reduction is None else reduction
    if len(found) > (1 if reduction is None else 2) or found[0] is not main:
        return None
    order = sorted(range(len(main.iters)), key=lambda k: main.iters[k].kind is IterKind.REDUCE)
    if order != list(range(len(order))) or not main.iters:
        return None
    axes = tuple(_axis(i.var.name, i.extent, i.kind is IterKind.REDUCE, sizes) for i in main.iters)
    if any(a.extent < 1 for a in axes):
        return None
    own = None if reduction is None else main.body.buffer
    operands = _operands(main, [i.var for i in main.iters], constants, sizes, own)
    final = found[-1]
    results: tuple[Operand, ...] | None = ()
    if reduction is not None:
        results = _results(final, reduction, len(axes), sizes)
    if operands is None or results is None:
        return None
    bits = main.body.buffer.dtype.bits if reduction is not None else widest_bits(main)
    return Problem(
        main.name, final.name, axes, operands, results, count_operations(main), bits, is_plain_sum=_is_plain_sum(main)
    )


def count_operations(block: Block) -> int:
    """Arithmetic instructions of one iteration, as `tile.work` counts them; a product that is added is one of them."""
    total = 0
    for e in post_order(block.body.value):
        if e.dtype in (int64, boolean) or isinstance(e, Const | Var | Load):
            continue
        total += operation_cost(e).throughput
    product = any(getattr(e, "op", "") == "mul" for e in block.body.value.children())
    return max(1, total - (1 if block.init is not None and product else 0))


def widest_bits(block: Block) -> int:
    """Bits of the widest element that a block's body loads, computes or stores, at least 8."""
    value = block.body.value
    # indices are integers of 64 bits: what is computed in these stems from a load, or is stored
    values = (e.dtype for e in post_order(value) if isinstance(e, Load) or e.dtype != int64)
    return max(8, block.body.buffer.dtype.bits, *(d.bits for d in values))


def _is_plain_sum(block: Block) -> bool:
    value = block.body.value
    return isinstance(value, Binary) and value.op == "add" and all(isinstance(e, Load) for e in value.children())


def _axis(name: str, extent: Expr, reduce: bool, sizes: Mapping[Var, int]) -> Axis:
    return Axis(name, value_of(extent, sizes), isinstance(extent, Const), reduce)


def _results(final: Block, reduction: Block, axes: int, sizes: Mapping[Var, int]) -> tuple[Operand, ...] | None:
    """What happens once per result; None where the final block does not walk the results one by one."""
    spatial = [i for i in reduction.iters if i.kind is IterKind.SPATIAL]
    variables = [i.var for i in final.iters]
    if final is not reduction:
        plain = tuple(variables)
        read = [x for x in loads(final.body.value) if x.buffer == reduction.body.buffer]
        same = [i.extent for i in final.iters] == [i.extent for i in spatial]
        if not same or not read or any(x.indices != plain for x in read):
            return None
    else:
        variables = variables[: len(spatial)]
    if reduction.body.indices != tuple(i.var for i in spatial):
        return None
    if final is reduction:
        found = _operand(final.body.buffer, final.body.indices, variables, frozenset(), sizes, True)
        operands = None if found is None else (found,)
    else:
        operands = _operands(final, variables, frozenset(), sizes, reduction.body.buffer)
    if operands is None:
        return None
    none = (0,) * (axes - len(spatial))
    return tuple(
        Operand(o.buffer, o.element_bytes, o.constant, o.shape, tuple((*row, *none) for row in o.index), o.written)
        for o in operands
    )


def _operands(
    block: Block, variables: Sequence[Var], constants: frozenset[str], sizes: Mapping[Var, int], excluded: Buffer | None
) -> tuple[Operand, ...] | None:
    """The accesses of a block's body but those to the buffer `left`, its own store last."""
    found: dict[tuple[str, tuple[Expr, ...], bool], Operand] = {}
    for a in accesses(block):
        if a.buffer == excluded:
            continue
        made = _operand(a.buffer, a.indices, variables, constants, sizes, a.is_write)
        if made is None:
            return None
        found[a.buffer.name, a.indices, a.is_write] = made
    return tuple(found.values())


def _operand(
    buffer: Buffer, indices: Sequence[Expr], variables: Sequence[Var], constants: frozenset[str],
    sizes: Mapping[Var, int], written: bool,
) -> Operand | None:  # fmt: skip
    rows = [affine_coefficients(i, variables) for i in indices]
    if any(r is None for r in rows):
        return None
    # a single element is a row of one
    shape = tuple(value_of(n, sizes) for n in buffer.shape) or (1,)
    index = tuple(r for r in rows if r is not None) or ((0,) * len(variables),)
    return Operand(buffer.name, max(1, buffer.dtype.bits // 8), buffer.name in constants, shape, index, written)


def affine_coefficients(index: Expr, variables: Sequence[Var]) -> tuple[int, ...] | None:
    """The coefficient of every variable in an index; None where it is not linear in them with literal coefficients."""
    if loads(index):
        return None
    own = set(variables)
    found = dict.fromkeys(variables, 0)
    for monomial, c in polynomial(index).items():
        moving = [atom for atom in monomial if free_vars(atom) & own]
        if not moving:
            continue
        if len(monomial) != 1 or not isinstance(monomial[0], Var):
            return None
        found[monomial[0]] += c
    return tuple(found[v] for v in variables)
