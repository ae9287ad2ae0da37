"""The chain of a kernel: its axes and statements, as the search sees them, from untransformed loops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Cast, Const, Expr, Load, Var
from tilewright.expr.operations import const
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.ir import Func
from tilewright.optimize.chains.online_sums import running_reads
from tilewright.optimize.chains.problem import Chain, ChainAxis, ChainStatement, ChainTensor, ChainWork, DimIndex
from tilewright.optimize.chains.stages import ChainStage, chain_stages
from tilewright.schedule.schedule import Schedule
from tilewright.tile.index_masks import index_masks
from tilewright.tile.operation_cost import computed_nodes, operation_cost
from tilewright.tile.shape_samples import ShapeSamples, value_of
from tilewright.tile.statements import axis_names, extents_by_axis

FLOPS_PER_INSTRUCTION = 2
"""Peak rates count a fused multiply-add, one instruction, as two operations."""


def extract_chain(func: Func, samples: ShapeSamples | None = None) -> Chain:
    """The chain of a kernel of two or more contractions; factors of rows are part of the statements that read them.

    Args:
        func: untransformed loops.
        samples: sizes of its symbols, of which the representative ones count; by default those of their ranges.

    Raises:
        ScheduleError: it has fewer contractions, a statement reads an intermediate other than element by element along
            its axes, or an axis that has to be one tile has a symbolic extent.
    """
    return _Extraction(_with_row_factors_inlined(func), samples or ShapeSamples.of(func.symbols)).chain()


def _with_row_factors_inlined(func: Func) -> Func:
    """The loops with factors of rows, such as 1 / sum of a softmax, substituted into readers along the reduced axis.

    A statement that multiplies by one may run in the loop over the reduction that it depends on, as the factor can be
    applied to the final sum instead; between the two it would have to wait for the end of the loop.
    """
    stages, s = chain_stages(func, axis_names(func)), Schedule(func)
    reduced = {x.name: x.reduced for x in stages}
    for stage in stages:
        needed = {a for name in stage.reads for a in reduced[name]}
        readers = [r for r in stages if stage.name in r.reads]
        is_factor = not stage.reduced and needed.isdisjoint(stage.axes) and stage.buffer in func.allocs
        if is_factor and any(not needed.isdisjoint(r.axes) for r in readers):
            s.do("inline", stage.name)
    return s.func


@dataclass(frozen=True)
class _Extraction:
    """What is known of a kernel while its chain is extracted."""

    func: Func
    samples: ShapeSamples

    @cached_property
    def stages(self) -> tuple[ChainStage, ...]:
        return chain_stages(self.func, axis_names(self.func))

    @cached_property
    def writers(self) -> Mapping[str, ChainStage]:
        """By the name of a buffer, the statement that writes it."""
        return {s.buffer.name: s for s in self.stages}

    @cached_property
    def axes(self) -> Mapping[Var, str]:
        """The axis that every iteration variable stands for."""
        return {i.var: a for s in self.stages for a, i in zip(s.axes, s.node.iters, strict=True)}

    @cached_property
    def extents(self) -> Mapping[str, Expr]:
        """The extent of every axis."""
        return extents_by_axis(self.func)

    def chain(self) -> Chain:
        """The chain."""
        for s in self.stages:
            self._check_reads(s)
            if s.node.init is not None and s.combined[0] is None:
                raise ScheduleError(f"{s.name!r} reduces, but does not accumulate", where=self._where)
        online, whole = running_reads(self.stages, self.func.outputs)
        statements = tuple(self._statement(s, online.get(s.name, frozenset())) for s in self.stages)
        count = sum(s.is_contraction for s in statements)
        if count < 2:
            raise ScheduleError(f"expected two or more contractions, got {count}", where=self._where)
        batch = self._batch_axes(statements)
        axes = tuple(self._chain_axis(name, batch, whole) for name in dict.fromkeys(self.axes.values()))
        chain = Chain(axes, statements, masks=index_masks(self.func), symbols=self.samples.representative)
        if not any(a.is_symbolic for a in axes):
            return chain
        shapes = self.samples.shapes
        samples = [
            replace(chain, axes=tuple(replace(a, extent=self._extent(a.name, x)) for a in axes), symbols=x)
            for x in shapes
        ]
        return replace(chain, samples=tuple(samples))

    def _chain_axis(self, name: str, batch: frozenset[str], whole: frozenset[str]) -> ChainAxis:
        is_symbolic = not isinstance(self.extents[name], Const)
        if is_symbolic and name in whole:
            what = f"axis {name!r} has to be one tile, but its size is symbolic"
            raise ScheduleError(what, where=self._where)
        extent = self._extent(name, self.samples.representative)
        largest = max(self._extent(name, x) for x in self.samples.shapes) if is_symbolic else extent
        return ChainAxis(name, extent, is_symbolic, name in batch, name in whole, largest=max(extent, largest))

    def _extent(self, name: str, sizes: Mapping[Var, int]) -> int:
        return max(1, value_of(self.extents[name], sizes))

    @property
    def _where(self) -> str:
        return f"fused chain {self.func.name!r}"

    def _check_reads(self, s: ChainStage) -> None:
        """Checks that a statement reads intermediates element by element along the axes that they were written
        along."""
        for x in loads(s.combined[1]):
            writer = self.writers.get(x.buffer.name)
            if writer is not None and x.indices != writer.node.body.indices:
                what = f"{s.name!r} reads {x.buffer.name!r} other than element by element along its own axes"
                raise ScheduleError(what, where=self._where)

    def _statement(self, s: ChainStage, online: frozenset[str]) -> ChainStatement:
        op, value = s.combined
        inputs = [x for x in loads(value) if x.buffer.name not in self.writers]
        return ChainStatement(
            name=s.name,
            axes=frozenset(s.axes),
            reductions=frozenset(s.reduced),
            is_contraction=op == "add" and self._factor_axes(value) is not None,
            work=self._work(op, value),
            loads=tuple(dict.fromkeys(map(self._tensor, inputs))),
            reads=s.reads,
            online=online,
            result=self._tensor(Load(s.buffer, s.node.body.indices)),
            is_output=s.buffer in self.func.outputs,
        )

    def _factor_axes(self, value: Expr) -> tuple[frozenset[str], frozenset[str]] | None:
        """The axes of the two factors of a product of loaded values, if they differ; None for other values."""
        while isinstance(value, Cast):
            value = value.a
        if not (isinstance(value, Binary) and value.op == "mul" and loads(value.a) and loads(value.b)):
            return None
        a, b = self._axes_of(value.a), self._axes_of(value.b)
        return None if a == b else (a, b)

    def _axes_of(self, e: Expr) -> frozenset[str]:
        return frozenset(self.axes[v] for v in free_vars(e) if v in self.axes)

    def _batch_axes(self, statements: Sequence[ChainStatement]) -> frozenset[str]:
        """The axes that both factors of every contraction have, and no statement reduces along."""
        shared: frozenset[str] = frozenset(self.axes.values())
        for stage, s in zip(self.stages, statements, strict=True):
            factors = self._factor_axes(stage.combined[1]) if s.is_contraction else None
            if factors is not None:
                shared &= factors[0] & factors[1]
            shared -= s.reductions
            if s.is_output:
                shared &= s.result.axes
        return shared

    def _work(self, op: str | None, value: Expr) -> tuple[ChainWork, ...]:
        """Operations of a value by the axes that they depend on. The addition of a product is one with its
        multiplication."""
        instructions: dict[frozenset[str], float] = {}
        for node in computed_nodes(value, conditions=True):
            if not isinstance(node, Load):
                own = self._axes_of(node)
                instructions[own] = instructions.get(own, 0.0) + operation_cost(node).throughput
        if op is not None:
            is_fused = op == "add" and isinstance(value, Binary) and value.op == "mul"
            own = self._axes_of(value)
            instructions[own] = instructions.get(own, 0.0) + (0.0 if is_fused else 1.0)
        return tuple(ChainWork(a, n * FLOPS_PER_INSTRUCTION) for a, n in instructions.items() if n)

    def _tensor(self, x: Load) -> ChainTensor:
        return ChainTensor(x.buffer.name, x.buffer.dtype.bytes, tuple(self._dim(i) for i in x.indices))

    def _dim(self, index: Expr) -> DimIndex:
        """The axes of an index with their coefficients; 1 for those of an index that is not linear, such as a
        quotient."""
        result: dict[str, int] = {}
        for var in sorted((v for v in free_vars(index) if v in self.axes), key=lambda v: v.name):
            step = substitute(index, {var: var + const(1)}) - index
            coefficient = abs(int(step.value)) if isinstance(step, Const) else 1
            result[self.axes[var]] = result.get(self.axes[var], 0) + coefficient
        return tuple(result.items())
