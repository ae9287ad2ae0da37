"""A kernel's iteration space and operands as plain numbers: what a tile program computes.

A problem is extracted from a kernel's untransformed loops and holds no expressions, so footprints, traffic and work of
tiles are arithmetic on arrays. Kernels with an access that is not affine (a gather, a division) have no problem; other
optimizers schedule them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.expr.dtype import boolean, int64
from tilewright.expr.nodes import Binary, Const, Expr, Load, Var
from tilewright.expr.traversal import loads, post_order
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.tile.operand import Operand, extract_operand, extract_operands
from tilewright.tile.operation_cost import operation_cost
from tilewright.tile.shape_samples import ShapeSamples, value_of


@dataclass(frozen=True, slots=True)
class ProblemAxis:
    """One axis of a block.

    Attributes:
        name: of the block's iteration variable.
        extent: its size; a representative one where the size is a symbol.
        is_static: whether the size is known at compile time.
        is_reduction: whether values are combined along it.
    """

    name: str
    extent: int
    is_static: bool
    is_reduction: bool

    @property
    def literal_extent(self) -> int | None:
        """Its size; None where that is not known at compile time."""
        return self.extent if self.is_static else None


@dataclass(frozen=True)
class Problem:
    """A reduction with its epilogue, or elementwise work.

    Attributes:
        block: name of the block that reduces, or that does the elementwise work.
        final: name of the epilogue's block, or of the same block where there is no epilogue.
        axes: the block's axes, spatial ones first; the axes of `final` are the spatial ones.
        operands: accesses of every point; for elementwise work the store is the last one.
        results: accesses of every result, the store last; empty for elementwise work.
        operations: instructions per point; a multiply-add is one.
        bits: width of the computed elements; for elementwise work of the widest element loaded, computed or stored.
        samples: the same problem at other shapes, where sizes are symbols.
        is_plain_sum: whether the reduction adds up loaded elements as they are.
        is_reorderable: whether the points of the reduction may be combined in any order.
    """

    block: str
    final: str
    axes: tuple[ProblemAxis, ...]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    operations: int
    bits: int
    samples: "tuple[Problem, ...]" = field(default=(), compare=False)
    is_plain_sum: bool = False
    is_reorderable: bool = True

    @cached_property
    def spatial(self) -> tuple[int, ...]:
        """Positions of the spatial axes."""
        return tuple([k for k, a in enumerate(self.axes) if not a.is_reduction])

    @cached_property
    def reduce(self) -> tuple[int, ...]:
        """Positions of the reduction axes."""
        return tuple([k for k, a in enumerate(self.axes) if a.is_reduction])

    @cached_property
    def extents(self) -> npt.NDArray[np.int64]:
        """Extents of the axes, as a read-only array."""
        extents = np.array([a.extent for a in self.axes], np.int64)
        extents.setflags(write=False)
        return extents

    @cached_property
    def reduction_length(self) -> int:
        """Number of values that are combined into one result."""
        return prod(self.axes[k].extent for k in self.reduce)

    @cached_property
    def read_operands(self) -> tuple[Operand, ...]:
        """The operands that the block does not write itself."""
        return tuple([o for o in self.operands if not o.written])

    @cached_property
    def has_reuse(self) -> bool:
        """Whether an element of some operand is used at several points."""
        return any(len(o.used_axes) < len(self.axes) for o in self.operands)

    @cached_property
    def structure(self) -> str:
        """All of a problem without samples but its names and sizes; of strides, which are 0, 1 or more."""
        axes = tuple([(a.is_static, a.is_reduction) for a in self.axes])
        accesses = tuple([o.structure for o in (*self.operands, *self.results)])
        # as text, whose hash is computed once
        kinds = (self.is_plain_sum, self.is_reorderable)
        return repr((axes, accesses, len(self.operands), self.operations, self.bits, *kinds))

    @property
    def points(self) -> int:
        """Number of iterations of the block."""
        return prod(a.extent for a in self.axes)


def extract_problem(func: Func, constants: frozenset[str], samples: ShapeSamples | None = None) -> Problem | None:
    """The problem of a kernel at its representative shape, with the problems at sampled shapes; None where it has none.

    Args:
        func: untransformed loops with one output: a reduction with at most one epilogue block, or one block of
            elementwise work.
        constants: names of parameters whose data is known at compile time.
        samples: shapes of the kernel's symbols; by default drawn from their ranges.
    """
    shapes = samples or ShapeSamples.of(func.symbols)
    problem = _problem_at(func, constants, shapes.representative)
    if problem is None or all(a.is_static for a in problem.axes):
        return problem
    sampled = problems_at(func, constants, shapes.shapes)
    return replace(problem, samples=tuple(p for p in sampled if p is not None))


def problems_at(
    func: Func, constants: frozenset[str], shapes: Sequence[Mapping[Var, int]]
) -> tuple[Problem | None, ...]:
    """The problems of a kernel at shapes of its symbols, without samples; None where it has none.

    Args:
        func, constants: as for `extract_problem`.
        shapes: values of all symbols.
    """
    return tuple(_problem_at(func, constants, s) for s in shapes)


def _problem_at(func: Func, constants: frozenset[str], sizes: Mapping[Var, int]) -> Problem | None:
    """The problem at one shape."""
    all_blocks = blocks(func.body)
    if len(func.outputs) > 1:
        return None
    reduction = next((b for b in all_blocks if b.init is not None), None)
    main = all_blocks[-1] if reduction is None else reduction
    if len(all_blocks) > (1 if reduction is None else 2) or all_blocks[0] is not main:
        return None
    order = sorted(range(len(main.iters)), key=lambda k: main.iters[k].kind is IterKind.REDUCE)
    if order != list(range(len(order))) or not main.iters:
        return None
    axes = tuple(_axis(i.var.name, i.extent, i.kind is IterKind.REDUCE, sizes) for i in main.iters)
    if any(a.extent < 1 for a in axes):
        return None
    accumulator = None if reduction is None else main.body.buffer
    operands = extract_operands(main, [i.var for i in main.iters], constants, sizes, accumulator)
    final = all_blocks[-1]
    results: tuple[Operand, ...] | None = ()
    if reduction is not None:
        results = _results(final, reduction, len(axes), sizes)
    if operands is None or results is None:
        return None
    bits = main.body.buffer.dtype.bits if reduction is not None else widest_bits(main)
    return Problem(
        main.name, final.name, axes, operands, results, count_operations(main), bits,
        is_plain_sum=_is_plain_sum(main), is_reorderable=is_reorderable(main),
    )  # fmt: skip


def count_operations(block: Block) -> int:
    """Arithmetic instructions of one iteration, by `tile.operation_cost`; a multiply-add is one of them."""
    total = 0
    for e in post_order(block.body.value):
        if e.dtype in (int64, boolean) or isinstance(e, Const | Var | Load):
            continue
        total += operation_cost(e).throughput
    product = any(getattr(e, "op", "") == "mul" for e in block.body.value.children())
    return max(1, total - (1 if block.init is not None and product else 0))


def widest_bits(block: Block) -> int:
    """Width of the widest element that a block's body loads, computes or stores, at least 8."""
    value = block.body.value
    # 64-bit integers are indices, unless they stem from a load or are stored
    dtypes = (e.dtype for e in post_order(value) if isinstance(e, Load) or e.dtype != int64)
    return max(8, block.body.buffer.dtype.bits, *(d.bits for d in dtypes))


