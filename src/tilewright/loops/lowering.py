"""Lowering of tensor expressions to the naive loop program, the oracle of all transformed programs.

Every stage becomes one serial loop nest in row-major order around one block; nothing is fused, split or reordered.
Schedules start from this program and must preserve the interpreter's result for it.
"""

from collections.abc import Sequence

from tilewright.errors import InternalError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Binary, Buffer, Expr, Load, Var
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Stmt, Store, seq
from tilewright.names import UniqueNames


def lower_to_loops(name: str, stages: Sequence[Computation], params: Sequence[Buffer], symbols: Sequence[Var]) -> Func:
    """The naive program of a sequence of computations.

    Args:
        name: the function's name, a C identifier.
        stages: in execution order; every output is written by one stage, before it is read.
        params: the buffers that the caller passes, inputs first. Outputs of stages that are not among them become
            workspace (allocs of scope memory).
        symbols: the sizes that the caller passes.

    Returns:
        One serial loop nest per stage, in order. A block is named after its output buffer, loop variables after the
        stage's axes (with a number where needed), iteration variables after the loops, with the prefix `v_`.

    Raises:
        InternalError: there are no stages, two stages with one output, or an input that nothing provides.
    """
    if not stages:
        raise InternalError("a function needs at least one stage", where=f"func {name!r}")
    _check_dataflow(name, stages, params)
    param_names = {p.name for p in params}
    allocs = tuple(s.output for s in stages if s.output.name not in param_names)
    names = UniqueNames.of([*param_names, *(b.name for b in allocs), *(s.name for s in symbols)])
    return Func(name, tuple(params), tuple(symbols), allocs, seq(*(_lower_stage(stage, names) for stage in stages)))


def _check_dataflow(name: str, stages: Sequence[Computation], params: Sequence[Buffer]) -> None:
    outputs = [s.output.name for s in stages]
    for stage in stages:
        if outputs.count(stage.output.name) > 1:
            raise InternalError(f"two stages write buffer {stage.output.name!r}", where=f"func {name!r}")
    written = {p.name for p in params} - set(outputs)
    for stage in stages:
        missing = [b.name for b in stage.inputs if b.name not in written]
        if missing:
            raise InternalError(
                f"stage {stage.output.name!r} reads {missing[0]!r}, which no parameter or earlier stage provides",
                where=f"func {name!r}",
            )
        written.add(stage.output.name)


def _lower_stage(stage: Computation, names: UniqueNames) -> Stmt:
    """The loop nest of one stage."""
    axes = [(axis, IterKind.SPATIAL) for axis in stage.axes] + [(axis, IterKind.REDUCE) for axis in stage.reduce_axes]
    loops: list[tuple[Var, Axis]] = []
    iters: list[BlockIter] = []
    iter_vars: dict[Var, Expr] = {}
    for axis, kind in axes:
        loop = Var(names.fresh(axis.var.name))
        v = Var(names.fresh(f"v_{loop.name}"))
        iter_vars[axis.var] = v
        loops.append((loop, axis))
        iters.append(BlockIter(v, axis.extent, kind, loop))
    target = stage.output
    indices = tuple(iter_vars[axis.var] for axis in stage.axes)
    value = substitute(stage.body, iter_vars)
    init = None
    if stage.reducer is not None:
        init = Store(target, indices, stage.reducer.identity(target.dtype))
        # Built raw, so that the accumulator stays on the left in integer types too.
        value = Binary(stage.reducer.op, Load(target, indices), value)
    body: Stmt = Block(target.name, tuple(iters), Store(target, indices, value), init)
    for loop, axis in reversed(loops):
        body = For(loop, axis.extent, LoopKind.SERIAL, body)
    return body
