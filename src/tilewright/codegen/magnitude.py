"""How large sizes are, computed in double precision, where products of sizes can't wrap around.

A size that does not fit its limit is found before any integer arithmetic with it. Rounding makes the limits inexact
by a few parts in 2^52, far less than the room between them and what int64 holds.
"""

from collections.abc import Callable, Iterable

from llvmlite import ir

from tilewright.codegen.types import DOUBLE, I1, intrinsic
from tilewright.expr.bounds import interval
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import COMPARISONS, Binary, Cast, Const, Expr, Select, Unary, free_vars, walk

_ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc", "abs": "fabs", "sqrt": "sqrt"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_GROWING = ("add", "sub", "mul")


class Magnitudes:
    """Emits sizes as doubles at a builder's position.

    Args:
        builder: where the instructions go.
        value: gives what is no arithmetic, symbols above all, as the function's own values.
    """

    def __init__(self, builder: ir.IRBuilder, value: Callable[[Expr], ir.Value]) -> None:
        self._builder, self._value = builder, value
        self._known: dict[Expr, ir.Value] = {}

    def arithmetic(self, expressions: Iterable[Expr]) -> list[Expr]:
        """The sums, differences and products of int64 numbers in some expressions."""
        found: dict[Expr, None] = {}
        for e in dict.fromkeys(expressions):
            nodes = (n for n in walk(e) if isinstance(n, Binary) and n.op in _GROWING and n.dtype is int64)
            found |= dict.fromkeys(nodes)
        return list(found)

    def any_above(self, expressions: Iterable[Expr], limit: int) -> ir.Value | None:
        """Whether one of some sizes is above a limit or below its negative; None where that can't be."""
        found: ir.Value | None = None
        for e in dict.fromkeys(expressions):
            low, high = interval(e)
            if not free_vars(e) or (low is not None and high is not None and -limit <= low and high <= limit):
                continue
            # ordered, so that a division by zero in an arm that nobody takes does not count
            size = intrinsic(self._builder, "fabs.f64", DOUBLE, [self.of(e)])
            test = self._builder.fcmp_ordered(">", size, DOUBLE(float(limit)))
            found = test if found is None else self._builder.or_(found, test)
        return found

    def of(self, e: Expr) -> ir.Value:
        """A number as a double; a condition as a bit."""
        if e not in self._known:
            self._known[e] = self._computed(e)
        return self._known[e]

    def _computed(self, e: Expr) -> ir.Value:
        match e:
            case Const(value):
                return I1(int(value)) if e.dtype.kind == "b" else DOUBLE(float(value))
            case Binary(op, a, b):
                made = self._binary(op, a, b)
            case Unary("neg", a):
                made = self._builder.fneg(self.of(a))
            case Unary("not", a):
                made = self._builder.not_(self.of(a))
            case Unary(op, a) if op in _ROUNDING:
                made = intrinsic(self._builder, f"{_ROUNDING[op]}.f64", DOUBLE, [self.of(a)])
            case Cast(_, a) if e.dtype.kind != "b" and a.dtype.kind != "b":
                whole = a.dtype.is_float and not e.dtype.is_float
                made = intrinsic(self._builder, "trunc.f64", DOUBLE, [self.of(a)]) if whole else self.of(a)
            case Select(condition, a, b):
                made = self._builder.select(self.of(condition), self.of(a), self.of(b))
            case _:
                made = None
        return self._given(e) if made is None else made

    def _binary(self, op: str, a: Expr, b: Expr) -> ir.Value | None:
        builder = self._builder
        if op in ("and", "or") and a.dtype.kind == "b":
            return (builder.and_ if op == "and" else builder.or_)(self.of(a), self.of(b))
        if a.dtype.kind == "b":
            return None
        if op in COMPARISONS:
            return builder.fcmp_ordered(_SIGNS[op], self.of(a), self.of(b))
        match op:
            case "add":
                return builder.fadd(self.of(a), self.of(b))
            case "sub":
                return builder.fsub(self.of(a), self.of(b))
            case "mul":
                return builder.fmul(self.of(a), self.of(b))
            case "div":
                return builder.fdiv(self.of(a), self.of(b))
            case "floordiv":
                return self._quotient(a, b)
            case "mod":
                return builder.fsub(self.of(a), builder.fmul(self._quotient(a, b), self.of(b)))
            case "min" | "max":
                return intrinsic(builder, f"{op}num.f64", DOUBLE, [self.of(a), self.of(b)])
            case _:
                return None

    def _quotient(self, a: Expr, b: Expr) -> ir.Value:
        return intrinsic(self._builder, "floor.f64", DOUBLE, [self._builder.fdiv(self.of(a), self.of(b))])

    def _given(self, e: Expr) -> ir.Value:
        value = self._value(e)
        if value.type == I1 and e.dtype.kind == "b":
            return value
        if e.dtype.is_float:
            return value if value.type == DOUBLE else self._builder.fpext(value, DOUBLE)
        return self._builder.sitofp(value, DOUBLE)
