"""Which statements of a chain may use the running result of a reduction that goes on along the same axis.

The weighted sum of attention goes along the keys, and so does the maximum that its weights depend on. In one loop over
tiles of keys it uses the maximum so far, and is rescaled when that changes (`schedule/online_rescale.py`). A statement
that cannot be rescaled, such as a product that follows a layer norm, needs the finished result: then the axis has to be
one tile, so that the reduction is finished before the statement begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var
from tilewright.expr.traversal import loads, replace_loads
from tilewright.schedule.online_rescale import RunningExtremum, rescale_rate, split_invariant_factors


@dataclass(frozen=True, slots=True)
class ReductionView:
    """A statement over variables that stand for axes, so that equal elements are equal expressions.

    Attributes:
        name: of the block.
        axes: its axes.
        reductions: those that it reduces along.
        reduction_vars: their variables.
        op: the reducer; None where it reduces nothing.
        value: what is combined or stored.
        initial: the first value of a reduction.
        buffer: what it writes.
        indices: at which element.
        is_output: whether that is a result of the kernel.
    """

    name: str
    axes: frozenset[str]
    reductions: frozenset[str]
    reduction_vars: tuple[Expr, ...]
    op: str | None
    value: Expr
    initial: Const | None
    buffer: Buffer
    indices: tuple[Expr, ...]
    is_output: bool


def running_reads(views: Sequence[ReductionView]) -> tuple[Mapping[str, frozenset[str]], frozenset[str]]:
    """Where running results are enough, and the axes that have to be one tile because they are not.

    Args:
        views: the statements in the order of execution.

    Returns:
        By the name of a statement, the statements whose running results it uses; and axes.
    """
    writers = {v.buffer.name: v for v in views}
    online: dict[str, frozenset[str]] = {}
    whole: set[str] = set()
    for view in views:
        read = dict.fromkeys(writers[x.buffer.name].name for x in loads(view.value) if x.buffer.name in writers)
        running = [w for w in views if w.name in read and w.reductions & view.axes]
        rescaled = [w for w in running if _is_rescaled(view, w, views)]
        online[view.name] = frozenset(w.name for w in rescaled)
        whole |= {a for w in running if w not in rescaled for a in w.reductions & view.axes}
    return {name: names for name, names in online.items() if names}, frozenset(whole)


def _is_rescaled(view: ReductionView, writer: ReductionView, views: Sequence[ReductionView]) -> bool:
    """Whether a statement's result is corrected when a running one that it reads changes: a sum is rescaled, and so are
    all the sums that read an element-wise result."""
    if view.op is not None:
        return _can_rescale(view, writer, views)
    readers = [v for v in views if view.buffer in {x.buffer for x in loads(v.value)}]
    if view.is_output or not readers:
        return False
    return all(_can_rescale(r, writer, views) if r.op is not None else _is_rescaled(r, writer, views) for r in readers)


def _can_rescale(view: ReductionView, writer: ReductionView, views: Sequence[ReductionView]) -> bool:
    """Whether a reduction can be rescaled when the running result of another one changes: as `rolling_update` does,
    once element-wise statements are substituted into it."""
    if view.op != "add" or view.reductions != writer.reductions:
        return False
    value = _inlined(view.value, view, views)
    by_buffer = {v.buffer: v for v in views}
    running = [x for x in loads(value) if x.buffer in by_buffer and by_buffer[x.buffer].reductions & view.axes]
    variables = [v for v in view.reduction_vars if isinstance(v, Var)]
    core = split_invariant_factors(value, variables, [x.buffer for x in running]).core
    return all(
        _has_rate(core, x, by_buffer[x.buffer]) for x in running if x in loads(core) and x.buffer == writer.buffer
    )


def _inlined(value: Expr, view: ReductionView, views: Sequence[ReductionView]) -> Expr:
    """A value with the element-wise results that depend on running ones substituted."""
    by_buffer = {v.buffer: v for v in views}

    def replace(x: Load) -> Expr:
        producer = by_buffer.get(x.buffer)
        if producer is None or producer.op is not None or x.indices != producer.indices:
            return x
        inner = _inlined(producer.value, view, views)
        is_running = any(by_buffer[y.buffer].reductions & view.axes for y in loads(inner) if y.buffer in by_buffer)
        return inner if is_running else x

    return replace_loads(value, replace)


def _has_rate(core: Expr, x: Load, writer: ReductionView) -> bool:
    """Whether a value has a factor by which it changes when a running extremum does."""
    if writer.op not in ("max", "min") or writer.initial is None or x.indices != writer.indices:
        return False
    try:
        rescale_rate(core, RunningExtremum(x, writer.value, writer.op, writer.initial), "fused chain")
    except ScheduleError:
        return False
    return True
