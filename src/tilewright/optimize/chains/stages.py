"""The computations of a fused chain as its tree sees them: what each one is, its axes, and what it reads.

A chain is a kernel of contractions that read each other's results, with element-wise work and reductions of rows, such
as those of a softmax, between them. All contractions share the *row axis*: the loop over its tiles is the one that
fuses them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var
from tilewright.expr.traversal import free_vars, is_one, loads
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.ir import Block, Func, IterKind, Store, blocks
from tilewright.optimize.strides import contraction_operands
from tilewright.schedule.schedule import Schedule
from tilewright.tile.statements import axis_names, extents_by_axis

PLACE = "fused chain"
"""Where the errors of this package are."""


class StageKind(StrEnum):
    """What a computation of a chain is."""

    CONTRACTION = "contraction"
    """It sums products of two operands."""

    ROW_REDUCTION = "row reduction"
    """It reduces along another axis than the row axis, and is no contraction."""

    ELEMENTWISE = "element-wise"
    """It reduces nothing."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One of the two operands of a contraction.

    Attributes:
        load: the access.
        axes: per dimension of the buffer the axis that indexes it alone; None where there is no such one.
    """

    load: Load
    axes: tuple[str | None, ...]

    @property
    def buffer(self) -> str:
        """The name of its buffer."""
        return self.load.buffer.name


# without slots, because cached properties need a place
@dataclass(frozen=True)
class ChainStage:
    """One computation.

    Attributes:
        node: its block, over variables that stand for axes: equal elements are equal expressions in all stages.
        axes: the axes of the block's iteration variables.
        kind: what it is.
        reads: names of the stages whose results it reads, in the order of the first read.
    """

    node: Block
    axes: tuple[str, ...]
    kind: StageKind
    reads: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its block."""
        return self.node.name

    @property
    def buffer(self) -> Buffer:
        """What it writes."""
        return self.node.body.buffer

    @cached_property
    def combined(self) -> tuple[str | None, Expr]:
        """The reducer, None where it accumulates nothing, and the value that is combined or stored."""
        matched = None if self.node.init is None else match_accumulation(self.node.body)
        return matched or (None, self.node.body.value)

    @cached_property
    def spatial(self) -> tuple[str, ...]:
        """The axes of its results."""
        return tuple(a for a, i in zip(self.axes, self.node.iters, strict=True) if i.kind is IterKind.SPATIAL)

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """The axes that it reduces."""
        return tuple(a for a, i in zip(self.axes, self.node.iters, strict=True) if i.kind is IterKind.REDUCE)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The two operands of a contraction."""
        pair = contraction_operands(self.node) if self.kind is StageKind.CONTRACTION else None
        return () if pair is None else tuple(Operand(x, self.index_axes(x)) for x in pair)

    def variable(self, axis: str) -> Var:
        """The iteration variable that runs along an axis."""
        return self.node.iters[self.axes.index(axis)].var

    def index_axes(self, load: Load) -> tuple[str | None, ...]:
        """Per dimension of a load the axis that indexes it alone; None where there is no such one."""
        names = {i.var: a for a, i in zip(self.axes, self.node.iters, strict=True)}
        return tuple(names.get(i) if isinstance(i, Var) else None for i in load.indices)

    def axes_of(self, load: Load) -> frozenset[str]:
        """The axes that the indices of a load depend on."""
        used = {v for i in load.indices for v in free_vars(i)}
        return frozenset(a for a, i in zip(self.axes, self.node.iters, strict=True) if i.var in used)


@dataclass(frozen=True)
class ChainStages:
    """A chain.

    Attributes:
        stages: the computations in order of execution.
        extents: the points of every axis.
        row: the row axis.
        without_rows: stages that were substituted into their readers, as they have no rows: parts of masks, casts of
            weights.
    """

    stages: tuple[ChainStage, ...]
    extents: Mapping[str, Expr]
    row: str
    without_rows: tuple[str, ...] = ()

    @cached_property
    def outer(self) -> tuple[str, ...]:
        """The other axes that index the results of all contractions and the final one: those of batches and heads."""
        common = [set(s.spatial) for s in (*self.contractions, self.last)]
        return tuple(a for a in self.last.spatial if a != self.row and all(a in x for x in common))

    @property
    def contractions(self) -> tuple[ChainStage, ...]:
        """The contractions in order."""
        return tuple(s for s in self.stages if s.kind is StageKind.CONTRACTION)

    @property
    def last(self) -> ChainStage:
        """The stage that writes the result."""
        return self.stages[-1]

    def stage(self, name: str) -> ChainStage:
        """The stage of a name."""
        return next(s for s in self.stages if s.name == name)

    def readers(self, name: str) -> list[ChainStage]:
        """The stages that read the results of one."""
        return [s for s in self.stages if name in s.reads]

    def points(self, axis: str) -> int | None:
        """The points of an axis; None where they are symbolic."""
        extent = self.extents[axis]
        return int(extent.value) if isinstance(extent, Const) else None

    @staticmethod
    @lru_cache(maxsize=64)
    def of(func: Func) -> "ChainStages":
        """The chain of a kernel's untransformed loops; the same object for all trees of the kernel.

        Raises:
            ScheduleError: the kernel is no chain that a tree can be built for; says why.
        """
        names, written = axis_names(func), {b.body.buffer: b.name for b in blocks(func.body)}
        results = [written[b] for b in func.outputs if b in written]
        if results != [blocks(func.body)[-1].name]:
            what = f"expected the results of the last stage alone to be stored, got {', '.join(map(repr, results))}"
            raise ScheduleError(what, where=PLACE)
        extents = extents_by_axis(func)
        empty = [a for a, n in extents.items() if isinstance(n, Const) and n.value == 0]
        if empty:
            raise ScheduleError(f"axis {empty[0]!r} has no points", where=PLACE)
        stages = chain_stages(func, names)
        row = _common_row_axis(stages, extents)
        without_rows = tuple(s.name for s in stages if row not in s.spatial)
        if without_rows:
            stages = chain_stages(_inline_stages(func, stages, without_rows, row), names)
            row = _common_row_axis(stages, extents)
        return ChainStages(stages, extents, row, without_rows)


def _inline_stages(func: Func, stages: Sequence[ChainStage], names: Sequence[str], row: str) -> Func:
    """The function with stages that have no rows substituted into their readers.

    Raises:
        ScheduleError: one of them can't be substituted into its readers.
    """
    s = Schedule(func)
    for stage in stages:
        if stage.name in names:
            if stage.kind is not StageKind.ELEMENTWISE:
                what = f"{stage.name!r} has no axis {row!r} of rows; it is {stage.kind}, expected element-wise work"
                raise ScheduleError(what, where=PLACE)
            s.do("inline", stage.name)
    return s.func


def chain_stages(func: Func, names: Mapping[str, tuple[str, ...]]) -> tuple[ChainStage, ...]:
    """The computations of untransformed loops in order, each with the axes that it has by `names`."""
    writers = {b.body.buffer.name: b.name for b in blocks(func.body)}
    variables: dict[str, Var] = {}
    stages: list[ChainStage] = []
    for b in blocks(func.body):
        shared = {i.var: variables.setdefault(a, i.var) for a, i in zip(names[b.name], b.iters, strict=True)}
        stages.append(_stage(_with_variables(b, shared), names[b.name], writers))
    return tuple(stages)


def _with_variables(node: Block, variables: Mapping[Var, Var]) -> Block:
    """A block over other iteration variables."""

    def renamed(store: Store) -> Store:
        indices = tuple(substitute(i, variables) for i in store.indices)
        return Store(store.buffer, indices, substitute(store.value, variables))

    iters = tuple(replace(i, var=variables[i.var]) for i in node.iters)
    return replace(node, iters=iters, body=renamed(node.body), init=None if node.init is None else renamed(node.init))


def _stage(node: Block, axes: tuple[str, ...], writers: Mapping[str, str]) -> ChainStage:
    read = (writers.get(x.buffer.name) for x in loads(node.body.value))
    is_reduction = any(i.kind is IterKind.REDUCE for i in node.iters)
    kind = StageKind.ELEMENTWISE
    if is_reduction:
        kind = StageKind.ROW_REDUCTION if contraction_operands(node) is None else StageKind.CONTRACTION
    return ChainStage(node, axes, kind, tuple(dict.fromkeys(x for x in read if x is not None and x != node.name)))


def _common_row_axis(stages: Sequence[ChainStage], extents: Mapping[str, Expr]) -> str:
    """The innermost axis of the result that indexes the results of all contractions, but only one operand of each.

    Raises:
        ScheduleError: there is none; or fewer than two contractions.
    """
    contractions = [s for s in stages if s.kind is StageKind.CONTRACTION]
    if len(contractions) < 2:
        raise ScheduleError(f"expected at least two contractions, got {len(contractions)}", where=PLACE)
    for s in contractions:
        if len(s.reduced) != 1:
            raise ScheduleError(f"{s.name!r} sums along {len(s.reduced)} axes, expected one", where=PLACE)
    candidates = [
        a for a in stages[-1].spatial
        if all(a in s.spatial and sum(a in o.axes for o in s.operands) == 1 for s in contractions)
    ]  # fmt: skip
    wide = [a for a in candidates if not is_one(extents[a])]
    if not candidates:
        shown = " and ".join(repr(s.name) for s in contractions)
        raise ScheduleError(f"no axis is that of rows in all of {shown}", where=PLACE)
    return (wide or candidates)[-1]
