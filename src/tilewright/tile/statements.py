"""Statements of a tile tree: the blocks of a kernel, those that staging adds, and the axes that their iterations share.

An axis is a set of iteration variables, named after the first one. A block that reads an element of another block's
buffer at its plain iteration variable shares the axis along which that one has written it. Results of the kernel share
their axes of equal position and extent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.traversal import loads
from tilewright.layout.layout import Layout
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.tile.schedule_helpers import apply_and_get_blocks
from tilewright.tile.tree import CacheRead, CacheWrite, Inline, Pack, RFactor, Staging


@dataclass(frozen=True, slots=True)
class StatementAxis:
    """What an iteration variable of a block iterates over.

    Attributes:
        axis: name of the axis.
        unit: points of the axis per value of the variable.
        is_reduction: whether the block combines values along it.
    """

    axis: str
    unit: int
    is_reduction: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a kernel that is being lowered.

    Attributes:
        block: name of its block.
        axes: per iteration variable of the block.
    """

    block: str
    axes: tuple[StatementAxis, ...]

    def position(self, axis: str, step: int) -> int | None:
        """The position of the iteration variable that a loop over an axis drives: that of the largest unit that the
        loop's step is a multiple of; None where the statement has none."""
        units = [(a.unit, -k) for k, a in enumerate(self.axes) if a.axis == axis and step % a.unit == 0]
        return -max(units)[1] if units else None

    def reduces(self, axis: str, step: int) -> bool:
        """Whether a loop over an axis drives a reduction."""
        position = self.position(axis, step)
        return position is not None and self.axes[position].is_reduction


def statements_of(func: Func) -> dict[str, Statement]:
    """The statements of untransformed loops by name, which is that of their block."""
    names = axis_names(func)
    return {
        b.name: Statement(
            b.name,
            tuple(
                StatementAxis(name, 1, i.kind is IterKind.REDUCE)
                for name, i in zip(names[b.name], b.iters, strict=True)
            ),
        )
        for b in blocks(func.body)
    }


def axis_names(func: Func) -> dict[str, tuple[str, ...]]:
    """The axes of every block's iteration variables, by the block's name."""
    names = _axis_names(func)
    return {b.name: tuple(names[i.var] for i in b.iters) for b in blocks(func.body)}


def extents_by_axis(func: Func) -> dict[str, Expr]:
    """The points of every axis."""
    names = _axis_names(func)
    return {names[i.var]: i.extent for b in blocks(func.body) for i in b.iters}


def _axis_names(func: Func) -> dict[Var, str]:
    """The axis of every iteration variable; that of the first of several variables gives the name."""
    writers = {b.body.buffer: b for b in blocks(func.body)}
    names: dict[Var, str] = {}
    for b in blocks(func.body):
        shared = _shared_vars(b, writers)
        taken: set[str] = set()
        for i in b.iters:
            name = names.get(shared[i.var], i.var.name) if i.var in shared else i.var.name
            names[i.var] = name if name not in taken else i.var.name
            taken.add(names[i.var])
    return _with_common_results(func, names)


def _with_common_results(func: Func, names: Mapping[Var, str]) -> dict[Var, str]:
    """The axes where results of the kernel share those of equal position and extent."""
    first: dict[tuple[int, Expr], str] = {}
    renamed: dict[str, str] = {}
    for b in blocks(func.body):
        if b.body.buffer in func.outputs:
            for k, i in enumerate(b.iters):
                if i.kind is IterKind.SPATIAL:
                    renamed.setdefault(names[i.var], first.setdefault((k, i.extent), names[i.var]))
    common: dict[Var, str] = {}
    for b in blocks(func.body):
        new = [renamed.get(names[i.var], names[i.var]) for i in b.iters]
        is_ambiguous = len(set(new)) < len(new)
        common |= {i.var: names[i.var] if is_ambiguous else n for i, n in zip(b.iters, new, strict=True)}
    return common


def _shared_vars(reader: Block, writers: Mapping[Buffer, Block]) -> dict[Var, Var]:
    """Per iteration variable of a block the first one, of an earlier block, whose axis it shares.

    All reads of a buffer must be at the same variable in the dimension, of the same extent.
    """
    extents = {i.var: i.extent for i in reader.iters}
    shared: dict[Var, Var] = {}
    for buffer, writer in writers.items():
        reads = [x for x in loads(reader.body.value) if x.buffer == buffer]
        if writer is reader or not reads:
            continue
        for d, written in enumerate(writer.body.indices):
            index = reads[0].indices[d]
            if not (isinstance(index, Var) and isinstance(written, Var) and index in extents):
                continue
            if all(x.indices[d] is index for x in reads):
                extent = next((i.extent for i in writer.iters if i.var is written), None)
                if extent is extents[index]:
                    shared.setdefault(index, written)
    return shared


