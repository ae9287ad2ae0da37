"""Compile-time constants: substitution of known elements and evaluation of stages of constants."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from tilewright.errors import InternalError
from tilewright.expr.computation import Computation, Stage, View
from tilewright.expr.dtype import DTYPES
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var, const
from tilewright.expr.traversal import post_order
from tilewright.graph.ir import Array
from tilewright.ops.definition import KnownElements

_MAX_FOLDED_POINTS = 1 << 22
"""Larger iteration spaces are left to native code."""

MAX_BUFFER_BYTES = (1 << 63) - 1
"""Largest array size that NumPy can count."""

_MAX_GROWTH = 4
_ALWAYS_FOLDED_BYTES = 1 << 16
"""A constant result may take this many bytes, or `_MAX_GROWTH` times the bytes of its operands."""


def literal_shape(buffer: Buffer) -> tuple[int, ...] | None:
    """The sizes, if all are literal and an array can have them; else None."""
    sizes = [int(s.value) for s in buffer.shape if isinstance(s, Const)]
    return tuple(sizes) if len(sizes) == buffer.rank and literal_bytes(buffer) <= MAX_BUFFER_BYTES else None


def literal_bytes(buffer: Buffer) -> int:
    """Product of the literal sizes in bytes; a size of 0 counts as 1, as strides are computed from the others."""
    return prod(max(1, int(s.value)) for s in buffer.shape if isinstance(s, Const)) * buffer.dtype.bytes


def as_constant_array(buffer: Buffer, elements: KnownElements | None) -> Array | None:
    """The elements as an array if all are literals, else None."""
    shape = literal_shape(buffer)
    if elements is None or shape is None or not all(isinstance(v, Const) for v in elements):
        return None
    literals = [v.value for v in elements if isinstance(v, Const)]
    array = np.asarray(literals).astype(buffer.dtype.numpy).reshape(shape)
    array.setflags(write=False)
    return array


def literal_elements(values: Array, limit: int = 64) -> KnownElements | None:
    """The elements of a constant as literals; None for more than `limit` elements or a non-native type."""
    if values.size > limit or values.dtype.name not in DTYPES:
        return None
    dtype = DTYPES[values.dtype.name]
    return tuple(const(v.item(), dtype) for v in values.reshape(-1))


def substitute_constants(stage: Stage, elements: Mapping[Buffer, KnownElements]) -> Stage:
    """The stage with loads of known elements replaced by the elements' expressions."""
    if isinstance(stage, View) or not any(b in elements for b in stage.inputs):
        return stage
    return replace(stage, body=_substitute_loads(stage.body, elements, {}))


def _substitute_loads(e: Expr, elements: Mapping[Buffer, KnownElements], memo: dict[Expr, Expr]) -> Expr:
    if e in memo:
        return memo[e]
    children = e.children()
    operands = tuple(_substitute_loads(c, elements, memo) for c in children)
    result = e if all(a is b for a, b in zip(operands, children, strict=True)) else e.rebuild(operands)
    if isinstance(result, Load) and result.buffer in elements:
        element = _constant_element(result, elements[result.buffer])
        result = result if element is None else element
    memo[e] = result
    return result


def _constant_element(load: Load, elements: KnownElements) -> Expr | None:
    if len(elements) == 1:
        return elements[0]
    position = 0
    for index, size in zip(load.indices, load.buffer.shape, strict=True):
        if not isinstance(index, Const) or not isinstance(size, Const) or not 0 <= index.value < size.value:
            return None
        position = position * int(size.value) + int(index.value)
    return elements[position]


def fold_stage(stage: Stage, constants: Mapping[str, Array]) -> Array | None:
    """The result of a stage of constants, None where it has other inputs or is too large to be folded.

    Args:
        stage: a computation or view.
        constants: by buffer name.
    """
    shape = literal_shape(stage.output)
    if shape is None or any(b.name not in constants for b in stage.inputs):
        return None
    if isinstance(stage, View):
        return constants[stage.source.name].reshape(shape)
    operand_bytes = sum(constants[b.name].nbytes for b in stage.inputs)
    result_bytes = int(np.prod(shape, dtype=np.float64)) * stage.output.dtype.bytes
    if result_bytes > max(_ALWAYS_FOLDED_BYTES, _MAX_GROWTH * operand_bytes) or not _is_closed(stage):
        return None
    try:
        array = evaluate(stage, constants, {})
    except InternalError:
        # An index out of range: reported at run time, by the read.
        return None
    array.setflags(write=False)
    return array


def _is_closed(stage: Computation) -> bool:
    """Whether the iteration space is small and literal, and the body uses no other variables."""
    points = 1
    for axis in (*stage.axes, *stage.reduce_axes):
        if not isinstance(axis.extent, Const):
            return False
        points *= int(axis.extent.value)
    variables = {a.var for a in (*stage.axes, *stage.reduce_axes)}
    return points <= _MAX_FOLDED_POINTS and all(
        not isinstance(e, Var) or e in variables for e in post_order(stage.body)
    )
