"""Arithmetic on two or more broadcast tensors."""

import ml_dtypes

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, float64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import binary, cast, maximum, minimum, select, unary
from tilewright.ops.checks import expect_dtype
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import elementwise, fold_elementwise, inputs_of_one_type, scalar, two_inputs_of_one_type
from tilewright.ops.integer_division import floored_remainder, truncated_quotient, truncated_remainder
from tilewright.ops.legacy_broadcast import align_operand


@operator("Add")
def add(d: Definition) -> OpValue:
    """a + b"""
    return elementwise(d, lambda a, b: a + b, *two_inputs_of_one_type(d))


@operator("Sub")
def sub(d: Definition) -> OpValue:
    """a - b"""
    return elementwise(d, lambda a, b: a - b, *two_inputs_of_one_type(d))


@operator("Mul")
def mul(d: Definition) -> OpValue:
    """a * b"""
    return elementwise(d, lambda a, b: a * b, *two_inputs_of_one_type(d))


@operator("Div")
def div(d: Definition) -> OpValue:
    """a / b; integers round towards zero."""
    a, b = two_inputs_of_one_type(d)
    if a.dtype.is_float:
        return elementwise(d, lambda x, y: x / y, a, b)
    _refuse_zero_divisor(d, b)
    return elementwise(d, truncated_quotient, a, b)


def _refuse_zero_divisor(d: Definition, divisor: OpValue) -> None:
    """Rejects a literal divisor of zero; a zero in the data gives an arbitrary value, see `integer_division`."""
    if any(isinstance(v, Const) and v.value == 0 for v in divisor.known_elements or ()):
        raise ShapeError("integer division by zero", where=f"node {d.label}")


@operator("Mod")
def mod(d: Definition) -> OpValue:
    """The remainder, with the sign of the divisor (`fmod` = 0; of floats since version 28) or of the dividend (1)."""
    a, b = two_inputs_of_one_type(d)
    if not a.dtype.is_float:
        _refuse_zero_divisor(d, b)
    if not d.attr_int("fmod", 0):
        if a.dtype.is_float and d.opset < 28:
            raise ShapeError("expected fmod=1 for floating-point inputs, got fmod=0", where=f"node {d.label}")
        return elementwise(d, _floored_remainder_of_floats if a.dtype.is_float else floored_remainder, a, b)
    if a.dtype.is_float:
        wide = accumulator_dtype(a.dtype)
        return elementwise(d, lambda x, y: cast(a.dtype, binary("fmod", cast(wide, x), cast(wide, y))), a, b)
    return elementwise(d, truncated_remainder, a, b)


def _floored_remainder_of_floats(x: Expr, y: Expr) -> Expr:
    """The remainder of floats with the divisor's sign, also for a zero remainder.

    An infinite divisor is the remainder of a dividend of the other sign.
    """
    wide = accumulator_dtype(x.dtype)
    a, b = cast(wide, x), cast(wide, y)
    remainder = binary("fmod", a, b)
    signs_differ = binary("xor", remainder < 0, b < 0)
    magnitude = unary("abs", remainder)
    zero = select(b < 0, unary("neg", magnitude), magnitude)
    # NaN takes the second arm and stays NaN.
    return cast(x.dtype, select(remainder.equals(0), zero, select(signs_differ, remainder + b, remainder)))


@operator("Pow")
def power(d: Definition) -> OpValue:
    """a ** b in the type of `a`; the exponent may have a different type."""
    base, exponent = d.input(0), d.input(1)
    return elementwise(d, lambda a, b: cast(base.dtype, _power(a, b)), base, align_operand(d, base, exponent))


def _power(a: Expr, b: Expr) -> Expr:
    if isinstance(b, Const) and (a.dtype.is_float or not b.dtype.is_float) and b.value in (1, 2, 3, 4):
        square = a * a
        return {1: a, 2: square, 3: square * a, 4: square * square}[int(b.value)]
    # Integers go through float64, which has every integer power below 2**53.
    wide = accumulator_dtype(a.dtype) if a.dtype.is_float else float64
    if isinstance(b, Const) and b.value == -1 and a.dtype.is_float:
        return const(1, wide) / cast(wide, a)
    return binary("pow", cast(wide, a), cast(wide, b))


@operator("Min")
def smallest(d: Definition) -> OpValue:
    """The smallest of all inputs; NaN where any of them is NaN."""
    return fold_elementwise(d, minimum, inputs_of_one_type(d))


@operator("Max")
def largest(d: Definition) -> OpValue:
    """The largest of all inputs; NaN where any of them is NaN."""
    return fold_elementwise(d, maximum, inputs_of_one_type(d))


@operator("Sum")
def total(d: Definition) -> OpValue:
    """The sum of all inputs."""
    return fold_elementwise(d, lambda a, b: a + b, inputs_of_one_type(d))


@operator("Mean")
def mean(d: Definition) -> OpValue:
    """The mean of all inputs."""
    operands = inputs_of_one_type(d)
    wide = accumulator_dtype(operands[0].dtype)

    count = const(len(operands), wide)
    narrow = operands[0].dtype
    return fold_elementwise(
        d, lambda a, b: a + b, operands, lambda v: cast(wide, v), lambda total: cast(narrow, total / count)
    )


@operator("Clip")
def clip(d: Definition) -> OpValue:
    """min(max(x, low), high); the limits are attributes before version 11 and optional inputs since.

    An omitted limit is the type's smallest or largest finite value, as in the specification's text and in ONNX Runtime:
    infinities become finite. (The function body in the schema of version 13, and the reference evaluator since version
    11, keep them.) Integers need no default limit.
    """
    x = d.input(0)
    low, high = _clip_limits(d, x.dtype)

    def body(value: Expr) -> Expr:
        value = value if low is None else maximum(value, low)
        return value if high is None else minimum(value, high)

    if low is None and high is None:
        return d.view(x, x.shape)
    return elementwise(d, body, x)


def _clip_limits(d: Definition, dtype: DType) -> tuple[Expr | None, Expr | None]:
    largest = const(float(ml_dtypes.finfo(dtype.numpy).max), dtype) if dtype.is_float else None
    lowest = None if largest is None else -largest
    if d.opset < 11:
        low, high = d.attributes.get("min"), d.attributes.get("max")
        return (lowest if low is None else const(low, dtype)), (largest if high is None else const(high, dtype))
    return _clip_limit(d, 1, dtype, lowest), _clip_limit(d, 2, dtype, largest)


def _clip_limit(d: Definition, position: int, dtype: DType, default: Expr | None) -> Expr | None:
    limit = d.optional(position)
    if limit is None:
        return default
    expect_dtype(d, limit, dtype, f"input {position}")
    return scalar(d, position)
