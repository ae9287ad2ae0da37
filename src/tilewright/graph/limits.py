"""Limits on types and known elements of values.

A small model can define sizes whose formulas fill the memory.
"""

from math import prod

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.graph.constant_values import MAX_BUFFER_BYTES, literal_bytes
from tilewright.ops.definition import OpValue

MAX_RANK = 64
"""Dimensions of a value; NumPy's limit."""

MAX_FORMULA_NODES = 1 << 14
"""Expression nodes of one size or known element, with shared nodes counted at every use."""

MAX_TERMS = 1 << 12
"""Terms of the product of all sizes, from which strides and bytes are computed."""


def limit_violation(x: OpValue) -> str | None:
    """Which limit a value exceeds, None where it exceeds none."""
    if x.rank > MAX_RANK:
        return f"with {x.rank} dimensions, expected at most {MAX_RANK}"
    if literal_bytes(x.buffer) > MAX_BUFFER_BYTES:
        return f"with shape [{', '.join(map(str, x.shape))}], whose bytes no array can count"
    if any(e.tree_size > MAX_FORMULA_NODES for e in (*x.shape, *(x.known_elements or ()))):
        return f"with a size or element whose formula has more than {MAX_FORMULA_NODES} parts"
    if prod(len(polynomial(n)) for n in x.shape) > MAX_TERMS:
        return f"with sizes whose product has more than {MAX_TERMS} terms"
    return None
