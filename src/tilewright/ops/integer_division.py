"""Integer division with ONNX's (C's) semantics that never traps.

A zero divisor, and the smallest integer divided by -1, give an arbitrary value instead of a processor trap.
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
    truncated = (a - binary("fmod", a, divisor)) // divisor
    # The first arm is the case of sizes: the select folds to it where both signs are proved.
    return select(conjunction(a >= 0, b > 0), a // divisor, select(b.equals(-1), -a, truncated))


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
    remainder = truncated_remainder(a, b)
    signs_differ = binary("xor", remainder < 0, b < 0)
    floored = select(conjunction(binary("ne", remainder, 0), signs_differ), remainder + b, remainder)
    return select(conjunction(a >= 0, b > 0), a % _safe_divisor(b), floored)


def _nonzero_divisor(b: Expr) -> Expr:
    return b if isinstance(b, Const) and b.value else select(b.equals(0), const(1, b.dtype), b)


def _safe_divisor(b: Expr) -> Expr:
    """`b`, or 1 instead of 0 and -1; a remainder by -1 equals that by 1."""
    return select(binary("or", b.equals(0), b.equals(-1)), const(1, b.dtype), b)
