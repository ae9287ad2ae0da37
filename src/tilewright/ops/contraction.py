"""Contractions: accumulator types, reductions, batched matrix products and the epilogue stage.

A contraction is emitted as `sum of a[...] * b[...]` with affine indices and nothing else in its body, so that all of
them are scheduled in the same way; bias, scaling and the conversion of the result follow as an element-wise stage.
"""

from collections.abc import Callable, Sequence

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, bfloat16, float16, float32
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast
from tilewright.expr.traversal import is_one
from tilewright.ops.checks import expect_size
from tilewright.ops.definition import Definition, OpValue, broadcast_shape

Body = Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr]
"""The value at output indices and reduction indices."""


def accumulator_dtype(dtype: DType) -> DType:
    """The type in which values of `dtype` are accumulated: float32 for 16-bit floats, else `dtype` itself."""
    return float32 if dtype in (float16, bfloat16) else dtype


def widening_product(a: Expr, b: Expr, dtype: DType) -> Expr:
    """a * b in type `dtype`."""
    return cast(dtype, a) * cast(dtype, b)


def reduce_over(d: Definition, shape: Sequence[Expr], extents: Sequence[Expr], body: Body, reducer: Reducer) -> OpValue:
    """`d.reduce` without reduction axes of size 1, for whose index `body` gets 0."""
    reduced_extents = [n for n in extents if not is_one(n)]

    def expanded_body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        remaining = iter(r)
        return body(i, tuple(const(0) if is_one(n) else next(remaining) for n in extents))

    return d.reduce(shape, reduced_extents, expanded_body, reducer)


def sum_over(d: Definition, shape: Sequence[Expr], extents: Sequence[Expr], body: Body) -> OpValue:
    """The sum of `body(i, r)` over r, without reduction axes of size 1."""
    return reduce_over(d, shape, extents, body, Reducer.SUM)


def epilogue(
    d: Definition,
    total: OpValue,
    dtype: DType,
    add: Callable[[tuple[Expr, ...]], Expr] | None = None,
    scale: float = 1.0,
) -> OpValue:
    """total * scale + add(index), converted to `dtype`; no stage where that is `total` itself.

    Args:
        d: the operator.
        total: result of a contraction, in its accumulator type.
        dtype: type of the result.
        add: the value to add at an index, in the accumulator type.
        scale: factor of `total`.
    """
    if add is None and scale == 1.0 and total.dtype == dtype:
        return total

    def body(*index: Expr) -> Expr:
        value = total[index] if scale == 1.0 else total[index] * scale
        return cast(dtype, value if add is None else value + add(index))

    return d.compute(total.shape, body, dtype)


def batched_matmul(d: Definition, a: OpValue, b: OpValue, dtype: DType) -> OpValue:
    """NumPy's matmul, accumulated in `dtype`: batch dimensions broadcast, 1-D operands are vectors.

    Raises:
        ShapeError: a scalar operand, inner sizes that differ, or batch sizes that do not broadcast.
    """
    for name, x in (("A", a), ("B", b)):
        if x.rank == 0:
            raise ShapeError(f"{name}: expected at least 1 dimension, got a scalar", where=f"node {d.label}")
    inner = expect_size(d, b.shape[-2 if b.rank > 1 else -1], a.shape[-1], "rows of B")
    batch = broadcast_shape(d, a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        outer, matrix = i[: len(batch)], i[len(batch) :]
        left = (*batch_index(a, outer), *matrix[: len(rows)], r[0])
        right = (*batch_index(b, outer), r[0], *matrix[len(rows) :])
        return widening_product(a[left], b[right], dtype)

    return sum_over(d, (*batch, *rows, *columns), (inner,), body)


def batch_index(x: OpValue, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """The part of `index` that addresses the dimensions of `x` before its last two; 0 along sizes of 1."""
    count = max(x.rank - 2, 0)
    tail = index[len(index) - count :]
    return tuple(const(0) if is_one(n) else i for i, n in zip(tail, x.shape[:count], strict=True))
