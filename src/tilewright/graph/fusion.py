"""How the computations of a kernel are fused: a pattern, and the facts that schedules are chosen by.

Decided once, where a kernel is made, and carried by kernels and tasks: optimizers read it instead of rediscovering it
from loops.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tilewright.expr.computation import Computation, iteration_space_size
from tilewright.expr.nodes import Buffer, Const, Expr
from tilewright.expr.pattern import Pattern, pattern_of, reads_elementwise
from tilewright.expr.traversal import free_vars, is_one, loads

MAX_INTERMEDIATE_BYTES = 1 << 20
"""Bytes of intermediates of one row, which are private to a thread: on its stack, or, where they exceed it, in its
slice of the workspace (`loops/private_memory.py`). Softmax of rows of 50,000 to 250,000 elements takes 0.70 to 0.78 of
the time of a kernel per stage; of 500,000 elements, which leave a second-level cache of 2 MiB, 0.96."""


MIN_ROW_RESULTS = 32
"""Results of a row that are worth vectors of their own: a few vectors of any target."""


class FusionPattern(StrEnum):
    """How the computations of a kernel belong together."""

    ELEMENTWISE = "element-wise"
    """Computations without reductions over one iteration space, each of which is a result of the kernel."""

    REDUCTION = "reduction"
    """One reduction, alone or with an element-wise epilogue."""

    ROWWISE = "row-wise"
    """Several computations that run one after the other for a few rows at a time; intermediates are on the stack."""

    CHAIN = "chain"
    """Several contractions that read each other's results, depthwise convolutions included, with other computations
    between them, tile by tile; intermediates are in fast memory."""

    SEQUENCE = "sequence"
    """Several computations, one after the other, with intermediates in memory."""


class StageRole(StrEnum):
    """What a computation is within a row, or within a kernel that is not row-wise."""

    ELEMENTWISE = "element-wise"
    """It reduces nothing."""

    ROW_REDUCTION = "row reduction"
    """It reduces a row to one value: an intermediate, or one of several results of the kernel."""

    REGISTER_REDUCTION = "register reduction"
    """It reduces to several values per row, or to the only result of the kernel, and accumulates in registers."""

    CONTRACTION = "contraction"
    """A contraction of a chain, which sums products of operands or of results of earlier stages."""

    EPILOGUE = "epilogue"
    """Element-wise, and the only reader of a register reduction, which it stores the results of."""


@dataclass(frozen=True, slots=True)
class FusedStage:
    """One computation of a kernel.

    Attributes:
        role: what it is.
        epilogue: position of the stage that stores the results of a register reduction; None where there is none.
    """

    role: StageRole
    epilogue: int | None = None


@dataclass(frozen=True, slots=True)
class Fusion:
    """How the computations of a kernel are fused.

    Attributes:
        pattern: how they belong together.
        outer_rank: number of leading axes, the rows, that all computations share and access each other's results at.
        stages: the computations in order of execution.
    """

    pattern: FusionPattern
    outer_rank: int
    stages: tuple[FusedStage, ...]


def fusion_of(stages: Sequence[Computation], outputs: Collection[str]) -> Fusion:
    """How the computations of a kernel are fused.

    Args:
        stages: in order of execution.
        outputs: names of the buffers that the kernel writes for others; all other results are intermediates.
    """
    rank = row_rank(stages, [s.output for s in stages if s.output.name in outputs])
    return Fusion(_pattern(stages, outputs, rank), rank, _roles(stages, outputs, rank))


def _pattern(stages: Sequence[Computation], outputs: Collection[str], rank: int) -> FusionPattern:
    if len(stages) == 1:
        return FusionPattern.REDUCTION if stages[0].is_reduction else FusionPattern.ELEMENTWISE
    if share_iteration_space(stages) and all(s.output.name in outputs for s in stages):
        return FusionPattern.ELEMENTWISE
    if len(stages) == 2 and stages[0].output.name not in outputs and has_elementwise_epilogue(stages):
        return FusionPattern.REDUCTION
    if has_several_contractions(stages):
        return FusionPattern.CHAIN
    is_rowwise = have_private_rows(stages, outputs, rank)
    return FusionPattern.ROWWISE if is_rowwise else FusionPattern.SEQUENCE


def _roles(stages: Sequence[Computation], outputs: Collection[str], rank: int) -> tuple[FusedStage, ...]:
    result: list[FusedStage] = []
    epilogues: set[int] = set()
    contractions = StageRole.CONTRACTION if has_several_contractions(stages) else None
    for k, s in enumerate(stages):
        if k in epilogues:
            result.append(FusedStage(StageRole.EPILOGUE))
        elif contractions is not None and pattern_of(s) is Pattern.CONTRACTION:
            result.append(FusedStage(contractions))
        elif not s.is_reduction:
            result.append(FusedStage(StageRole.ELEMENTWISE))
        elif len(s.axes) > rank or (s.output.name in outputs and len(outputs) == 1):
            epilogue = None if s.output.name in outputs else epilogue_of(stages, k)
            epilogues |= set() if epilogue is None else {epilogue}
            result.append(FusedStage(StageRole.REGISTER_REDUCTION, epilogue))
        else:
            result.append(FusedStage(StageRole.ROW_REDUCTION))
    return tuple(result)


def has_several_contractions(stages: Sequence[Computation]) -> bool:
    """Whether computations are a fused chain: several contractions, or one of what a window computes."""
    patterns = [pattern_of(s) for s in stages]
    contractions = patterns.count(Pattern.CONTRACTION)
    return contractions > 1 or (contractions == 1 and Pattern.WINDOW in patterns)


def epilogue_of(stages: Sequence[Computation], reduction: int) -> int | None:
    """Position of the only reader of a reduction's results, if it reads them element by element."""
    output = stages[reduction].output
    readers = [k for k, s in enumerate(stages) if output in s.inputs]
    is_epilogue = len(readers) == 1 and _is_elementwise_reader(stages[readers[0]], stages[reduction])
    return readers[0] if is_epilogue else None


