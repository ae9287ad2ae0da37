"""Activation functions."""

from tilewright.expr.nodes import const, maximum
from tilewright.ops.definition import Definition, Operand, operator


@operator("Relu")
def relu(d: Definition) -> Operand:
    """max(x, 0)"""
    x = d.input(0)
    return d.compute(x.shape, lambda *i: maximum(x[i], const(0, x.dtype)))
