"""float32 functions computed in float32: those on the hot paths of neural networks.

All are branch-free and call no library. Coefficients are relative minimax fits (Lawson's iteratively re-weighted least
squares on 2000-3000 Chebyshev points in float64), rounded to float32 from the lowest order upwards with the remaining
ones refitted after each. Every constant's interval and error is next to it. The bounds hold whether `fmuladd` is fused
or not.
"""

from collections.abc import Sequence
from functools import partial

from llvmlite import ir

from tilewright.codegen.llvm_types import declare, vector_lanes
from tilewright.codegen.vecmath.lane_builder import INF, NAN, LaneBuilder

# exp(r) = 1 + r + r^2 q(r), |r| <= 0.3469 (just above ln(2)/2), relative error 3.1e-9.
_EXP = (
    1.0, 1.0, 0.4999999403953552, 0.1666652113199234, 0.04166827350854874, 0.008368685841560364,
    0.001382013550028205,
)  # fmt: skip
# 2^r = 1 + r q(r), |r| <= 1/2, relative error 3.0e-9.
_EXP2 = (
    1.0, 0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.00961849931627512, 0.0013390969252213836,
    0.0001532926398795098,
)  # fmt: skip
# log(1 + f) = f - f^2/2 + f^3 q(f), sqrt(1/2) <= 1 + f <= sqrt(2), relative error 7.7e-10.
_LOG = (
    0.3333331346511841, -0.25000008940696716, 0.2000207155942917, -0.16667990386486053, 0.14220362901687622,
    -0.12406207621097565, 0.11883470416069031, -0.11670192331075668, 0.06749556213617325,
)  # fmt: skip
# -log2(erfc(a)) = a h(a), 0 <= a <= 3.95, error 5.6e-9 relative to erf(a); erf rounds to 1 from 3.92 on.
_ERF = (
    1.6279070377349854, 0.9184474349021912, 0.14827919006347656, -0.02764076739549637, -0.0002142262674169615,
    0.0023871518205851316, -0.0009029649663716555, 0.00016686359595041722, -1.3031367416260764e-05,
)  # fmt: skip
_LOG2_E = 1.4426950408889634
# ln(2) in two parts: the first has 9 significant bits, so that its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_SQRT_HALF_BITS = 0x3F3504F3
_SCALE_OFFSET = 254


def _scale(v: LaneBuilder, p: ir.Value, n: ir.Value, shifted: ir.Value) -> ir.Value:
    """`p * 2**n` for integral n in [-252, 254], rounded once, overflowing to inf and underflowing gradually.

    `shifted` is an integer with n + 254 in its low bits: half of it is a valid biased exponent, and so is the
    remainder.
    """
    register_lanes = _avx512_lanes(v)
    if register_lanes:
        return v.per_subvector(register_lanes, partial(_scalef, v, register_lanes), p, n)
    b = v.builder
    half = b.lshr(shifted, v.iconst(1))
    first = v.from_bits(b.shl(half, v.iconst(23)))
    second = v.from_bits(b.shl(b.sub(shifted, half), v.iconst(23)))
    return v.mul(v.mul(p, first), second)


def _avx512_lanes(v: LaneBuilder) -> int:
    """Lanes per AVX-512 instruction for a vector; 0 where there are no such instructions."""
    lanes = vector_lanes(v.kind) or 1
    if "avx512f" in v.features and lanes % 16 == 0 and (lanes & (lanes - 1)) == 0:
        return 16
    return lanes if "avx512vl" in v.features and lanes in (4, 8) else 0


def _avx512(v: LaneBuilder, name: str, count: int, args: Sequence[ir.Value]) -> ir.Value:
    """An AVX-512 intrinsic on all lanes of a vector of 4, 8 or 16."""
    kind, mask = ir.VectorType(ir.FloatType(), count), ir.IntType(max(8, count))
    args = [*args, ir.Constant(kind, None), ir.Constant(mask, -1)]
    if count == 16:
        args.append(ir.Constant(ir.IntType(32), 4))  # rounding mode of MXCSR
    name = f"llvm.x86.{name}.ps.{32 * count}"
    return v.builder.call(declare(v.builder.module, name, kind, [a.type for a in args]), args)