def is_reorderable(block: Block) -> bool:
    """Whether the points of a reduction may be combined in any order, as all but products of floats may: products of
    some factors overflow where the whole does not, and infinity times zero is NaN. Once zero, a product in the order of
    the elements stays zero."""
    value = block.body.value
    is_product = block.init is not None and isinstance(value, Binary) and value.op == "mul"
    return not (is_product and value.dtype.is_float)


def _is_plain_sum(block: Block) -> bool:
    value = block.body.value
    return isinstance(value, Binary) and value.op == "add" and all(isinstance(e, Load) for e in value.children())


def _axis(name: str, extent: Expr, is_reduction: bool, sizes: Mapping[Var, int]) -> ProblemAxis:
    return ProblemAxis(name, value_of(extent, sizes), isinstance(extent, Const), is_reduction)


def _results(final: Block, reduction: Block, rank: int, sizes: Mapping[Var, int]) -> tuple[Operand, ...] | None:
    """Accesses of every result; None where the epilogue does not visit the results one by one.

    Args:
        final, reduction: the epilogue's block and the reduction's; one block where there is no epilogue.
        rank: number of the problem's axes.
        sizes: values of the symbols.
    """
    spatial = [i for i in reduction.iters if i.kind is IterKind.SPATIAL]
    variables = [i.var for i in final.iters]
    if final is not reduction:
        identity = tuple(variables)
        sums = [x for x in loads(final.body.value) if x.buffer == reduction.body.buffer]
        same_extents = [i.extent for i in final.iters] == [i.extent for i in spatial]
        if not same_extents or not sums or any(x.indices != identity for x in sums):
            return None
    else:
        variables = variables[: len(spatial)]
    if reduction.body.indices != tuple(i.var for i in spatial):
        return None
    if final is reduction:
        store = extract_operand(final.body.buffer, final.body.indices, variables, frozenset(), sizes, True)
        operands = None if store is None else (store,)
    else:
        operands = extract_operands(final, variables, frozenset(), sizes, reduction.body.buffer)
    if operands is None:
        return None
    # results do not depend on the reduction axes
    zeros = (0,) * (rank - len(spatial))
    return tuple(
        Operand(o.buffer, o.element_bytes, o.constant, o.shape, tuple((*row, *zeros) for row in o.index), o.written)
        for o in operands
    )
