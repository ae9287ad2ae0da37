"""float32 functions computed in float64 lanes: the rarer ones, accurate to little more than half an ULP.

In float64 argument reduction, overflow and denormals are trivial: no intermediate leaves the normal range, and the only
rounding that matters is the last one to float32. The polynomials are relative minimax fits (Lawson's iteratively
re-weighted least squares on 2000 Chebyshev points) at relative errors below 2**-36, not full float64.
"""

from collections.abc import Callable
from fractions import Fraction

from llvmlite import ir

from tilewright.codegen.vecmath.lane_builder import INF, NAN, LaneBuilder, widen

# (exp(r) - 1) / r, |r| <= 0.3469, relative error 4.5e-12.
_EXPM1 = (
    0.9999999999955376, 0.5000000000121502, 0.16666666786062978, 0.04166666594718715, 0.008333283553159298,
    0.001388897867966565, 0.00019907583495410645, 2.4801574285631492e-05,
)  # fmt: skip
# log(1 + f) / f, sqrt(1/2) <= 1 + f <= sqrt(2), relative error 2.6e-12.
_LOG1P = (
    0.9999999999983439, -0.4999999999189444, 0.33333333460870884, -0.2500000228158718, 0.19999985273410434,
    -0.1666647674624516, 0.14286257146630077, -0.12506922605799292, 0.1110537280420417, -0.09877251779458636,
    0.09030019813344436, -0.09331797584225704, 0.09185026742442294, -0.048339348245627814,
)  # fmt: skip
# sin(r) / r and cos(r) in r^2, |r| <= pi/4, relative errors 4.8e-15 and 6.6e-14.
_SIN = (
    0.9999999999999954, -0.16666666666614335, 0.00833333332356569, -0.0001984126315739812, 2.755524592017378e-06,
    -2.475487917757007e-08,
)  # fmt: skip
_COS = (
    0.9999999999999344, -0.4999999999927101, 0.04166666653366096, -0.0013888879932804428, 2.4798843927358804e-05,
    -2.716795762167976e-07,
)  # fmt: skip
# atan(t) / t in t^2, 0 <= t <= 1, relative error 9.3e-12.
_ATAN = (
    0.9999999999906534, -0.33333333005318144, 0.1999998083742642, -0.1428527143462795, 0.11105741702818216,
    -0.09051620241141135, 0.07503962159335952, -0.0604263405330909, 0.04396724069442072, -0.026338597058544324,
    0.011646594852065218, -0.003278291334049073, 0.0004329566083991899,
)  # fmt: skip
_LN2 = 0.6931471805599453
_LOG2_E = 1.4426950408889634
_LOG10_E = 0.4342944819032518
_PI, _HALF_PI = 3.141592653589793, 1.5707963267948966
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
# floor(pi * 2**316): 2/pi follows to more than the 200 bits that float32 needs.
_PI_SCALED = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89452821E638D0137
_PIECE_BITS, _PIECES = 29, 6


