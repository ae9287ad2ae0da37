"""Comparisons, logical and bitwise operators, Where, IsNaN and IsInf."""

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, boolean
from tilewright.expr.nodes import BinaryOp, Expr, const
from tilewright.expr.operations import binary, cast, conjunction, select, unary
from tilewright.ops.checks import expect_dtype
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import elementwise, two_inputs_of_one_type
from tilewright.ops.legacy_broadcast import align_operand

_COMPARISONS: dict[str, BinaryOp] = {
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
}  # fmt: skip
_LOGIC: dict[str, BinaryOp] = {"And": "and", "Or": "or", "Xor": "xor"}
_BITS: dict[str, BinaryOp] = {"BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor"}


@operator(*_COMPARISONS)
def comparison(d: Definition) -> OpValue:
    """A comparison of two tensors; false where either is NaN."""
    return elementwise(d, lambda a, b: binary(_COMPARISONS[d.op_type], a, b), *two_inputs_of_one_type(d))


@operator(*_LOGIC)
def logic(d: Definition) -> OpValue:
    """A logical operation on two bool tensors."""
    a, b = d.input(0), d.input(1)
    expect_dtype(d, a, boolean, "input 0")
    expect_dtype(d, b, boolean, "input 1")
    return elementwise(d, lambda x, y: binary(_LOGIC[d.op_type], x, y), a, align_operand(d, a, b))


@operator("Not")
def logical_not(d: Definition) -> OpValue:
    """The logical negation."""
    x = d.input(0)
    expect_dtype(d, x, boolean, "input 0")
    return elementwise(d, lambda v: unary("not", v), x)


@operator(*_BITS)
def bits(d: Definition) -> OpValue:
    """A bit operation on two integer tensors."""
    operands = two_inputs_of_one_type(d)
    _expect_integer(d, operands[0].dtype)
    return elementwise(d, lambda a, b: binary(_BITS[d.op_type], a, b), *operands)


@operator("BitwiseNot")
def bitwise_not(d: Definition) -> OpValue:
    """Every bit flipped."""
    x = d.input(0)
    _expect_integer(d, x.dtype)
    return elementwise(d, lambda v: binary("xor", v, const(-1, x.dtype)), x)


@operator("BitShift")
def bit_shift(d: Definition) -> OpValue:
    """Bit shift of integers; arithmetic to the right for signed types.

    A shift by the width or more, or by a negative number, gives 0, or -1 for a right shift of a negative number (ONNX
    1.23, BitShift-28; before version 28 all types are unsigned).

    Raises:
        ShapeError: the direction is neither LEFT nor RIGHT.
    """
    a, b = two_inputs_of_one_type(d)
    _expect_integer(d, a.dtype)
    direction = d.attr_str("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise ShapeError(f"direction: expected LEFT or RIGHT, got {direction!r}", where=f"node {d.label}")
    op: BinaryOp = "shl" if direction == "LEFT" else "shr"

    signed = a.dtype.kind != "u"

    def body(x: Expr, y: Expr) -> Expr:
        # What processors do for shifts beyond the width differs: modulo the width, or 0.
        in_range = conjunction(y >= 0, y < a.dtype.bits) if signed else y < a.dtype.bits
        if signed and op == "shr":
            return binary(op, x, select(in_range, y, a.dtype.bits - 1))
        return select(in_range, binary(op, x, select(in_range, y, 0)), 0)

    return elementwise(d, body, a, b)


def _expect_integer(d: Definition, dtype: DType) -> None:
    if not dtype.is_int:
        raise ShapeError(f"input 0: expected an integer type, got {dtype}", where=f"node {d.label}")


@operator("Where")
def where(d: Definition) -> OpValue:
    """The element of input 1 where the condition holds, else that of input 2."""
    condition = d.input(0)
    expect_dtype(d, condition, boolean, "input 0 (condition)")
    a, b = two_inputs_of_one_type(d, 1)
    return elementwise(d, select, condition, a, b)


@operator("IsNaN")
def is_nan(d: Definition) -> OpValue:
    """Whether elements are NaN."""
    x = d.input(0)
    return d.compute(x.shape, lambda *i: unary("isnan", x[i]))


@operator("IsInf")
def is_inf(d: Definition) -> OpValue:
    """Whether elements are infinite with one of the selected signs."""
    x = d.input(0)
    wide = accumulator_dtype(x.dtype)
    negative, positive = bool(d.attr_int("detect_negative", 1)), bool(d.attr_int("detect_positive", 1))

    def body(*i: Expr) -> Expr:
        value = cast(wide, x[i])
        if negative and positive:
            return unary("isinf", value)
        if not negative and not positive:
            return const(False, boolean)
        return value.equals(float("inf") if positive else float("-inf"))

    return d.compute(x.shape, body)
