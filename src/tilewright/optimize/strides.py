"""Strides of a block's accesses along its iteration variables, as expressions."""

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Const, Expr, Load, Var, const
from tilewright.expr.pattern import product_operands
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.ir import Block


def flat_index(indices: tuple[Expr, ...], shape: tuple[Expr, ...]) -> Expr:
    """The row-major position of an element."""
    position: Expr = const(0)
    for i, n in zip(indices, shape, strict=True):
        position = position * n + i
    return position


def stride(indices: tuple[Expr, ...], shape: tuple[Expr, ...], var: Var) -> Expr | None:
    """The change of the flat index, in elements, per step of `var`; None where the index is not linear in it."""
    position = flat_index(indices, shape)
    if var not in free_vars(position):
        return const(0)
    step = substitute(position, {var: var + 1}) - position
    return None if var in free_vars(step) or loads(step) else step


def load_stride(x: Load, var: Var) -> Expr | None:
    """The stride of a load along a variable."""
    return stride(x.indices, x.buffer.shape, var)


def store_stride(block: Block, var: Var) -> Expr | None:
    """The stride of the block's store along a variable."""
    return stride(block.body.indices, block.body.buffer.shape, var)


def is_literal(e: Expr | None, value: int) -> bool:
    """Whether an expression is this literal."""
    return isinstance(e, Const) and e.value == value


def contraction_operands(block: Block) -> tuple[Load, Load] | None:
    """The two loads that a contraction multiplies and sums, without casts; None for other blocks."""
    combined = match_accumulation(block.body)
    return product_operands(combined[1]) if combined is not None and combined[0] == "add" else None
