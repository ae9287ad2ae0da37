"""Functions of one or a few instructions, the same for float32 and float64.

Rounding to integers is the LLVM intrinsic: one instruction from SSE4.1 and on AArch64, a call of the C library on plain
SSE2. The remainder is LLVM's `frem`, which calls C's exact `fmod` per lane.
"""

from collections.abc import Callable

from llvmlite import ir

from tilewright.codegen.vecmath.lane_builder import INF, LaneBuilder


def _make_intrinsic(name: str) -> Callable[..., ir.Value]:
    def call(v: LaneBuilder, *args: ir.Value) -> ir.Value:
        return v.intrinsic(name, *args)

    return call


def _rsqrt(v: LaneBuilder, x: ir.Value) -> ir.Value:
    return v.div(v.const(1.0), v.intrinsic("sqrt", x))


def _sign(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """-1, 0 or 1; +0 for both zeros and NaN for NaN, as `numpy.sign`."""
    zero = v.const(0.0)
    negative = v.select(v.cmp("<", x, zero), v.const(-1.0), zero)
    signed = v.select(v.cmp(">", x, zero), v.const(1.0), negative)
    return v.select(v.is_nan(x), x, signed)


def _mod(v: LaneBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Remainder with the sign of the divisor, as `numpy.mod`."""
    zero = v.const(0.0)
    r = v.builder.frem(x, y)
    opposite = v.builder.xor(v.cmp("<", r, zero), v.cmp("<", y, zero))
    nonzero = v.select(opposite, v.add(r, y), r)
    return v.select(v.cmp("==", r, zero), v.intrinsic("copysign", zero, y), nonzero)


def _make_extremum(name: str) -> Callable[[LaneBuilder, ir.Value, ir.Value], ir.Value]:
    """Minimum or maximum that is NaN when either operand is; of -0 and +0 it returns either.

    AArch64 has an instruction for it. x86's returns its second operand when either is NaN, so a NaN in the first
    operand takes extra instructions; that is the new value, not the accumulator, so that they are off the dependency
    chain.
    """

    def function(v: LaneBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        return v.intrinsic(name, b, a, flags=("nsz",))

    return function


UNARY: dict[str, Callable[[LaneBuilder, ir.Value], ir.Value]] = {
    "sqrt": _make_intrinsic("sqrt"),
    "rsqrt": _rsqrt,
    "reciprocal": lambda v, x: v.div(v.const(1.0), x),
    "floor": _make_intrinsic("floor"),
    "ceil": _make_intrinsic("ceil"),
    "round": _make_intrinsic("roundeven"),
    "trunc": _make_intrinsic("trunc"),
    "abs": _make_intrinsic("fabs"),
    "neg": lambda v, x: v.builder.fneg(x),
    "sign": _sign,
    "isnan": lambda v, x: v.is_nan(x),
    "isinf": lambda v, x: v.cmp("==", v.intrinsic("fabs", x), v.const(INF)),
}
BINARY: dict[str, Callable[[LaneBuilder, ir.Value, ir.Value], ir.Value]] = {
    "copysign": _make_intrinsic("copysign"),
    "fmod": lambda v, x, y: v.builder.frem(x, y),
    "mod": _mod,
    "min": _make_extremum("minimum"),
    "max": _make_extremum("maximum"),
}
