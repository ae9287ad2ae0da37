"""Accumulations: stores of the form `C[..] = op(C[..], value)`."""

from tilewright.expr.nodes import Binary, Buffer, Expr, Load
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Store

_OPERATORS = ("add", "mul", "max", "min")


def match_accumulation(store: Store) -> tuple[str, Expr] | None:
    """(op, value) of a store `C[..] = op(C[..], value)` where `value` does not read C; None for other stores."""
    match store.value:
        case Binary(op, a, b) if op in _OPERATORS:
            target = Load(store.buffer, store.indices)
            for accumulator, value in ((a, b), (b, a)):
                if accumulator is target and not reads_buffer(value, store.buffer):
                    return op, value
            return None
        case _:
            return None


def reads_buffer(e: Expr, buffer: Buffer) -> bool:
    """Whether an expression loads from a buffer."""
    return any(load.buffer.name == buffer.name for load in loads(e))
