"""Which statements of a chain may use the running result of a reduction that goes on along the same axis.

The weighted sum of attention goes along the keys, and so does the maximum that its weights depend on. In one loop over
tiles of keys it uses the maximum so far, and is rescaled when that changes (`schedule/online_rescale.py`). A statement
that cannot be rescaled, such as a product that follows a layer norm, needs the finished result: then the axis has to be
one tile, so that the reduction is finished before the statement begins.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Const, Expr, Load
from tilewright.expr.traversal import loads, replace_loads
from tilewright.optimize.chains.stages import ChainStage
from tilewright.schedule.online_rescale import RunningExtremum, rescale_rate, split_invariant_factors


def running_reads(
    stages: Sequence[ChainStage], outputs: Collection[Buffer]
) -> tuple[Mapping[str, frozenset[str]], frozenset[str]]:
    """Where running results are enough, and the axes that have to be one tile because they are not.

    Args:
        stages: the statements in the order of execution.
        outputs: the results of the kernel.

    Returns:
        By the name of a statement, the statements whose running results it uses; and axes.
    """
    chain = _Statements(stages, {s.buffer: s for s in stages}, outputs)
    online: dict[str, frozenset[str]] = {}
    whole: set[str] = set()
    for stage in stages:
        running = [w for w in stages if w.name in stage.reads and _is_running(w, stage)]
        rescaled = [w for w in running if chain.is_rescaled(stage, w)]
        online[stage.name] = frozenset(w.name for w in rescaled)
        whole |= {a for w in running if w not in rescaled for a in w.reduced if a in stage.axes}
    return {name: names for name, names in online.items() if names}, frozenset(whole)


def _is_running(writer: ChainStage, reader: ChainStage) -> bool:
    """Whether a statement reduces along an axis of another one, which sees running results in the loop over it."""
    return any(a in reader.axes for a in writer.reduced)


@dataclass(frozen=True, slots=True)
class _Statements:
    """The statements of a chain, those that write a buffer, and the results of the kernel."""

    stages: Sequence[ChainStage]
    writers: Mapping[Buffer, ChainStage]
    outputs: Collection[Buffer]

    def is_rescaled(self, stage: ChainStage, writer: ChainStage) -> bool:
        """Whether a statement's result is corrected when a running one that it reads changes: a sum is rescaled, and so
        are all the sums that read an element-wise result."""
        if stage.combined[0] is not None:
            return self._can_rescale(stage, writer)
        readers = [s for s in self.stages if stage.name in s.reads]
        if stage.buffer in self.outputs or not readers:
            return False
        return all(self.is_rescaled(r, writer) for r in readers)

    def _can_rescale(self, stage: ChainStage, writer: ChainStage) -> bool:
        """Whether a reduction can be rescaled when the running result of another one changes: as `rolling_update` does,
        once element-wise statements are substituted into it."""
        op, value = stage.combined
        if op != "add" or set(stage.reduced) != set(writer.reduced):
            return False
        value = self._inlined(value, stage)
        running = [x for x in loads(value) if x.buffer in self.writers and _is_running(self.writers[x.buffer], stage)]
        variables = [stage.variable(a) for a in stage.reduced]
        core = split_invariant_factors(value, variables, [x.buffer for x in running]).core
        return all(_has_rate(core, x, writer) for x in running if x in loads(core) and x.buffer == writer.buffer)

    def _inlined(self, value: Expr, stage: ChainStage) -> Expr:
        """A value with the element-wise results that depend on running ones substituted."""

        def replace(x: Load) -> Expr:
            producer = self.writers.get(x.buffer)
            if producer is None or producer.combined[0] is not None or x.indices != producer.node.body.indices:
                return x
            inner = self._inlined(producer.combined[1], stage)
            read = (self.writers[y.buffer] for y in loads(inner) if y.buffer in self.writers)
            return inner if any(_is_running(w, stage) for w in read) else x

        return replace_loads(value, replace)


def _has_rate(core: Expr, x: Load, writer: ChainStage) -> bool:
    """Whether a value has a factor by which it changes when a running extremum does."""
    (op, value), init = writer.combined, writer.node.init
    if op not in ("max", "min") or init is None or x.indices != writer.node.body.indices:
        return False
    if not isinstance(init.value, Const):
        return False
    try:
        rescale_rate(core, RunningExtremum(x, value, op, init.value), "fused chain")
    except ScheduleError:
        return False
    return True
