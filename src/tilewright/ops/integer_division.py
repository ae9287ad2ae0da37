"""Integer division as ONNX defines it (that of C), safe for every operand.

A zero divisor gives an arbitrary value instead of a trap of the processor, and so does the smallest number divided by
-1, so generated code never dies of its data.
"""

from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import binary, conjunction, select


def truncated_quotient(a: Expr, b: Expr) -> Expr:
    """a / b of two integers, rounded towards zero."""
    if a.dtype.kind == "u":
        return a // _nonzero_divisor(b)
    if isinstance(b, Const) and b.value > 0:
        return select(a >= 0, a // b, (a - binary("fmod", a, b)) // b)
    divisor = _safe_divisor(b)
    exact = (a - binary("fmod", a, divisor)) // divisor
    # The first arm is what sizes need; it folds to a plain quotient where both signs are proved.
    return select(conjunction(a >= 0, b > 0), a // divisor, select(b.equals(-1), -a, exact))


def truncated_remainder(a: Expr, b: Expr) -> Expr:
    """a - b * quotient(a, b): the remainder with the sign of `a`."""
    if a.dtype.kind == "u":
        return a % _nonzero_divisor(b)
    return binary("fmod", a, b if isinstance(b, Const) and b.value not in (0, -1) else _safe_divisor(b))


def floored_remainder(a: Expr, b: Expr) -> Expr:
    """The remainder with the sign of `b`."""
    if a.dtype.kind == "u":
        return a % _nonzero_divisor(b)
    if isinstance(b, Const) and b.value > 0:
        return a % b
    rest = truncated_remainder(a, b)
    opposite = binary("xor", rest < 0, b < 0)
    wrapped = select(conjunction(binary("ne", rest, 0), opposite), rest + b, rest)
    return select(conjunction(a >= 0, b > 0), a % _safe_divisor(b), wrapped)


def _nonzero_divisor(b: Expr) -> Expr:
    return b if isinstance(b, Const) and b.value else select(b.equals(0), const(1, b.dtype), b)


def _safe_divisor(b: Expr) -> Expr:
    """`b`, or 1 in place of 0 and -1; the remainder of a division by -1 is that of a division by 1."""
    return select(binary("or", b.equals(0), b.equals(-1)), const(1, b.dtype), b)
