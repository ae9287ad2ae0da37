"""Horizontal reductions: serial (and unrolled) loops around a vectorized loop around one accumulating block.

Their lanes need not be combined in every iteration: a vector accumulates over the serial loops, and its lanes are
combined once. (Reductions may be reassociated; a schedule that wants several accumulators uses more lanes.)
"""

from dataclasses import dataclass

from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.resolve_block import is_minimal_at_first_iteration, resolve_block
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.nodes import Expr, Var
from tilewright.loops.ir import Block, For, LoopKind, Stmt


@dataclass(frozen=True, slots=True)
class HorizontalReduction:
    """A matched loop nest.

    Attributes:
        block: the accumulating block.
        lanes: of the vectorized loop.
        variables: of the serial loops and the lane; in the first iteration all are 0.
        invariant_conditions: the block's conditions that do not depend on these variables.
        bounds: inside the loops.
    """

    block: Block
    lanes: int
    variables: tuple[Var, ...]
    invariant_conditions: tuple[Expr, ...]
    bounds: Bounds


def match_horizontal_reduction(loop: For, scope: EmitScope) -> HorizontalReduction | None:
    """The horizontal reduction that a serial loop is; None for other loops."""
    bounds = scope.bounds.with_loop(loop.var, loop.extent)
    variables = [loop.var]
    inner: Stmt = loop.body
    while isinstance(inner, For):
        bounds = bounds.with_loop(inner.var, inner.extent)
        variables.append(inner.var)
        size = constant_value(polynomial(inner.extent))
        if inner.kind is LoopKind.VECTORIZED and size is not None and size > 1:
            return _match_block(inner.body, size, tuple(variables), bounds, scope)
        if inner.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
            return None
        inner = inner.body
    return None


def _match_block(
    body: Stmt, lanes: int, variables: tuple[Var, ...], bounds: Bounds, scope: EmitScope
) -> HorizontalReduction | None:
    if not isinstance(body, Block):
        return None
    r = resolve_block(body, bounds)
    loop_variables = frozenset(variables)
    dependencies = scope.dependencies
    has_invariant_target = all(loop_variables.isdisjoint(dependencies(i).variables) for i in r.target.indices)
    if r.op is None or not has_invariant_target:
        return None
    if any(not is_minimal_at_first_iteration(e, variables, bounds) for e in r.reduce_bindings):
        return None
    if not any(variables[-1] in dependencies(e).variables for e in r.reduce_bindings):
        return None
    invariant_conditions = tuple(c for c in r.conditions if loop_variables.isdisjoint(dependencies(c).variables))
    return HorizontalReduction(body, lanes, variables, invariant_conditions, bounds)