def new_statement(stage: Staging) -> str | None:
    """The name of the statement that staging adds, if it adds one."""
    if isinstance(stage, Inline):
        return None
    return stage.partial if isinstance(stage, RFactor) else stage.copy


def apply_staging(
    s: Schedule, staging: tuple[Staging, ...], statements: Mapping[str, Statement]
) -> dict[str, Statement]:
    """Applies staging to a schedule; returns the statements with the new ones.

    Raises:
        ScheduleError: a statement is unknown or its name taken, or the primitive is not legal for these loops.
    """
    statements = dict(statements)
    for stage in staging:
        if stage.statement not in statements:
            raise ScheduleError(f"there is no statement {stage.statement!r}", where="tile tree")
        if new_statement(stage) in statements:
            raise ScheduleError(f"there are two statements {new_statement(stage)!r}", where="tile tree")
        statement = statements[stage.statement]
        match stage:
            case RFactor():
                statements[stage.statement], statements[stage.partial] = _split_reduction(s, stage, statement)
            case CacheWrite():
                statements[stage.copy] = _cache_write(s, statement)
            case Pack():
                statements[stage.copy] = _pack(s, stage, statement)
            case CacheRead():
                statements[stage.copy] = _cache_read(s, stage, statement)
            case Inline():
                s.do("inline", statement.block)
                del statements[stage.statement]
    return statements


def _split_reduction(s: Schedule, stage: RFactor, statement: Statement) -> tuple[Statement, Statement]:
    """The statement that combines partial results, and the one that computes them."""
    reduce = [k for k, a in enumerate(statement.axes) if a.is_reduction]
    position = next((k for k in reduce if statement.axes[k].axis == stage.axis), None)
    if position is None:
        what = f"statement {stage.statement!r} does not reduce along {stage.axis!r}"
        raise ScheduleError(what, where="tile tree")
    unit = statement.axes[position].unit
    if stage.size % unit:
        raise ScheduleError(f"expected partial sums of multiples of {unit} points, got {stage.size}", where="tile tree")
    factor = stage.size // unit
    (block,) = apply_and_get_blocks(s, "rfactor", statement.block, reduce.index(position), factor, None, stage.lanes)
    combined = stage.size if not stage.lanes else unit
    inside = unit if not stage.lanes else stage.size
    spatial = tuple(a for a in statement.axes if not a.is_reduction)
    total = Statement(statement.block, (*spatial, StatementAxis(stage.axis, combined, True)))
    reductions = tuple(StatementAxis(stage.axis, inside, True) if k == position else statement.axes[k] for k in reduce)
    return total, Statement(block, (*spatial, StatementAxis(stage.axis, combined, False), *reductions))


def _cache_write(s: Schedule, statement: Statement) -> Statement:
    """The statement that copies a statement's results."""
    node = find_block(s.func, statement.block)[0]
    position = {i.var: k for k, i in enumerate(node.iters)}
    (block,) = apply_and_get_blocks(s, "cache_write", statement.block)
    axes: list[StatementAxis] = []
    for d, index in enumerate(node.body.indices):
        known = statement.axes[position[index]] if isinstance(index, Var) and index in position else None
        axes.append(known or StatementAxis(f"{block}.{d}", 1, False))
    return Statement(block, tuple(axes))


def _pack(s: Schedule, stage: Pack, statement: Statement) -> Statement:
    """The statement that fills a packed copy: over panels, the other dimensions and the points of a panel."""
    (block,) = apply_and_get_blocks(s, "pack", statement.block, stage.operand, stage.dim, stage.width)
    rank = len(find_block(s.func, block)[0].iters) - 1
    others = [d for d in range(rank) if d != stage.dim]
    panel, point = (StatementAxis(f"{stage.copy}.{name}", 1, False) for name in ("panel", "point"))
    return Statement(block, (panel, *(StatementAxis(f"{stage.copy}.{d}", 1, False) for d in others), point))


def _cache_read(s: Schedule, stage: CacheRead, statement: Statement) -> Statement:
    """The statement that fills a copy, over its dimensions in the order of storage."""
    operand = _operand(s, stage, statement)
    order = stage.order or tuple(range(operand.rank))
    layout = Layout.of(operand.shape).reorder(order) if stage.order else None
    (block,) = apply_and_get_blocks(s, "cache_read", statement.block, stage.operand, None, "memory", layout)
    return Statement(block, tuple(StatementAxis(f"{stage.copy}.{d}", 1, False) for d in order))


def _operand(s: Schedule, stage: CacheRead, statement: Statement) -> Buffer:
    node = find_block(s.func, statement.block)[0]
    operands: dict[str, Load] = {x.buffer.name: x for x in loads(node.body.value)}
    if stage.operand not in operands:
        what = f"statement {stage.statement!r} does not read {stage.operand!r}"
        raise ScheduleError(what, where="tile tree", hint=f"it reads {', '.join(operands)}")
    return operands[stage.operand].buffer
