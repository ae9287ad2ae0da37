"""Limits of what is known about a value: small models can make sizes whose formulas fill the memory."""

from math import prod

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.graph.constant_values import MAX_BUFFER_BYTES, literal_bytes
from tilewright.ops.definition import Operand

MAX_RANK = 64
"""Dimensions of a value, as NumPy's arrays have them."""

MAX_FORMULA_NODES = 1 << 14
"""Nodes of the formula of one size or known element, shared ones counted at every place."""

MAX_TERMS = 1 << 12
"""Terms of the product of all sizes, which strides and bytes are computed from."""


def limit_violation(x: Operand) -> str | None:
    """What is too large about a value, None where nothing is."""
    if x.rank > MAX_RANK:
        return f"with {x.rank} dimensions, expected at most {MAX_RANK}"
    if literal_bytes(x.buffer) > MAX_BUFFER_BYTES:
        return f"with shape [{', '.join(map(str, x.shape))}], whose bytes no array can count"
    if any(e.tree_size > MAX_FORMULA_NODES for e in (*x.shape, *(x.known_elements or ()))):
        return f"with a size or element whose formula has more than {MAX_FORMULA_NODES} parts"
    if prod(len(polynomial(n)) for n in x.shape) > MAX_TERMS:
        return f"with sizes whose product has more than {MAX_TERMS} terms"
    return None
