"""Shape arithmetic: elements of small tensors as expressions over the symbols, derived from their computations."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, Load, Select, Var, const
from tilewright.expr.operations import binary, select
from tilewright.expr.traversal import free_vars, has_loads, loads

MAX_TRACKED_ELEMENTS = 64
"""Largest number of elements that are tracked."""


class _UnknownError(Exception):
    """An element is not known at compile time."""


def symbolic_elements(c: Computation, elements: Mapping[Buffer, tuple[Expr, ...]]) -> tuple[Expr, ...] | None:
    """The elements of a computation's output in row-major order, or None where they depend on data.

    Args:
        c: the computation.
        elements: the known elements by buffer.
    """
    if any(load.buffer not in elements for load in loads(c.body)):
        return None
    shape, reduce_shape = [a.extent for a in c.axes], [a.extent for a in c.reduce_axes]
    total = 1
    for extent in (*shape, *reduce_shape):
        if not isinstance(extent, Const):
            return None
        total *= int(extent.value)
    if total > MAX_TRACKED_ELEMENTS:
        return None
    axes = [a.var for a in c.axes]
    try:
        return tuple(
            _reduced_element(c, dict(zip(axes, map(const, point), strict=True)), elements) for point in _points(shape)
        )
    except _UnknownError:
        return None


def _reduced_element(c: Computation, point: Mapping[Var, Expr], elements: Mapping[Buffer, tuple[Expr, ...]]) -> Expr:
    if c.reducer is None:
        return _element_value(c.body, point, elements)
    result: Expr = c.reducer.identity(c.output.dtype)
    inner = [a.var for a in c.reduce_axes]
    for step in _points([a.extent for a in c.reduce_axes]):
        env = {**point, **dict(zip(inner, map(const, step), strict=True))}
        result = binary(c.reducer.op, result, _element_value(c.body, env, elements))
    return result


def _points(extents: Sequence[Expr]) -> Iterator[tuple[int, ...]]:
    """All points of literal extents; no lists are made of the extents where one of them is 0."""
    sizes = [int(n.value) for n in extents if isinstance(n, Const)]
    return product(*map(range, sizes)) if all(sizes) else iter(())


def _element_value(e: Expr, env: Mapping[Var, Expr], elements: Mapping[Buffer, tuple[Expr, ...]]) -> Expr:
    if isinstance(e, Var):
        return env.get(e, e)
    # A (possibly large) expression of sizes alone is kept instead of being rebuilt term by term.
    if not has_loads(e) and env.keys().isdisjoint(free_vars(e)):
        return e
    match e:
        case Load(buffer, indices):
            return _load_element(buffer, [_element_value(i, env, elements) for i in indices], elements)
        case Select(cond, a, b):
            test = _element_value(cond, env, elements)
            if isinstance(test, Const):
                return _element_value(a if test.value else b, env, elements)
            return select(test, _element_value(a, env, elements), _element_value(b, env, elements))
        case Binary(op, a, b):
            return binary(op, _element_value(a, env, elements), _element_value(b, env, elements))
        case _:
            return e.rebuild(tuple(_element_value(c, env, elements) for c in e.children()))


def _load_element(buffer: Buffer, indices: list[Expr], elements: Mapping[Buffer, tuple[Expr, ...]]) -> Expr:
    linear_index = 0
    for i, n in zip(indices, buffer.shape, strict=True):
        if not isinstance(i, Const) or not isinstance(n, Const) or not 0 <= i.value < n.value:
            raise _UnknownError
        linear_index = linear_index * int(n.value) + int(i.value)
    return elements[buffer][linear_index]
