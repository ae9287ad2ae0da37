"""Blocks seen from the loops around them: iteration variables replaced by their bindings, accumulations recognised."""

from dataclasses import dataclass

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import TRUE, Binary, Const, Expr, Load, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, free_vars, loads
from tilewright.loops.ir import Block, IterKind, Store

_REDUCERS = {r.op: r for r in Reducer}


@dataclass(frozen=True, slots=True)
class ResolvedBlock:
    """A block over loop variables and symbols.

    Attributes:
        conditions: the conjuncts of its predicate.
        target: where it stores; the value is that of `body`, or of what is combined when `op` is given.
        op: the operation of `target = target op value`, None for a plain store.
        init: what is stored before the first reduction iteration, None for nothing.
        first: whether this is the first reduction iteration.
        reduce: bindings of the reduction variables.
    """

    conditions: tuple[Expr, ...]
    target: Store
    op: str | None
    init: Store | None
    is_first: Expr
    reduce_bindings: tuple[Expr, ...]

    @property
    def identity(self) -> Const:
        """The value that changes nothing when combined."""
        return _REDUCERS[self.op or "add"].identity(self.target.buffer.dtype)

    @property
    def reads_target(self) -> bool:
        """Whether the value reads the buffer that is written (the value of an accumulation does not)."""
        return any(load.buffer.name == self.target.buffer.name for load in loads(self.target.value))


def _match_accumulation(store: Store) -> tuple[str | None, Expr]:
    """The combining operation and the other operand, where the store accumulates onto its own element."""
    value = store.value
    if isinstance(value, Binary) and value.op in _REDUCERS:
        own = Load(store.buffer, store.indices)
        for mine, other in ((value.a, value.b), (value.b, value.a)):
            if mine is own and all(load.buffer.name != store.buffer.name for load in loads(other)):
                return value.op, other
    return None, value


def resolve_block(block: Block, bounds: Bounds) -> ResolvedBlock:
    """A block with its variables replaced by their bindings, simplified with the bounds of the loops around."""
    predicate = simplify(block.predicate, bounds)
    inside = bounds.assuming(predicate)
    mapping = {i.var: simplify(i.binding, bounds) for i in block.iters}

    def replaced(e: Expr) -> Expr:
        return substitute(e, mapping, inside) if mapping else simplify(e, inside)

    def store(s: Store, value: Expr) -> Store:
        return Store(s.buffer, tuple(replaced(i) for i in s.indices), replaced(value))

    op, value = _match_accumulation(block.body)
    reduce = tuple(mapping[i.var] for i in block.iters if i.kind is IterKind.REDUCE)
    first = conjunction(*(simplify(r.equals(0), bounds) for r in reduce)) if block.init is not None else TRUE
    init = None if block.init is None else store(block.init, block.init.value)
    return ResolvedBlock(conjuncts(predicate), store(block.body, value), op, init, first, reduce)


def at_first_iteration(e: Expr, variables: tuple[Var, ...], bounds: Bounds) -> Expr:
    """The expression where the variables are 0."""
    return substitute(e, {v: const(0) for v in variables}, bounds)


def is_minimal_at_first_iteration(e: Expr, variables: tuple[Var, ...], bounds: Bounds) -> bool:
    """Whether the expression is smallest where the variables are 0."""
    used = tuple(v for v in variables if v in free_vars(e))
    return not used or can_prove_non_negative(e - at_first_iteration(e, used, bounds), bounds)
