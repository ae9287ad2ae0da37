"""float64 functions: scalar calls of the C math library per lane, and functions derived from them.

Double precision is the accuracy reference of compiled models, not a fast path: the library's ULP bounds are hard to
beat. The symbols (`exp`, `erf`, ...) resolve against libm when the object file is linked.
"""

from llvmlite import ir

from tilewright.codegen.llvm_types import declare
from tilewright.codegen.vecmath.lane_builder import LaneBuilder

LIBM = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "tanh",
        "erf",
        "pow",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
    ]
)


def call_libm(name: str, v: LaneBuilder, *args: ir.Value) -> ir.Value:
    """Calls the C function `name` (float64) per lane."""
    double = ir.DoubleType()
    function = declare(v.builder.module, name, double, [double] * len(args))
    return v.per_lane(lambda *xs: v.builder.call(function, list(xs)), *args)


def _exp_minus_abs(v: LaneBuilder, x: ir.Value) -> ir.Value:
    return call_libm("exp", v, v.builder.fneg(v.intrinsic("fabs", x)))


def sigmoid(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """1 / (1 + exp(-x)) with a relatively accurate lower tail."""
    e = _exp_minus_abs(v, x)
    numerator = v.select(v.cmp("<", x, v.const(0.0)), e, v.const(1.0))
    return v.div(numerator, v.add(e, v.const(1.0)))


def softplus(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    tail = call_libm("log1p", v, _exp_minus_abs(v, x))
    return v.add(v.select(v.cmp(">", x, v.const(0.0)), x, v.const(0.0)), tail)