def _two_over_pi() -> tuple[float, ...]:
    """2/pi as a sum of five 29-bit pieces, whose products with float32 values are exact, and a 53-bit remainder."""
    remainder, pieces = Fraction(2 << 316, _PI_SCALED), list[float]()
    for k in range(1, _PIECES):
        unit = Fraction(1, 1 << (_PIECE_BITS * k))
        piece = (remainder // unit) * unit
        pieces.append(float(piece))
        remainder -= piece
    return (*pieces, float(remainder))


def _expm1_and_scale(w: LaneBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(exp(r) - 1, 2**n) with exp(x) = 2**n exp(r), |r| <= ln(2)/2; |x| must stay below 700."""
    n, shifted = w.round_magic(w.mul(x, w.const(_LOG2_E)), 1023)
    r = w.fma(n, w.const(-_LN2), x)
    return w.mul(r, w.horner(r, _EXPM1)), w.from_bits(w.builder.shl(shifted, w.iconst(52)))


def _exp(w: LaneBuilder, x: ir.Value) -> ir.Value:
    p, scale = _expm1_and_scale(w, x)
    return w.fma(p, scale, scale)


def _expm1(w: LaneBuilder, x: ir.Value) -> ir.Value:
    p, scale = _expm1_and_scale(w, x)
    return w.fma(p, scale, w.sub(scale, w.const(1.0)))


def _log1p_split(w: LaneBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(log(1 + f), e) with 1 + x = (1 + f) 2**e; no special values. Exact f where e is zero, also for tiny x."""
    b = w.builder
    offset = b.sub(w.to_bits(w.add(x, w.const(1.0))), w.iconst(_SQRT_HALF_BITS))
    exponent = b.ashr(offset, w.iconst(52))
    mantissa = w.from_bits(b.add(b.and_(offset, w.iconst((1 << 52) - 1)), w.iconst(_SQRT_HALF_BITS)))
    f = w.select(b.icmp_signed("==", exponent, w.iconst(0)), x, w.sub(mantissa, w.const(1.0)))
    return w.mul(f, w.horner(f, _LOG1P)), b.sitofp(exponent, w.kind)


def _log_split(w: LaneBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(log(m), e) with x = m 2**e, m in [sqrt(1/2), sqrt(2)]; x positive, finite."""
    b = w.builder
    offset = b.sub(w.to_bits(x), w.iconst(_SQRT_HALF_BITS))
    mantissa = w.from_bits(b.add(b.and_(offset, w.iconst((1 << 52) - 1)), w.iconst(_SQRT_HALF_BITS)))
    f = w.sub(mantissa, w.const(1.0))
    return w.mul(f, w.horner(f, _LOG1P)), b.sitofp(b.ashr(offset, w.iconst(52)), w.kind)


def _log_special_values(w: LaneBuilder, x: ir.Value, result: ir.Value, zero: float) -> ir.Value:
    """The logarithm's special values: -inf at `zero`, NaN below, x itself at +inf and NaN."""
    result = w.select(w.builder.fcmp_unordered(">=", x, w.const(INF)), x, result)
    special = w.select(w.cmp("==", x, w.const(zero)), w.const(-INF), w.const(NAN))
    return w.select(w.cmp("<=", x, w.const(zero)), special, result)


def _log1p(w: LaneBuilder, x: ir.Value) -> ir.Value:
    tail, e = _log1p_split(w, x)
    return _log_special_values(w, x, w.fma(e, w.const(_LN2), tail), -1.0)


def _magnitude(w: LaneBuilder, x: ir.Value) -> ir.Value:
    return w.intrinsic("fabs", x)


def _make_odd(function: Callable[[LaneBuilder, ir.Value], ir.Value]) -> Callable[[LaneBuilder, ir.Value], ir.Value]:
    """An odd function from its values on |x|; keeps the sign of zero."""

    def signed(w: LaneBuilder, x: ir.Value) -> ir.Value:
        return w.flip_sign(function(w, _magnitude(w, x)), w.to_bits(x))

    return signed


def _clamp(w: LaneBuilder, x: ir.Value) -> ir.Value:
    # Wide enough that float32 overflows and underflows by itself after the last rounding.
    return w.at_least(w.at_most(x, 250.0), -250.0)


def _sinh(w: LaneBuilder, a: ir.Value) -> ir.Value:
    e = _expm1(w, _clamp(w, a))
    return w.mul(w.const(0.5), w.add(e, w.div(e, w.add(e, w.const(1.0)))))


def _cosh(w: LaneBuilder, x: ir.Value) -> ir.Value:
    e = _exp(w, _clamp(w, x))
    return w.mul(w.const(0.5), w.add(e, w.div(w.const(1.0), e)))


def _asinh(w: LaneBuilder, a: ir.Value) -> ir.Value:
    # a + sqrt(a^2 + 1) = 1 + a + a^2 / (1 + sqrt(a^2 + 1)); the quotient is NaN at inf, where a itself will do.
    square = w.mul(a, a)
    root = w.intrinsic("sqrt", w.add(square, w.const(1.0)))
    correction = w.div(square, w.add(root, w.const(1.0)))
    return _log1p(w, w.select(w.cmp("==", a, w.const(INF)), a, w.add(a, correction)))


def _acosh(w: LaneBuilder, x: ir.Value) -> ir.Value:
    t = w.sub(w.select(w.cmp(">=", x, w.const(1.0)), x, w.const(NAN)), w.const(1.0))
    return _log1p(w, w.add(t, w.intrinsic("sqrt", w.mul(t, w.add(t, w.const(2.0))))))


def _atanh(w: LaneBuilder, a: ir.Value) -> ir.Value:
    ratio = w.div(w.add(a, a), w.sub(w.const(1.0), a))
    return w.mul(w.const(0.5), _log1p(w, w.select(w.cmp("<=", a, w.const(1.0)), ratio, w.const(NAN))))


def _atan_ratio(w: LaneBuilder, y: ir.Value, x: ir.Value) -> ir.Value:
    """atan(y / x) in [0, pi/2] for y, x >= 0, not both zero; y or x may be inf, not both."""
    swap = w.cmp(">", y, x)
    t = w.div(w.select(swap, x, y), w.select(swap, y, x))
    angle = w.mul(t, w.horner(w.mul(t, t), _ATAN))
    return w.select(swap, w.sub(w.const(_HALF_PI), angle), angle)


def _cosine_of(w: LaneBuilder, x: ir.Value) -> ir.Value:
    """sqrt(1 - x^2); NaN for |x| > 1."""
    return w.intrinsic("sqrt", w.mul(w.sub(w.const(1.0), x), w.add(w.const(1.0), x)))


def _acos(w: LaneBuilder, x: ir.Value) -> ir.Value:
    angle = _atan_ratio(w, _cosine_of(w, x), _magnitude(w, x))
    return w.select(w.cmp("<", x, w.const(0.0)), w.sub(w.const(_PI), angle), angle)


def _quadrant(w: LaneBuilder, a: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Payne-Hanek reduction of a float32-valued a >= 0: (sin r, cos r, n) with a = r + n pi/2, |r| <= pi/4.

    a times each piece of 2/pi is exact; whole turns (multiples of 4 quadrants) drop out of it exactly; the running
    sum is reduced by whole quadrants after every piece, so what cancels does so before any rounding. The integer n is
    right modulo 4. NaN and inf give NaN. After Payne and Hanek, "Radian reduction for trigonometric functions", 1983.
    """
    total, count = w.const(0.0), w.const(0.0)
    for k, piece in enumerate(_two_over_pi()):
        t = w.mul(a, w.const(piece))
        if k < _PIECES - 1:
            t = w.sub(t, w.mul(w.const(4.0), w.intrinsic("rint", w.mul(t, w.const(0.25)))))
        total = w.add(total, t)
        whole = w.intrinsic("rint", total)
        total, count = w.sub(total, whole), w.add(count, whole)
    r = w.mul(total, w.const(_HALF_PI))
    z = w.mul(r, r)
    return w.mul(r, w.horner(z, _SIN)), w.horner(z, _COS), w.round_magic(count)[1]


def _bit(w: LaneBuilder, n: ir.Value, mask: int) -> ir.Value:
    return w.builder.icmp_signed("!=", w.builder.and_(n, w.iconst(mask)), w.iconst(0))


def _sin(w: LaneBuilder, a: ir.Value) -> ir.Value:
    sine, cosine, n = _quadrant(w, a)
    return w.flip_sign(w.select(_bit(w, n, 1), cosine, sine), w.builder.shl(n, w.iconst(62)))


def _cos(w: LaneBuilder, x: ir.Value) -> ir.Value:
    sine, cosine, n = _quadrant(w, _magnitude(w, x))
    negative = w.builder.shl(w.builder.add(n, w.iconst(1)), w.iconst(62))
    return w.flip_sign(w.select(_bit(w, n, 1), sine, cosine), negative)


def _tan(w: LaneBuilder, a: ir.Value) -> ir.Value:
    sine, cosine, n = _quadrant(w, a)
    odd = _bit(w, n, 1)
    ratio = w.div(w.select(odd, cosine, sine), w.select(odd, sine, cosine))
    return w.flip_sign(ratio, w.builder.shl(n, w.iconst(63)))


def _make_log(scale: float, per_octave: float) -> Callable[[LaneBuilder, ir.Value], ir.Value]:
    """Logarithm to another base: `scale` is log_base(e), `per_octave` log_base(2); base 2 is exact at powers of two."""

    def function(w: LaneBuilder, x: ir.Value) -> ir.Value:
        tail, e = _log_split(w, x)
        return _log_special_values(w, x, w.fma(tail, w.const(scale), w.mul(e, w.const(per_octave))), 0.0)

    return function


_UNARY: dict[str, Callable[[LaneBuilder, ir.Value], ir.Value]] = {
    "log2": _make_log(_LOG2_E, 1.0),
    "log10": _make_log(_LOG10_E, 0.3010299956639812),
    "log1p": lambda w, x: w.intrinsic("copysign", _log1p(w, x), x),
    "expm1": lambda w, x: w.intrinsic("copysign", _expm1(w, _clamp(w, x)), x),
    "sin": _make_odd(_sin),
    "cos": _cos,
    "tan": _make_odd(_tan),
    "asin": _make_odd(lambda w, a: _atan_ratio(w, a, _cosine_of(w, a))),
    "acos": _acos,
    "atan": _make_odd(lambda w, a: _atan_ratio(w, a, w.const(1.0))),
    "sinh": _make_odd(_sinh),
    "cosh": _cosh,
    "asinh": _make_odd(_asinh),
    "acosh": _acosh,
    "atanh": _make_odd(_atanh),
}


def _is_integer(w: LaneBuilder, a: ir.Value) -> ir.Value:
    """Whether a >= 0 is integral: adding and taking away 2**52 rounds to an integer; inf counts, NaN does not."""
    big = w.const(2.0**52)
    integral = w.cmp("==", w.sub(w.add(a, big), big), a)
    return w.builder.or_(integral, w.cmp(">=", a, big))


def _pow(w: LaneBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x**y = 2**(y log2|x|) with the sign and the special values of C's pow (ISO C, F.10.4.4)."""
    b = w.builder
    zero, one, inf = w.const(0.0), w.const(1.0), w.const(INF)
    a, abs_y = _magnitude(w, x), _magnitude(w, y)
    tail, e = _log_split(w, a)
    exponent = w.fma(tail, w.const(_LOG2_E), e)
    exponent = w.select(w.cmp("==", a, zero), w.const(-INF), exponent)
    exponent = w.select(b.fcmp_unordered(">=", a, inf), a, exponent)
    product = _clamp(w, w.mul(y, exponent))
    n, shifted = w.round_magic(product, 1023)
    r = w.mul(w.sub(product, n), w.const(_LN2))
    scale = w.from_bits(b.shl(shifted, w.iconst(52)))
    result = w.fma(w.mul(r, w.horner(r, _EXPM1)), scale, scale)
    integer = _is_integer(w, abs_y)
    odd = b.and_(integer, b.not_(_is_integer(w, w.mul(abs_y, w.const(0.5)))))
    sign = b.and_(w.to_bits(x), b.select(odd, w.iconst(-1), w.iconst(0)))
    result = w.flip_sign(result, sign)
    # A negative finite base has real powers for integral exponents only; a zero or infinite one has them all.
    finite_negative = b.and_(w.cmp("<", x, zero), w.cmp("<", a, inf))
    result = w.select(b.and_(finite_negative, b.not_(integer)), w.const(NAN), result)
    infinite_of_one = b.and_(w.cmp("==", a, one), w.cmp("==", abs_y, inf))
    result = w.select(b.or_(infinite_of_one, w.cmp("==", y, zero)), one, result)
    return w.select(w.cmp("==", x, one), one, result)


def emit_widened(name: str, v: LaneBuilder, *args: ir.Value) -> ir.Value:
    """Emit the float32 function `name` (a key of `WIDENED`) through float64 lanes."""
    widened = [widen(v, a) for a in args]
    lanes = widened[0][0]
    values = [value for _, value in widened]
    result = _pow(lanes, *values) if name == "pow" else _UNARY[name](lanes, *values)
    return v.builder.fptrunc(result, v.kind)


WIDENED = frozenset(_UNARY) | {"pow"}