def _scalef(v: LaneBuilder, count: int, p: ir.Value, n: ir.Value) -> ir.Value:
    """AVX-512's one-instruction `p * 2**floor(n)`."""
    return _avx512(v, "avx512.mask.scalef", count, [p, n])


def _within_half(v: LaneBuilder, count: int, r: ir.Value) -> ir.Value:
    """AVX-512's smaller of |r| and 1/2 with the sign of r; a number even where r is NaN."""
    smaller_with_sign_of_first = ir.Constant(ir.IntType(32), 0b0010)
    return _avx512(v, "avx512.mask.range", count, [r, ir.Constant(r.type, [0.5] * count), smaller_with_sign_of_first])


def _exp_reduced(v: LaneBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """n = round(x / ln 2), an integer with n + 254 in its low bits, and r = x - n ln 2 in two steps."""
    magic = v.const(1.5 * 2.0**23 + _SCALE_OFFSET)
    z = v.fma(x, v.const(_LOG2_E), magic)
    n = v.sub(z, magic)
    return n, v.to_bits(z), v.fma(n, v.const(-_LN2_LOW), v.fma(n, v.const(-_LN2_HIGH), x))


def _exp_clamped(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """exp of x in [-104, 89] or NaN: 2**n exp(r)."""
    n, shifted, r = _exp_reduced(v, x)
    return _scale(v, v.horner(r, _EXP), n, shifted)


def exp(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """e**x; gradual underflow down to -103.97, inf from 88.73 on."""
    register_lanes = _avx512_lanes(v) if "avx512dq" in v.features else 0
    if not register_lanes:
        return _exp_clamped(v, v.at_least(v.at_most(x, 89.0), -104.0))
    # for extreme x, n is large, infinite or NaN like x, and determines the result as long as exp(r) is positive
    n, _, r = _exp_reduced(v, x)
    r = v.per_subvector(register_lanes, partial(_within_half, v, register_lanes), r)
    return v.per_subvector(register_lanes, partial(_scalef, v, register_lanes), v.horner(r, _EXP), n)


def exp2(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """2**x; exact for integral x, gradual underflow down to -150, inf from 128 on."""
    x = v.at_least(v.at_most(x, 129.0), -151.0)
    n, shifted = v.round_magic(x, _SCALE_OFFSET)
    return _scale(v, v.horner(v.sub(x, n), _EXP2), n, shifted)


def _log1p_reduced(v: LaneBuilder, f: ir.Value, e: ir.Value) -> ir.Value:
    """log(1 + f) + e ln(2) for 1 + f in [sqrt(1/2), sqrt(2)] and integral e."""
    f2 = v.mul(f, f)
    tail = v.fma(v.mul(f2, f), v.horner(f, _LOG), v.mul(e, v.const(_LN2_LOW)))
    tail = v.fma(f2, v.const(-0.5), tail)
    return v.fma(e, v.const(_LN2_HIGH), v.add(f, tail))


def log(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """Natural logarithm over all of float32, denormals included; log(+-0) = -inf, NaN below zero."""
    b = v.builder
    denormal = v.cmp("<", x, v.const(2.0**-126))
    scaled = v.select(denormal, v.mul(x, v.const(2.0**25)), x)
    offset = b.sub(v.to_bits(scaled), v.iconst(_SQRT_HALF_BITS))
    exponent = b.sitofp(b.ashr(offset, v.iconst(23)), v.kind)
    exponent = v.sub(exponent, v.select(denormal, v.const(25.0), v.const(0.0)))
    mantissa = v.from_bits(b.add(b.and_(offset, v.iconst(0x7FFFFF)), v.iconst(_SQRT_HALF_BITS)))
    result = _log1p_reduced(v, v.sub(mantissa, v.const(1.0)), exponent)
    # Not (x < inf): +inf and NaN are their own logarithm.
    result = v.select(v.builder.fcmp_unordered(">=", x, v.const(INF)), x, result)
    special = v.select(v.cmp("==", x, v.const(0.0)), v.const(-INF), v.const(NAN))
    return v.select(v.cmp("<=", x, v.const(0.0)), special, result)


def _power_of_two(v: LaneBuilder, biased: ir.Value) -> ir.Value:
    """2**n from an integer with n + 127 in its low bits."""
    return v.from_bits(v.builder.shl(biased, v.iconst(23)))


def tanh(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """Hyperbolic tangent as E / (E + 1) with E = expm1(2|x|) / 2; one division, never beyond +-1.

    2|x| = n ln 2 + 2r, E = 2**n (exp(2r) - 1) / 2 + (2**n - 1) / 2: exact cancellation keeps small x accurate.
    """
    a = v.at_most(v.intrinsic("fabs", x), 9.1)  # tanh rounds to 1 from 9.011 on
    magic = v.const(1.5 * 2.0**23 + 127)
    z = v.fma(a, v.const(2 * _LOG2_E), magic)
    n = v.sub(z, magic)
    r = v.fma(n, v.const(-_LN2_LOW / 2), v.fma(n, v.const(-_LN2_HIGH / 2), a))
    half = [2.0 ** (k + 1) * c for k, c in enumerate(_EXP[2:])]  # of q(2r); powers of two keep the fit exact
    p = v.fma(v.mul(r, r), v.horner(r, half), r)
    scale = _power_of_two(v, v.to_bits(z))
    e = v.fma(p, scale, v.fma(scale, v.const(0.5), v.const(-0.5)))
    return v.intrinsic("copysign", v.div(e, v.add(e, v.const(1.0))), x)


def erf(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """The error function as 1 - 2**log2(erfc(|x|)), in expm1's form so that small x stay accurate; never beyond +-1."""
    a = v.at_most(v.intrinsic("fabs", x), 3.95)
    t = v.mul(a, v.estrin(a, [-c for c in _ERF]))
    n, biased = v.round_magic(t, 127)
    f = v.sub(t, n)
    p = v.mul(f, v.estrin(f, _EXP2[1:]))
    scale = _power_of_two(v, biased)
    return v.intrinsic("copysign", v.fma(p, scale, v.sub(scale, v.const(1.0))), x)


def _exp_minus_abs(v: LaneBuilder, x: ir.Value) -> ir.Value:
    return _exp_clamped(v, v.at_least(v.builder.fneg(v.intrinsic("fabs", x)), -104.0))


def sigmoid(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """1 / (1 + exp(-x)), from exp(-|x|) so that the lower tail keeps its relative accuracy down to denormals."""
    e = _exp_minus_abs(v, x)
    numerator = v.select(v.cmp("<", x, v.const(0.0)), e, v.const(1.0))
    return v.div(numerator, v.add(e, v.const(1.0)))


def softplus(v: LaneBuilder, x: ir.Value) -> ir.Value:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)); the argument of log1p is in [0, 1]."""
    e = _exp_minus_abs(v, x)
    # 1 + e above sqrt(2) is halved: (1 + e)/2 = 1 + (e - 1)/2, whose subtraction is exact there.
    upper = v.cmp(">", e, v.const(0.41421356))
    f = v.select(upper, v.mul(v.sub(e, v.const(1.0)), v.const(0.5)), e)
    tail = _log1p_reduced(v, f, v.select(upper, v.const(1.0), v.const(0.0)))
    return v.add(v.select(v.cmp(">", x, v.const(0.0)), x, v.const(0.0)), tail)
