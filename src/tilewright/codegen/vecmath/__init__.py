"""Vector math: the elementary functions as inline, branch-free LLVM IR, for any number of lanes.

`emit` emits a function of `ULP_BOUNDS`; code generation calls it for every floating-point operation that is not plain
arithmetic. Algorithms: `float32` (in float32, hot), `widened` (float32 through float64, rarer), `float64` (through the
C library), `basic` (a few instructions).
"""

from collections.abc import Callable, Collection, Sequence

from llvmlite import ir

from tilewright.codegen.llvm_types import element_type
from tilewright.codegen.vecmath import float32, float64
from tilewright.codegen.vecmath.basic import BINARY, UNARY
from tilewright.codegen.vecmath.float64 import LIBM, call_libm
from tilewright.codegen.vecmath.lane_builder import LaneBuilder
from tilewright.codegen.vecmath.ulp_bounds import ULP_BOUNDS, UlpBound
from tilewright.codegen.vecmath.widened import WIDENED, emit_widened
from tilewright.errors import InternalError

__all__ = ["ULP_BOUNDS", "UlpBound", "emit", "supports"]

_SINGLE: dict[str, Callable[[LaneBuilder, ir.Value], ir.Value]] = {
    "exp": float32.exp,
    "exp2": float32.exp2,
    "log": float32.log,
    "tanh": float32.tanh,
    "sigmoid": float32.sigmoid,
    "softplus": float32.softplus,
    "erf": float32.erf,
}
_DOUBLE: dict[str, Callable[[LaneBuilder, ir.Value], ir.Value]] = {
    "sigmoid": float64.sigmoid,
    "softplus": float64.softplus,
}


def supports(name: str, dtype: str) -> bool:
    """Whether `emit` has the function `name` for elements of type `dtype` ("float32" or "float64")."""
    return name in ULP_BOUNDS and dtype in ("float32", "float64")


def emit(builder: ir.IRBuilder, name: str, args: Sequence[ir.Value], features: Collection[str] = ()) -> ir.Value:
    """Emits `name(*args)` at the builder's position, without new basic blocks.

    Args:
        builder: positioned where the code goes; its module receives the declarations.
        name: a key of `ULP_BOUNDS`.
        args: values of one type: `float`, `double`, or a vector of them.
        features: LLVM target features, with or without "+"; "avx512f", "avx512vl" and "avx512dq" shorten exp and
            functions built on it, with bitwise equal results. Others matter to instruction selection only.

    Returns:
        A value of the arguments' type; for `isnan` and `isinf` an i1 or a vector of i1.

    Raises:
        InternalError: unknown function, wrong number of arguments, or other types than the above.
    """
    if name not in ULP_BOUNDS:
        raise InternalError(f"vector math has no function {name!r}")
    if len(args) != ULP_BOUNDS[name].arity:
        raise InternalError(f"vector math {name}: expected {ULP_BOUNDS[name].arity} arguments, got {len(args)}")
    kind = args[0].type
    element = element_type(kind)
    if not isinstance(element, ir.FloatType | ir.DoubleType) or any(a.type != kind for a in args):
        types = ", ".join(str(a.type) for a in args)
        raise InternalError(f"vector math {name}: expected arguments of one float or double type, got {types}")
    lanes = LaneBuilder(builder, kind, frozenset(f.removeprefix("+") for f in features))
    if name in UNARY:
        return UNARY[name](lanes, *args)
    if name in BINARY:
        return BINARY[name](lanes, *args)
    if isinstance(element, ir.DoubleType):
        return call_libm(name, lanes, *args) if name in LIBM else _DOUBLE[name](lanes, *args)
    if name in WIDENED:
        return emit_widened(name, lanes, *args)
    return _SINGLE[name](lanes, *args)
