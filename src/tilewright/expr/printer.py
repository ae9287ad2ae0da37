"""Printer of expressions; `expr/parser.py` parses the text to the identical object.

Parentheses follow the tree: associativity is never used to drop them. Names that are not identifiers ("input.1",
"batch size") are quoted.
"""

import math
import re

import numpy as np

from tilewright.expr.dtype import boolean, float32, int64
from tilewright.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary, Var

INFIX: dict[str, tuple[str, int]] = {
    "or": ("or", 1), "and": ("and", 2),
    "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4),
    "add": ("+", 6), "sub": ("-", 6), "mul": ("*", 7), "div": ("/", 7), "floordiv": ("//", 7), "mod": ("%", 7),
}  # fmt: skip
"""Infix operations: symbol and precedence."""

COMPARISON_PRECEDENCE = 4

RESERVED_WORDS: frozenset[str] = frozenset(
    ("and", "or", "True", "False", "func", "alloc", "for", "in", "block", "init", "reduce", "where")
)
"""Keywords of the text form; names that equal one are quoted."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def show_name(name: str) -> str:
    """A name as printed: identifiers bare, other names quoted."""
    return name if _IDENTIFIER.fullmatch(name) and name not in RESERVED_WORDS else repr(name)


def show(e: Expr) -> str:
    """The text of `e`, which parses to the identical expression."""
    return _show(e, 0)


def show_const(e: Const) -> str:
    """A literal: int64, float32 and bool are bare, other types are named: `int32(3)`."""
    if e.dtype == boolean:
        return str(bool(e.value))
    if isinstance(e.value, float) and not math.isfinite(e.value):
        text = "nan" if math.isnan(e.value) else ("inf" if e.value > 0 else "-inf")
        return f"{e.dtype}({text!r})"
    if e.dtype == float32:
        # The fewest digits that round to the same value.
        return str(np.float32(e.value))
    return repr(e.value) if e.dtype == int64 else f"{e.dtype}({e.value!r})"


def _show(e: Expr, min_precedence: int) -> str:
    match e:
        case Const():
            text = show_const(e)
            return f"({text})" if text.startswith("-") and min_precedence > 6 else text
        case Var(name):
            return show_name(name)
        case Load(buffer, indices):
            return f"{show_name(buffer.name)}[{', '.join(_show(i, 0) for i in indices)}]"
        case Binary(op, a, b) if op in INFIX:
            sign, precedence = INFIX[op]
            # Comparisons do not chain and other operators are left-associative, so the right operand binds tighter.
            text = f"{_show(a, precedence + (precedence == COMPARISON_PRECEDENCE))} {sign} {_show(b, precedence + 1)}"
            return f"({text})" if precedence < min_precedence else text
        case Binary(op, a, b):
            return f"{op}({_show(a, 0)}, {_show(b, 0)})"
        case Unary(op, a):
            return f"{op}({_show(a, 0)})"
        case Select(cond, a, b):
            return f"select({_show(cond, 0)}, {_show(a, 0)}, {_show(b, 0)})"
        case Cast(dtype, a):
            return f"cast({dtype}, {_show(a, 0)})"
        case _:
            raise TypeError(f"not an expression: {type(e).__name__}")
