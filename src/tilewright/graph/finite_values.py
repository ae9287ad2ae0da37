"""Which tensors cannot hold infinities or NaN: interval arithmetic on the values of element-wise computations.

Attention with a mask that is computed from integers, such as (1 - keep) * -10000, has no rows that are masked whole by
-inf.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from tilewright.expr.computation import Computation, View
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Binary, Buffer, Cast, Const, Expr, Load, Select, Unary
from tilewright.graph.ir import Array
from tilewright.graph.program import RuntimeStep, Step, step_outputs

Interval = tuple[float, float]
"""The smallest and the largest value."""

_MAX_DEPTH = 24
"""Computations in a row that are followed."""


def has_finite_elements(buffer: Buffer, steps: Sequence[Step], constants: Mapping[str, Array]) -> bool:
    """Whether all elements of a floating-point buffer are known to be finite.

    Args:
        buffer: what the steps write, a constant, or an input (which may hold anything).
        steps: in order of execution.
        constants: data by buffer name.
    """
    writers = {b: s for s in steps for b in step_outputs(s)}
    return _buffer_interval(buffer, writers, constants, 0) is not None


def _buffer_interval(
    b: Buffer, writers: Mapping[Buffer, Step], constants: Mapping[str, Array], depth: int
) -> Interval | None:
    """The values of a buffer; None where they may be infinite or NaN."""
    if not b.dtype.is_float:
        return _type_interval(b.dtype)
    if b.name in constants:
        data = constants[b.name].astype(np.float64)
        return _finite(float(data.min()), float(data.max()), b.dtype) if data.size else (0.0, 0.0)
    step = writers.get(b)
    if step is None or isinstance(step, RuntimeStep) or depth > _MAX_DEPTH:
        return None
    if isinstance(step, View):
        return _buffer_interval(step.source, writers, constants, depth + 1)
    return None if step.is_reduction else _value_interval(step, writers, constants, depth + 1)


def _value_interval(
    c: Computation, writers: Mapping[Buffer, Step], constants: Mapping[str, Array], depth: int
) -> Interval | None:
    def visit(e: Expr) -> Interval | None:
        if not e.dtype.is_float:
            return _type_interval(e.dtype)
        match e:
            case Const(value):
                return _finite(float(value), float(value), e.dtype)
            case Load(buffer):
                return _buffer_interval(buffer, writers, constants, depth)
            case Cast(_, a):
                return _within_dtype(visit(a), e.dtype)
            case Unary("neg", a):
                inner = visit(a)
                return None if inner is None else (-inner[1], -inner[0])
            case Select(_, a, b):
                return _hull(visit(a), visit(b))
            case Binary(op, a, b):
                return _within_dtype(_combine(op, visit(a), visit(b)), e.dtype)
            case _:
                return None

    return visit(c.body)


def _combine(op: str, a: Interval | None, b: Interval | None) -> Interval | None:
    if a is None or b is None:
        return None
    match op:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            products = [x * y for x in a for y in b]
            return min(products), max(products)
        case "min" | "max":
            return _hull(a, b)
        case _:
            return None


def _hull(a: Interval | None, b: Interval | None) -> Interval | None:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _within_dtype(values: Interval | None, dtype: DType) -> Interval | None:
    return None if values is None else _finite(*values, dtype)


def _finite(low: float, high: float, dtype: DType) -> Interval | None:
    """The interval if both ends are finite values of a type; half of the largest value is a margin for rounding."""
    limit = 0.5 * float(np.finfo(np.float32 if dtype.bits == 32 else np.float64).max) if dtype.bits >= 32 else 3e4
    is_within = isfinite(low) and isfinite(high) and max(abs(low), abs(high)) <= limit
    return (low, high) if is_within else None


def _type_interval(dtype: DType) -> Interval:
    """The values of a type that is not floating point."""
    if dtype.kind == "b":
        return 0.0, 1.0
    low, high = dtype.integer_range
    return float(low), float(high)
