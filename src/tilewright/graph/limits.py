"""Limits of what is known about a value: small models can make sizes whose formulas fill the memory."""

from math import prod

from tilewright.expr.polynomial import polynomial
from tilewright.graph.known import MAX_SPAN, span
from tilewright.ops.definition import Operand

MAX_RANK = 64
"""Dimensions of a value, as NumPy's arrays have them."""

MAX_FORMULA = 1 << 14
"""Nodes of the formula of one size or known element, shared ones counted at every place."""

MAX_TERMS = 1 << 12
"""Terms of the product of all sizes, which strides and bytes are computed from."""


def beyond_limits(x: Operand) -> str | None:
    """What is too large about a value, None where nothing is."""
    if x.rank > MAX_RANK:
        return f"with {x.rank} dimensions, expected at most {MAX_RANK}"
    if span(x.buffer) > MAX_SPAN:
        return f"with shape [{', '.join(map(str, x.shape))}], whose bytes no array can count"
    if any(e.weight > MAX_FORMULA for e in (*x.shape, *(x.known or ()))):
        return f"with a size or element whose formula has more than {MAX_FORMULA} parts"
    if prod(len(polynomial(n)) for n in x.shape) > MAX_TERMS:
        return f"with sizes whose product has more than {MAX_TERMS} terms"
    return None
