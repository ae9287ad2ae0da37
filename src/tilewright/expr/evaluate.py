"""Reference evaluation of computations in NumPy: one array operation per node of the body.

Used for constant folding, for constant prepacking and as the oracle of tests. Sums and products of floats are
accumulated in float64 and rounded once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import InternalError
from tilewright.expr.computation import Axis, Computation, Reducer, Stage, View
from tilewright.expr.dtype import boolean
from tilewright.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary, Var
from tilewright.expr.numpy_semantics import apply_binary, apply_cast, apply_unary
from tilewright.expr.strided_view import strided_view
from tilewright.machine.alignment import aligned_empty

Array = np.ndarray[Any, Any]

_MAX_POINTS = 1 << 22
"""Points of the iteration space evaluated at once; limits the memory of temporaries."""


class Environment:
    """Values of variables (integers or broadcastable index arrays) and of buffers (arrays by name)."""

    def __init__(self, variables: Mapping[Var, Any], buffers: Mapping[str, Array]) -> None:
        self.variables, self.buffers = dict(variables), buffers


def evaluate_expr(e: Expr, env: Environment, *, masked: bool = False) -> Any:
    """The value of an expression; arrays where its variables are arrays.

    Args:
        e: the expression.
        env: values of its variables and buffers.
        masked: whether some points belong to an arm that a Select does not take, so indices may be out of range.

    Raises:
        InternalError: an index out of range outside a Select, or a variable or buffer without a value.
    """
    match e:
        case Const(value, dtype):
            return np.asarray(value).astype(dtype.numpy)
        case Var(name):
            if e not in env.variables:
                raise InternalError(f"variable {name!r} has no value")
            return env.variables[e]
        case Unary(op, a):
            return apply_unary(op, evaluate_expr(a, env, masked=masked))
        case Binary(op, a, b):
            return apply_binary(op, evaluate_expr(a, env, masked=masked), evaluate_expr(b, env, masked=masked))
        case Cast(dtype, a):
            return apply_cast(dtype, evaluate_expr(a, env, masked=masked))
        case Select(cond, a, b):
            test = evaluate_expr(cond, env, masked=masked)
            if np.ndim(test) == 0:
                return evaluate_expr(a if test else b, env, masked=masked)
            return np.where(test, evaluate_expr(a, env, masked=True), evaluate_expr(b, env, masked=True))
        case Load(buffer, indices):
            return _load(buffer.name, [evaluate_expr(i, env, masked=masked) for i in indices], env, masked)
        case _:
            raise InternalError(f"cannot evaluate {type(e).__name__}")


def _load(name: str, indices: list[Any], env: Environment, masked: bool) -> Any:
    if name not in env.buffers:
        raise InternalError(f"buffer {name!r} has no value")
    array = env.buffers[name]
    if not indices:
        return array[()]
    if 0 in array.shape and masked:
        return np.zeros(np.broadcast_shapes(*(np.shape(i) for i in indices)), array.dtype)
    if masked:
        indices = [np.clip(i, 0, n - 1) for i, n in zip(indices, array.shape, strict=True)]
    else:
        for axis, (i, n) in enumerate(zip(indices, array.shape, strict=True)):
            if np.size(i) and (np.min(i) < 0 or np.max(i) >= n):
                raise InternalError(f"index {np.min(i)}..{np.max(i)} of {name!r} leaves axis {axis} of size {n}")
    return array[tuple(indices)]


def _extent_value(extent: Expr, env: Environment) -> int:
    return int(evaluate_expr(extent, env))


def evaluate(c: Stage, buffers: Mapping[str, Array], symbols: Mapping[Var, int]) -> Array:
    """The output of a computation or view.

    Args:
        c: the stage.
        buffers: an array for every input, by buffer name.
        symbols: a size for every symbolic dimension.

    Returns:
        An array of the output's shape and dtype.
    """
    env = Environment({v: np.int64(n) for v, n in symbols.items()}, buffers)
    shape = tuple(_extent_value(s, env) for s in c.output.shape)
    if isinstance(c, View):
        return np.ascontiguousarray(buffers[c.source.name]).reshape(shape)
    result = aligned_empty(shape, c.output.dtype.numpy)
    reduce_shape = tuple(_extent_value(a.extent, env) for a in c.reduce_axes)
    rows = shape[0] if shape else 1
    per_row = max(1, int(np.prod(shape[1:], dtype=np.int64)) * int(np.prod(reduce_shape, dtype=np.int64)))
    rows_per_slab = max(1, _MAX_POINTS // per_row)
    for first in range(0, rows, rows_per_slab):
        end = min(rows, first + rows_per_slab)
        slab = _evaluate_rows(c, env, shape, reduce_shape, (first, end))
        if shape:
            result[first:end] = slab
        else:
            result[()] = slab
    return result


def _evaluate_rows(
    c: Computation, env: Environment, shape: tuple[int, ...], reduce_shape: tuple[int, ...], row_range: tuple[int, int]
) -> Array:
    axes: tuple[Axis, ...] = (*c.axes, *c.reduce_axes)
    ranges = [(0, n) for n in (*shape, *reduce_shape)]
    if shape:
        ranges[0] = row_range
    if c.reducer is None:
        view = _load_view(c.body, env, axes, ranges)
        if view is not None:
            return view
    variables = dict(env.variables)
    for position, (axis, (low, high)) in enumerate(zip(axes, ranges, strict=True)):
        dims = [1] * len(axes)
        dims[position] = high - low
        variables[axis.var] = np.arange(low, high, dtype=np.int64).reshape(dims)
    full_shape = tuple(high - low for low, high in ranges)
    value = np.broadcast_to(np.asarray(evaluate_expr(c.body, Environment(variables, env.buffers))), full_shape)
    if c.reducer is None:
        return value
    with np.errstate(all="ignore"):
        return _reduce(value, c.reducer, tuple(range(len(shape), len(axes))), c)


def _load_view(body: Expr, env: Environment, axes: Sequence[Axis], ranges: Sequence[tuple[int, int]]) -> Array | None:
    """The values of a body that only loads, without temporary arrays; None where it is none, or irregular.

    Packing a model's constants is made of such bodies, and takes most of the time that its compilation evaluates.
    """
    if not isinstance(body, Load) or body.buffer.name not in env.buffers:
        return None
    return strided_view(body, env.buffers[body.buffer.name], [a.var for a in axes], ranges)


def _reduce(value: Array, reducer: Reducer, dims: tuple[int, ...], c: Computation) -> Array:
    dtype = c.output.dtype
    identity = reducer.identity(dtype).value
    if reducer is Reducer.SUM:
        sum_dtype = np.float64 if dtype.is_float else dtype.numpy
        return np.sum(value, axis=dims, dtype=sum_dtype).astype(dtype.numpy)
    if reducer is Reducer.PROD:
        return np.prod(value, axis=dims, dtype=np.float64 if dtype.is_float else dtype.numpy).astype(dtype.numpy)
    if dtype == boolean:
        return np.any(value, axis=dims) if reducer is Reducer.MAX else np.all(value, axis=dims)
    return (np.max if reducer is Reducer.MAX else np.min)(value, axis=dims, initial=dtype.numpy.type(identity))
