"""Vector math: LLVM IR of the elementary functions, inline and branch-free, for any number of lanes.

`emit` writes a function of `BOUNDS` at a builder's position; the code generator calls it for every unary or binary
operation on floating point values that is not plain arithmetic. Algorithms: `single` (float32, hot), `extended`
(float32 through float64, rarer), `double` (float64 through the C library), `basic` (a few instructions).
"""

from collections.abc import Callable, Collection, Sequence

from llvmlite import ir

from tilewright.codegen.vecmath import double, single
from tilewright.codegen.vecmath.basic import BINARY, UNARY
from tilewright.codegen.vecmath.bounds import BOUNDS, UlpBound
from tilewright.codegen.vecmath.double import LIBM, libm
from tilewright.codegen.vecmath.extended import WIDENED, emit_widened
from tilewright.codegen.vecmath.lanes import Lanes, element_type
from tilewright.errors import InternalError

__all__ = ["BOUNDS", "UlpBound", "emit", "supports"]

_SINGLE: dict[str, Callable[[Lanes, ir.Value], ir.Value]] = {
    "exp": single.exp,
    "exp2": single.exp2,
    "log": single.log,
    "tanh": single.tanh,
    "sigmoid": single.sigmoid,
    "softplus": single.softplus,
    "erf": single.erf,
}
_DOUBLE: dict[str, Callable[[Lanes, ir.Value], ir.Value]] = {"sigmoid": double.sigmoid, "softplus": double.softplus}


def supports(name: str, dtype: str) -> bool:
    """Whether `emit` knows the function `name` for elements of type `dtype` ("float32" or "float64")."""
    return name in BOUNDS and dtype in ("float32", "float64")


def emit(builder: ir.IRBuilder, name: str, args: Sequence[ir.Value], features: Collection[str] = ()) -> ir.Value:
    """Emit `name(*args)` at the builder's position, without new basic blocks.

    Args:
        builder: positioned where the code goes; its module receives the declarations.
        name: a key of `BOUNDS`.
        args: values of one type: `float`, `double`, or a vector of them.
        features: LLVM target features known to be present, with or without "+"; "avx512f", "avx512vl" and "avx512dq"
            shorten exp and its relatives, with the same results bit for bit. Others matter to instruction selection
            only.

    Returns:
        a value of the arguments' type; for `isnan` and `isinf` an i1 or a vector of i1.

    Raises:
        InternalError: unknown function, wrong number of arguments, or types other than the above.
    """
    if name not in BOUNDS:
        raise InternalError(f"vector math has no function {name!r}")
    if len(args) != BOUNDS[name].arity:
        raise InternalError(f"vector math {name}: expected {BOUNDS[name].arity} arguments, got {len(args)}")
    kind = args[0].type
    element = element_type(kind)
    if not isinstance(element, ir.FloatType | ir.DoubleType) or any(a.type != kind for a in args):
        types = ", ".join(str(a.type) for a in args)
        raise InternalError(f"vector math {name}: expected arguments of one float or double type, got {types}")
    lanes = Lanes(builder, kind, frozenset(f.removeprefix("+") for f in features))
    if name in UNARY:
        return UNARY[name](lanes, *args)
    if name in BINARY:
        return BINARY[name](lanes, *args)
    if isinstance(element, ir.DoubleType):
        return libm(name, lanes, *args) if name in LIBM else _DOUBLE[name](lanes, *args)
    if name in WIDENED:
        return emit_widened(name, lanes, *args)
    return _SINGLE[name](lanes, *args)
