"""Blocks over loop variables: iteration variables replaced by their bindings, accumulations recognised."""

from dataclasses import dataclass

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import TRUE, Const, Expr, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, free_vars, loads
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.ir import Block, IterKind, Store

_REDUCERS = {r.op: r for r in Reducer}


@dataclass(frozen=True, slots=True)
class ResolvedBlock:
    """A block over loop variables and symbols.

    Attributes:
        conditions: conjuncts of the predicate.
        target: the store; with `op`, its value is the operand that is combined.
        op: combining operation of `target = target op value`; None for a plain store.
        init: store before the first reduction iteration; None for none.
        is_first: whether this is the first reduction iteration.
        reduce_bindings: bindings of the reduction variables.
    """

    conditions: tuple[Expr, ...]
    target: Store
    op: str | None
    init: Store | None
    is_first: Expr
    reduce_bindings: tuple[Expr, ...]

    @property
    def identity(self) -> Const:
        """The neutral element of the combining operation."""
        return _REDUCERS[self.op or "add"].identity(self.target.buffer.dtype)

    @property
    def reads_target(self) -> bool:
        """Whether the value reads the stored buffer (the operand of an accumulation does not)."""
        return any(load.buffer.name == self.target.buffer.name for load in loads(self.target.value))


def resolve_block(block: Block, bounds: Bounds) -> ResolvedBlock:
    """The block with its variables replaced by their bindings, simplified with the bounds of the enclosing loops."""
    predicate = simplify(block.predicate, bounds)
    block_bounds = bounds.assuming(predicate)
    mapping = {i.var: simplify(i.binding, bounds) for i in block.iters}

    def over_loops(e: Expr) -> Expr:
        return substitute(e, mapping, block_bounds) if mapping else simplify(e, block_bounds)

    def resolve_store(s: Store, value: Expr) -> Store:
        return Store(s.buffer, tuple(over_loops(i) for i in s.indices), over_loops(value))

    op, value = match_accumulation(block.body) or (None, block.body.value)
    reduce = tuple(mapping[i.var] for i in block.iters if i.kind is IterKind.REDUCE)
    first = conjunction(*(simplify(r.equals(0), bounds) for r in reduce)) if block.init is not None else TRUE
    init = None if block.init is None else resolve_store(block.init, block.init.value)
    return ResolvedBlock(conjuncts(predicate), resolve_store(block.body, value), op, init, first, reduce)


def at_first_iteration(e: Expr, variables: tuple[Var, ...], bounds: Bounds) -> Expr:
    """The expression with the variables set to 0."""
    return substitute(e, {v: const(0) for v in variables}, bounds)


def is_minimal_at_first_iteration(e: Expr, variables: tuple[Var, ...], bounds: Bounds) -> bool:
    """Whether the expression is smallest where the variables are 0."""
    used = tuple(v for v in variables if v in free_vars(e))
    return not used or can_prove_non_negative(e - at_first_iteration(e, used, bounds), bounds)