def _is_elementwise_reader(reader: Computation, producer: Computation) -> bool:
    return not reader.is_reduction and reads_elementwise(reader, producer.output)


def has_elementwise_epilogue(stages: Sequence[Computation]) -> bool:
    """Whether the last stage reads the results of the reduction before it at its own indices."""
    return len(stages) > 1 and stages[-2].is_reduction and _is_elementwise_reader(stages[-1], stages[-2])


def share_iteration_space(stages: Sequence[Computation]) -> bool:
    """Whether stages without reductions have the same axes, and read each other's results at their own indices."""
    rank = len(stages[0].axes)
    is_elementwise = all(len(s.axes) == rank and not s.is_reduction for s in stages)
    return is_elementwise and shared_outer_axes(stages) == rank


def row_rank(stages: Sequence[Computation], outputs: Collection[Buffer]) -> int:
    """The number of leading axes that are rows.

    All shared ones, unless every stage of a kernel with several outputs would have one result per row and its operands
    are not contiguous along the reductions, as those of windows: then rows are long enough for vectors of results, and
    0 where there are no such rows.

    Args:
        stages: in order of execution.
        outputs: the results that are stored.
    """
    rank = shared_outer_axes(stages)
    if len(outputs) < 2 or not all(is_one(row_size(s, rank)) for s in stages):
        return rank
    if all(_is_contiguous_reduction(s) for s in stages if s.is_reduction):
        return rank
    while rank > 0 and _is_below(row_size(stages[-1], rank), MIN_ROW_RESULTS):
        rank -= 1
    return rank


def _is_contiguous_reduction(s: Computation) -> bool:
    """Whether the last index of a load moves along the reduction alone."""
    axes, reduced = ({a.var for a in group} for group in (s.axes, s.reduce_axes))
    used = [free_vars(x.indices[-1]) for x in loads(s.body) if x.indices]
    return any(v & reduced and not v & axes for v in used)


def _is_below(size: Expr, limit: int) -> bool:
    return isinstance(size, Const) and size.value < limit


def shared_outer_axes(stages: Sequence[Computation]) -> int:
    """The number of leading axes that are rows: every stage has them and reads results of others at these very axes.

    0 where a stage reads such a result at data-dependent indices.
    """
    results = {s.output for s in stages}
    last = stages[-1]
    rank = min(len(s.axes) for s in stages)
    for s in stages:
        rank = min(rank, _common_prefix([a.extent for a in s.axes[:rank]], [a.extent for a in last.axes[:rank]]))
        for x in loads(s.body):
            if x.buffer in results:
                outer_vars = [a.var for a in s.axes[:rank]]
                index = zip(x.indices, x.buffer.shape, outer_vars, strict=False)
                rank = min(rank, _common_prefix([v if is_one(n) else i for i, n, v in index], outer_vars))
                rank = 0 if any(loads(i) for i in x.indices) else rank
    return rank


def _common_prefix(left: Sequence[Expr], right: Sequence[Expr]) -> int:
    """The length of the common prefix of two sequences of expressions."""
    pairs = list(zip(left, right, strict=False))
    return next((k for k, (a, b) in enumerate(pairs) if a is not b), len(pairs))


def have_private_rows(stages: Sequence[Computation], outputs: Collection[str], rank: int) -> bool:
    """Whether the intermediates of one row may be private to a thread: `MAX_INTERMEDIATE_BYTES` of literal size.

    Those of symbolic size may, too, where every reduction gives one value per row. They are as long as what the rows
    are computed of, and rows beyond the caches cost no more than stages one after the other. Register tiles of
    reductions with several values per row need literal sizes.
    """
    sizes = [row_size(s, rank) * s.output.dtype.bytes for s in stages if s.output.name not in outputs]
    literals = [int(n.value) for n in sizes if isinstance(n, Const)]
    if len(literals) < len(sizes) and any(s.is_reduction and not is_one(row_size(s, rank)) for s in stages):
        return False
    return sum(literals) <= MAX_INTERMEDIATE_BYTES


def row_size(s: Computation, rank: int) -> Expr:
    """Number of results of a computation in one row."""
    return iteration_space_size(s.axes[rank:])
