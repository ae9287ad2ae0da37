"""Random operands of kernels, and how far results computed in another order may be from a reference."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.expr.dtype import DType
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.loops.ir import Func, IterKind, blocks

Array = np.ndarray[Any, Any]


def random_array(b: Buffer, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Normally distributed floats or small integers of a buffer's type."""
    if b.dtype.is_float:
        return rng.standard_normal(shape).astype(b.dtype.numpy)
    low, high = {"i": (-8, 9), "u": (0, 9), "b": (0, 2)}[b.dtype.kind]
    return rng.integers(low, high, shape).astype(b.dtype.numpy)


def reordering_tolerance(func: Func, dtype: DType, sizes: Mapping[str, int]) -> float:
    """Error bound of sums in another order, relative to the largest value: eps * (16 + accumulation length)."""
    if not dtype.is_float:
        return 0.0
    length = 0
    for b in blocks(func.body):
        points: Expr = const(1)
        for i in b.iters:
            points = points * i.extent if i.kind is IterKind.REDUCE else points
        env = Environment({s: np.int64(sizes[s.name]) for s in func.symbols}, {})
        length += int(evaluate_expr(points, env))
    digits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtype.name]
    return 2.0**-digits * (16 + length)


def relative_errors(expected: Array, actual: Array) -> Array:
    """Errors relative to the largest finite reference value, as float64; infinite where only one is not a number.

    Args:
        expected: the reference.
        actual: of the same shape.
    """
    reference, result = np.asarray(expected).astype(np.float64), np.asarray(actual).astype(np.float64)
    finite = np.abs(reference[np.isfinite(reference)])
    scale = float(finite.max()) if finite.size and finite.max() else 1.0
    is_same = (reference == result) | (np.isnan(reference) & np.isnan(result))
    with np.errstate(invalid="ignore"):
        errors = np.where(is_same, 0.0, np.abs(reference - result) / scale)
    return np.where(np.isnan(errors), np.inf, errors)
