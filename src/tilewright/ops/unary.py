"""Unary functions of every element."""

from tilewright.expr.nodes import Expr, UnaryOp, const
from tilewright.expr.operations import unary
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import float_function

_FUNCTIONS: dict[str, UnaryOp] = {
    "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin",
    "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh",
    "Atanh": "atanh", "Erf": "erf", "Floor": "floor", "Ceil": "ceil", "Round": "round",
}  # fmt: skip


@operator(*_FUNCTIONS)
def unary_function(d: Definition) -> OpValue:
    """A function of every element; Round rounds halves to even."""
    op = _FUNCTIONS[d.op_type]
    return float_function(d, lambda x: unary(op, x))


@operator("Reciprocal")
def reciprocal(d: Definition) -> OpValue:
    """1 / x"""
    return float_function(d, lambda x: const(1, x.dtype) / x)


_EXACT_FUNCTIONS: dict[str, UnaryOp] = {"Abs": "abs", "Neg": "neg", "Sign": "sign"}


@operator(*_EXACT_FUNCTIONS)
def exact_function(d: Definition) -> OpValue:
    """Functions that are exact for every type, integers included."""
    x = d.input(0)

    def body(*i: Expr) -> Expr:
        value = x[i]
        return value if x.dtype.kind == "u" and d.op_type == "Abs" else unary(_EXACT_FUNCTIONS[d.op_type], value)

    return d.compute(x.shape, body)
