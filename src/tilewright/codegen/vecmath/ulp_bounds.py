"""The accuracy contract of the vector math: one bound per function, tested one by one on every instruction set."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UlpBound:
    """Largest error of a function, in units in the last place of the result's type.

    Attributes:
        float32: bound for float32; 0.5 means correctly rounded, 0 exact.
        float64: bound for float64.
        arity: number of arguments.
        note: domain and special values; "all" is every value of the type, denormal arguments and results included.
    """

    float32: float
    float64: float
    arity: int = 1
    note: str = "all"


ULP_BOUNDS: dict[str, UlpBound] = {
    "exp": UlpBound(1.5, 1.0),
    "exp2": UlpBound(1.5, 1.0, note="all; exact for integers"),
    "expm1": UlpBound(0.6, 2.0),
    "log": UlpBound(1.5, 1.0, note="all; -inf at 0, NaN below"),
    "log2": UlpBound(0.6, 1.0, note="all; -inf at 0, NaN below; exact for powers of two"),
    "log10": UlpBound(0.6, 2.0, note="all; -inf at 0, NaN below"),
    "log1p": UlpBound(0.6, 2.0, note="all; -inf at -1, NaN below"),
    "sqrt": UlpBound(0.5, 0.5, note="all; NaN below 0"),
    "rsqrt": UlpBound(1.5, 1.5, note="all; inf with the sign of zero at 0, NaN below"),
    "reciprocal": UlpBound(0.5, 0.5),
    "tanh": UlpBound(3.0, 2.5, note="all; never beyond +-1"),
    "sigmoid": UlpBound(2.75, 2.5),
    "softplus": UlpBound(2.5, 2.5),
    "erf": UlpBound(3.0, 1.5, note="all; never beyond +-1"),
    "pow": UlpBound(0.6, 1.0, arity=2, note="all; special values as C's pow"),
    "sin": UlpBound(0.6, 1.0, note="all; NaN at inf"),
    "cos": UlpBound(0.6, 1.0, note="all; NaN at inf"),
    "tan": UlpBound(0.6, 1.0, note="all; NaN at inf"),
    "asin": UlpBound(0.6, 1.0, note="[-1, 1], NaN outside"),
    "acos": UlpBound(0.6, 1.0, note="[-1, 1], NaN outside"),
    "atan": UlpBound(0.6, 1.0),
    "sinh": UlpBound(0.6, 2.5),
    "cosh": UlpBound(0.6, 2.5),
    "asinh": UlpBound(0.6, 2.5),
    "acosh": UlpBound(0.6, 2.5, note="[1, inf], NaN below"),
    "atanh": UlpBound(0.6, 2.5, note="[-1, 1], NaN outside"),
    "floor": UlpBound(0.0, 0.0),
    "ceil": UlpBound(0.0, 0.0),
    "round": UlpBound(0.0, 0.0, note="all; ties to even"),
    "trunc": UlpBound(0.0, 0.0),
    "abs": UlpBound(0.0, 0.0),
    "neg": UlpBound(0.0, 0.0),
    "sign": UlpBound(0.0, 0.0, note="all; +0 for both zeros"),
    "copysign": UlpBound(0.0, 0.0, arity=2),
    "fmod": UlpBound(0.0, 0.0, arity=2, note="all; C's fmod: the result has the sign of the dividend"),
    "mod": UlpBound(0.5, 0.5, arity=2, note="all; the result has the sign of the divisor, as numpy.mod"),
    "min": UlpBound(0.0, 0.0, arity=2, note="all; NaN if either is NaN; of -0 and +0 either"),
    "max": UlpBound(0.0, 0.0, arity=2, note="all; NaN if either is NaN; of -0 and +0 either"),
    "isnan": UlpBound(0.0, 0.0, note="all; the result is i1"),
    "isinf": UlpBound(0.0, 0.0, note="all; the result is i1"),
}
