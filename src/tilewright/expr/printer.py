"""Expressions as text: Python syntax, so that the parser of the loop IR reads it back to the same object."""

import math

from tilewright.expr.dtype import boolean, float32, int64
from tilewright.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary, Var

_INFIX: dict[str, tuple[str, int]] = {
    "or": ("or", 1), "and": ("and", 2),
    "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4),
    "add": ("+", 6), "sub": ("-", 6), "mul": ("*", 7), "div": ("/", 7), "floordiv": ("//", 7), "mod": ("%", 7),
}  # fmt: skip


def show(e: Expr) -> str:
    """`e` as text that parses back to an equal expression."""
    return _show(e, 0)


def show_const(e: Const) -> str:
    """A literal: int64, float32 and bool stand alone, others name their type: `int32(3)`."""
    if e.dtype == boolean:
        return str(e.value)
    if isinstance(e.value, float) and not math.isfinite(e.value):
        text = "nan" if math.isnan(e.value) else ("inf" if e.value > 0 else "-inf")
        return f"{e.dtype}({text!r})"
    if e.dtype in (int64, float32):
        return repr(e.value)
    return f"{e.dtype}({e.value!r})"


def _show(e: Expr, outer: int) -> str:
    match e:
        case Const():
            text = show_const(e)
            return f"({text})" if text.startswith("-") and outer > 6 else text
        case Var(name):
            return name
        case Load(buffer, indices):
            return f"{buffer.name}[{', '.join(_show(i, 0) for i in indices)}]"
        case Binary(op, a, b) if op in _INFIX:
            sign, level = _INFIX[op]
            # Comparisons do not chain and the others associate to the left, so the right operand binds tighter.
            text = f"{_show(a, level + (level == 4))} {sign} {_show(b, level + 1)}"
            return f"({text})" if level < outer else text
        case Binary(op, a, b):
            return f"{op}({_show(a, 0)}, {_show(b, 0)})"
        case Unary(op, a):
            return f"{op}_({_show(a, 0)})" if op == "not" else f"{op}({_show(a, 0)})"
        case Select(cond, a, b):
            return f"select({_show(cond, 0)}, {_show(a, 0)}, {_show(b, 0)})"
        case Cast(dtype, a):
            return f"cast({dtype}, {_show(a, 0)})"
        case _:
            raise TypeError(f"not an expression: {type(e).__name__}")
