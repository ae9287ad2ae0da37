"""Values that are known while compiling: they replace loads, and stages of constants only are evaluated."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from tilewright.errors import InternalError
from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Computation, Stage, View
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Const, Expr, Load, Var, walk
from tilewright.graph.ir import Array
from tilewright.ops.definition import Known

_POINTS = 1 << 22
"""Larger iteration spaces are left to native code."""

MAX_SPAN = (1 << 63) - 1
"""Bytes that NumPy can count."""

_GROWTH = 4
_SMALL = 1 << 16
"""A constant result may take this many bytes, or `_GROWTH` times what it is computed from."""


def literal_shape(buffer: Buffer) -> tuple[int, ...] | None:
    """The sizes where all are literal and those of an array, else None."""
    sizes = [int(s.value) for s in buffer.shape if isinstance(s, Const)]
    return tuple(sizes) if len(sizes) == buffer.rank and span(buffer) <= MAX_SPAN else None


def span(buffer: Buffer) -> int:
    """Bytes over which the literal sizes spread; one of 0 does not count, as strides are computed from the others."""
    return prod(max(1, int(s.value)) for s in buffer.shape if isinstance(s, Const)) * buffer.dtype.bytes


def known_array(buffer: Buffer, known: Known | None) -> Array | None:
    """The elements as an array where all are literals, else None."""
    shape = literal_shape(buffer)
    if known is None or shape is None or not all(isinstance(v, Const) for v in known):
        return None
    values = [v.value for v in known if isinstance(v, Const)]
    array = np.asarray(values).astype(buffer.dtype.numpy).reshape(shape)
    array.setflags(write=False)
    return array


def with_known(stage: Stage, known: Mapping[Buffer, Known]) -> Stage:
    """The stage with loads of known elements replaced by their expressions."""
    if isinstance(stage, View) or not any(b in known for b in stage.inputs):
        return stage
    return replace(stage, body=_replaced(stage.body, known, {}))


def _replaced(e: Expr, known: Mapping[Buffer, Known], done: dict[Expr, Expr]) -> Expr:
    if e in done:
        return done[e]
    children = e.children()
    inner = tuple(_replaced(c, known, done) for c in children)
    result = e if all(a is b for a, b in zip(inner, children, strict=True)) else e.rebuild(inner)
    if isinstance(result, Load) and result.buffer in known:
        element = _element(result, known[result.buffer])
        result = result if element is None else element
    done[e] = result
    return result


def _element(load: Load, values: Known) -> Expr | None:
    if len(values) == 1:
        return values[0]
    flat = 0
    for index, size in zip(load.indices, load.buffer.shape, strict=True):
        if not isinstance(index, Const) or not isinstance(size, Const) or not 0 <= index.value < size.value:
            return None
        flat = flat * int(size.value) + int(index.value)
    return values[flat]


def folded(stage: Stage, constants: Mapping[str, Array]) -> Array | None:
    """The result of a stage that reads constants only, or None where it has other inputs or is not worth it.

    Args:
        stage: a computation or view.
        constants: by buffer name.
    """
    shape = literal_shape(stage.output)
    if shape is None or any(b.name not in constants for b in stage.inputs):
        return None
    if isinstance(stage, View):
        return constants[stage.source.name].reshape(shape)
    read = sum(constants[b.name].nbytes for b in stage.inputs)
    size = int(np.prod(shape, dtype=np.float64)) * stage.output.dtype.bytes
    if size > max(_SMALL, _GROWTH * read) or not _is_closed(stage):
        return None
    try:
        array = evaluate(stage, constants, {})
    except InternalError:
        # An index out of range: reported where it would be read, at run time.
        return None
    array.setflags(write=False)
    return array


def _is_closed(stage: Computation) -> bool:
    """Whether the iteration space is small and literal, and the body uses its variables only."""
    points = 1
    for axis in (*stage.axes, *stage.reduce_axes):
        if not isinstance(axis.extent, Const):
            return False
        points *= int(axis.extent.value)
    own = {a.var for a in (*stage.axes, *stage.reduce_axes)}
    return points <= _POINTS and all(not isinstance(e, Var) or e in own for e in walk(stage.body))
