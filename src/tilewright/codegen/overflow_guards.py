"""Overflow guards: sizes computed in double precision, where products of sizes cannot wrap.

A size beyond its limit is rejected before any integer arithmetic on it. Rounding makes the limits inexact by a few
parts in 2^52, far less than the distance between them and the range of int64.
"""

from collections.abc import Callable, Iterable

from llvmlite import ir

from tilewright.codegen.llvm_types import DOUBLE, I1, call_intrinsic
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import COMPARISONS, Binary, Cast, Const, Expr, Select, Unary
from tilewright.expr.traversal import free_vars, post_order

_INTRINSICS = {"floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc", "abs": "fabs", "sqrt": "sqrt"}
_PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OVERFLOWING = ("add", "sub", "mul")


class OverflowGuards:
    """Emits sizes as doubles at a builder's position.

    Args:
        builder: where the instructions go.
        value: returns the function's own value of an expression that is no arithmetic, such as a symbol.
    """

    def __init__(self, builder: ir.IRBuilder, value: Callable[[Expr], ir.Value]) -> None:
        self._builder, self._value = builder, value
        self._emitted: dict[Expr, ir.Value] = {}

    def int64_arithmetic(self, expressions: Iterable[Expr]) -> list[Expr]:
        """The int64 sums, differences and products in some expressions."""
        operations: dict[Expr, None] = {}
        for e in dict.fromkeys(expressions):
            nodes = (n for n in post_order(e) if isinstance(n, Binary) and n.op in _OVERFLOWING and n.dtype is int64)
            operations |= dict.fromkeys(nodes)
        return list(operations)

    def any_exceeds(self, expressions: Iterable[Expr], limit: int) -> ir.Value | None:
        """Whether the magnitude of one of some sizes exceeds a limit; None where none can."""
        exceeds: ir.Value | None = None
        for e in dict.fromkeys(expressions):
            low, high = interval(e)
            if not free_vars(e) or (low is not None and high is not None and -limit <= low and high <= limit):
                continue
            # ordered, so that a division by zero in an arm that is not taken does not count
            size = call_intrinsic(self._builder, "fabs.f64", DOUBLE, [self.as_double(e)])
            test = self._builder.fcmp_ordered(">", size, DOUBLE(float(limit)))
            exceeds = test if exceeds is None else self._builder.or_(exceeds, test)
        return exceeds

    def as_double(self, e: Expr) -> ir.Value:
        """A number as a double; a condition as a bit."""
        if e not in self._emitted:
            self._emitted[e] = self._emit(e)
        return self._emitted[e]

    def _emit(self, e: Expr) -> ir.Value:
        match e:
            case Const(value):
                return I1(int(value)) if e.dtype.kind == "b" else DOUBLE(float(value))
            case Binary(op, a, b):
                result = self._emit_binary(op, a, b)
            case Unary("neg", a):
                result = self._builder.fneg(self.as_double(a))
            case Unary("not", a):
                result = self._builder.not_(self.as_double(a))
            case Unary(op, a) if op in _INTRINSICS:
                result = call_intrinsic(self._builder, f"{_INTRINSICS[op]}.f64", DOUBLE, [self.as_double(a)])
            case Cast(_, a) if e.dtype.kind != "b" and a.dtype.kind != "b":
                truncates = a.dtype.is_float and not e.dtype.is_float
                result = (
                    call_intrinsic(self._builder, "trunc.f64", DOUBLE, [self.as_double(a)])
                    if truncates
                    else self.as_double(a)
                )
            case Select(condition, a, b):
                result = self._builder.select(self.as_double(condition), self.as_double(a), self.as_double(b))
            case _:
                result = None
        return self._convert(e) if result is None else result

    def _emit_binary(self, op: str, a: Expr, b: Expr) -> ir.Value | None:
        builder = self._builder
        if op in ("and", "or") and a.dtype.kind == "b":
            return (builder.and_ if op == "and" else builder.or_)(self.as_double(a), self.as_double(b))
        if a.dtype.kind == "b":
            return None
        if op in COMPARISONS:
            return builder.fcmp_ordered(_PREDICATES[op], self.as_double(a), self.as_double(b))
        match op:
            case "add":
                return builder.fadd(self.as_double(a), self.as_double(b))
            case "sub":
                return builder.fsub(self.as_double(a), self.as_double(b))
            case "mul":
                return builder.fmul(self.as_double(a), self.as_double(b))
            case "div":
                return builder.fdiv(self.as_double(a), self.as_double(b))
            case "floordiv":
                return self._emit_quotient(a, b)
            case "mod":
                return builder.fsub(self.as_double(a), builder.fmul(self._emit_quotient(a, b), self.as_double(b)))
            case "min" | "max":
                return call_intrinsic(builder, f"{op}num.f64", DOUBLE, [self.as_double(a), self.as_double(b)])
            case _:
                return None

    def _emit_quotient(self, a: Expr, b: Expr) -> ir.Value:
        return call_intrinsic(
            self._builder, "floor.f64", DOUBLE, [self._builder.fdiv(self.as_double(a), self.as_double(b))]
        )

    def _convert(self, e: Expr) -> ir.Value:
        value = self._value(e)
        if value.type == I1 and e.dtype.kind == "b":
            return value
        if e.dtype.is_float:
            return value if value.type == DOUBLE else self._builder.fpext(value, DOUBLE)
        return self._builder.sitofp(value, DOUBLE)
