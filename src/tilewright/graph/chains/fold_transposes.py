"""Transposes inside of a chain: none of them is executed, as its readers read the source in another order."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var, const
from tilewright.expr.traversal import is_one, loads
from tilewright.graph.inline_elementwise import inline_into


def is_transpose(c: Computation) -> bool:
    """Whether a computation stores the elements of a buffer in another order, each once."""
    if c.is_reduction or not isinstance(c.body, Load):
        return False
    indices = [i for i, n in zip(c.body.indices, c.body.buffer.shape, strict=True) if not is_one(n)]
    axes: list[Expr] = [a.var for a in c.axes if not is_one(a.extent)]
    return len(indices) == len(set(indices)) == len(axes) and set(indices) == set(axes)


def fold_transposes(stages: Sequence[Computation], outputs: Collection[Buffer]) -> tuple[Computation, ...]:
    """The computations without transposes: readers of one read its source, and the only source of a stored one writes
    its result in that order.

    Args:
        stages: in order of execution.
        outputs: the results that are stored; these keep their names and shapes.
    """
    result = list(stages)
    for stage in stages:
        if not is_transpose(stage):
            continue
        if stage.output not in outputs:
            result = [inline_into(stage, s) if stage.output in s.inputs else s for s in result if s is not stage]
        else:
            result = _store_transposed(result, next(s for s in result if s.output == stage.output), outputs)
    return tuple(result)


def _store_transposed(
    stages: list[Computation], transpose: Computation, outputs: Collection[Buffer]
) -> list[Computation]:
    """The stages with a stored transpose merged into the stage that computes what it reads, if nothing else does."""
    if not is_transpose(transpose):
        return stages
    (source,) = (x.buffer for x in loads(transpose.body))
    writer = next((s for s in stages if s.output == source), None)
    readers = [s for s in stages if source in s.inputs]
    if writer is None or source in outputs or len(readers) != 1:
        return stages
    merged = _permuted(writer, transpose)
    return [merged if s is transpose else s for s in stages if s is not writer]


def _permuted(writer: Computation, transpose: Computation) -> Computation:
    """A computation that writes its results in the order of a transpose of them."""
    assert isinstance(transpose.body, Load)
    place = {i: d for d, i in enumerate(transpose.body.indices) if isinstance(i, Var)}
    axes = tuple(writer.axes[place[a.var]] if a.var in place else a for a in transpose.axes)
    unit = {a.var for a in axes} ^ {a.var for a in writer.axes}
    if all(is_one(a.extent) for a in (*axes, *writer.axes) if a.var in unit):
        return replace(writer, output=transpose.output, axes=axes, body=_without_unit_axes(writer, axes))
    return transpose


def _without_unit_axes(writer: Computation, kept: Sequence[Axis]) -> Expr:
    variables = {a.var for a in kept}
    dropped: dict[Var, Expr] = {a.var: const(0) for a in writer.axes if a.var not in variables}
    return substitute(writer.body, dropped)
