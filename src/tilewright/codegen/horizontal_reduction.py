"""Horizontal reductions: serial (and unrolled) loops around vectorized loops around an accumulating block.

Their lanes need not be combined in every iteration: a vector accumulates over the serial loops, and its lanes are
combined once. (Reductions may be reassociated; a schedule that wants several accumulators uses more lanes.) Copies of
the block in branches, and in loops that follow, accumulate in the same vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.codegen.emit_scope import EmitScope
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.nodes import FALSE, Expr, Var
from tilewright.expr.traversal import conjuncts, free_vars
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.ir import NOTHING, Block, For, If, IterKind, LoopKind, Seq, Stmt
from tilewright.lower.resolve_block import (
    ResolvedBlock,
    at_first_iteration,
    is_minimal_at_first_iteration,
    resolve_block,
)


@dataclass(frozen=True, slots=True)
class ReducedBlock:
    """A block that accumulates over lanes.

    Attributes:
        block: the block.
        resolved: the block over loop variables.
        lanes: of the vectorized loop around it.
        variables: of the serial loops and the lane; in the first iteration all are 0.
        bounds: inside the loops.
        invariant_conditions: the block's conditions that do not depend on these variables.
    """

    block: Block
    resolved: ResolvedBlock
    lanes: int
    variables: tuple[Var, ...]
    bounds: Bounds
    invariant_conditions: tuple[Expr, ...]

    @property
    def is_first(self) -> Expr:
        """Whether the first iteration is the first one of the reduction."""
        return at_first_iteration(self.resolved.is_first, self.variables, self.bounds)

    def continues(self, first: "ReducedBlock") -> bool:
        """Whether the block accumulates what `first` begins: into the same element, and where it is the first one of
        the reduction, `first` would be, too."""
        a, b = first.resolved, self.resolved
        return (
            self.lanes == first.lanes
            and a.op == b.op
            and (a.target.buffer, a.target.indices) == (b.target.buffer, b.target.indices)
            and self.invariant_conditions == first.invariant_conditions
            and (b.init is None or self.is_first is FALSE or self._begins_where(first))
        )

    def _begins_where(self, first: "ReducedBlock") -> bool:
        inits = [x and x.value for x in (first.resolved.init, self.resolved.init)]
        return inits[0] is inits[1] and set(conjuncts(first.is_first)) <= set(conjuncts(self.is_first))


@dataclass(frozen=True, slots=True)
class HorizontalReduction:
    """Loop nests, one after the other, that accumulate into one element.

    Attributes:
        stmts: the nests.
        blocks: their blocks, in the order of execution.
    """

    stmts: tuple[Stmt, ...]
    blocks: tuple[ReducedBlock, ...]


def match_horizontal_reduction(stmts: Sequence[Stmt], scope: EmitScope) -> HorizontalReduction | None:
    """The horizontal reduction that a sequence begins with; None where its first statement is none."""
    first = _reduced_blocks(stmts[0], scope, scope.bounds, ())
    if not first or not all(b.continues(first[0]) for b in first[1:]):
        return None
    found = [first]
    for s in stmts[1:]:
        blocks = _reduced_blocks(s, scope, scope.bounds, ())
        if not blocks or not all(b.continues(first[0]) for b in blocks):
            break
        found.append(blocks)
    return HorizontalReduction(tuple(stmts[: len(found)]), tuple(b for blocks in found for b in blocks))


def _reduced_blocks(
    s: Stmt, scope: EmitScope, bounds: Bounds, variables: tuple[Var, ...]
) -> tuple[ReducedBlock, ...] | None:
    """The blocks of a statement, all of which accumulate over lanes; None for other statements."""
    match s:
        case If(condition, then) if s.otherwise == NOTHING:
            inside = _reduced_blocks(then, scope, bounds, variables)
            # the first iteration, which would initialise a result, may be one that is left out
            is_sum = bool(inside) and all(b.block.init is None for b in inside)
            return inside if is_sum and not free_vars(condition).isdisjoint(variables) else None
        case Seq() | If():
            arms = s.stmts if isinstance(s, Seq) else (s.then, s.otherwise)
            found = [_reduced_blocks(x, scope, bounds, variables) for x in arms]
            blocks = [b for b in found if b]
            return tuple(b for x in blocks for b in x) if len(blocks) == len(found) else None
        case For():
            inside, variables = bounds.with_loop(s.var, s.extent), (*variables, s.var)
            size = constant_value(polynomial(s.extent))
            if s.kind is LoopKind.VECTORIZED and size is not None and size > 1 and len(variables) > 1:
                block = _reduced_block(s.body, size, variables, inside, scope)
                return None if block is None else (block,)
            if s.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
                return None
            return _reduced_blocks(s.body, scope, inside, variables)
        case Block():
            return None


def _reduced_block(
    body: Stmt, lanes: int, variables: tuple[Var, ...], bounds: Bounds, scope: EmitScope
) -> ReducedBlock | None:
    if not isinstance(body, Block) or match_accumulation(body.body) is None:
        return None
    # most blocks have their lanes along results; resolving a block takes long
    if not any(variables[-1] in free_vars(i.binding) for i in body.iters if i.kind is IterKind.REDUCE):
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
    return ReducedBlock(body, r, lanes, variables, bounds, invariant_conditions)
