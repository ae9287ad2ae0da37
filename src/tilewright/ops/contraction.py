"""What contractions share: accumulator types, size checks, the sum itself and the epilogue stage.

A contraction is emitted as `sum of a[...] * b[...]` with affine indices and nothing else in its body, so that one
schedule fits all of them; bias, scaling and the conversion to the result's type follow as an element-wise stage.
"""

from collections.abc import Callable, Sequence

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, bfloat16, float16, float32
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast
from tilewright.ops.definition import Definition, Operand, broadcast_shape, is_one

Body = Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr]
"""The value at output indices and reduction indices."""


def accumulator_dtype(dtype: DType) -> DType:
    """The type in which values of `dtype` are summed: float32 for the 16-bit floating types, else `dtype` itself."""
    return float32 if dtype in (float16, bfloat16) else dtype


def widening_product(a: Expr, b: Expr, dtype: DType) -> Expr:
    """a * b in type `dtype`."""
    return cast(dtype, a) * cast(dtype, b)


def expect_size(d: Definition, actual: Expr, expected: Expr, what: str) -> Expr:
    """States that a size has the expected value and returns the simpler of the two.

    Raises:
        ShapeError: the two can never be equal.
    """
    d.require(actual.equals(expected), f"{what}: expected {expected}, got {actual}")
    return min((expected, actual), key=lambda e: (not isinstance(e, Const), len(repr(e)), repr(e)))


def expect_rank(d: Definition, x: Operand, rank: int, what: str) -> None:
    """States the number of dimensions of an operand.

    Raises:
        ShapeError: it has another number.
    """
    if x.rank != rank:
        raise ShapeError(f"{what}: expected {rank} dimensions, got {x.rank}", where=f"node {d.label}")


def expect_dtype(d: Definition, x: Operand, dtype: DType, what: str) -> None:
    """States the element type of an operand.

    Raises:
        ShapeError: it has another type.
    """
    if x.dtype != dtype:
        raise ShapeError(f"{what}: expected type {dtype}, got {x.dtype}", where=f"node {d.label}")


def expect_broadcastable(d: Definition, x: Operand, shape: Sequence[Expr], what: str) -> None:
    """States that `x` broadcasts to `shape` without changing it.

    Raises:
        ShapeError: it never does.
        UnsupportedError: a size of `x` is told by data and may be 1.
    """
    if x.rank > len(shape):
        raise ShapeError(f"{what}: expected at most {len(shape)} dimensions, got {x.rank}", where=f"node {d.label}")
    for have, want in zip(reversed(x.shape), reversed(shape), strict=False):
        if not is_one(have):
            d.refuse_unit_size(have, want, what)
            expect_size(d, have, want, what)


def reduce_over(d: Definition, shape: Sequence[Expr], extents: Sequence[Expr], body: Body, reducer: Reducer) -> Operand:
    """`d.reduce` where reduction axes of size 1 are dropped: `body` sees 0 for their variable."""
    kept = [n for n in extents if not is_one(n)]

    def spread(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        remaining = iter(r)
        return body(i, tuple(const(0) if is_one(n) else next(remaining) for n in extents))

    return d.reduce(shape, kept, spread, reducer)


def sum_over(d: Definition, shape: Sequence[Expr], extents: Sequence[Expr], body: Body) -> Operand:
    """The sum of `body(i, r)` over r; reduction axes of size 1 are dropped."""
    return reduce_over(d, shape, extents, body, Reducer.SUM)


def epilogue(
    d: Definition,
    total: Operand,
    dtype: DType,
    add: Callable[[tuple[Expr, ...]], Expr] | None = None,
    scale: float = 1.0,
) -> Operand:
    """total * scale + add(index), converted to `dtype`; no stage where nothing is left to do.

    Args:
        d: the operator.
        total: result of a contraction, in its accumulator type.
        dtype: type of the result.
        add: gives what is added at an index, in the accumulator type.
        scale: factor of `total`.
    """
    if add is None and scale == 1.0 and total.dtype == dtype:
        return total

    def body(*index: Expr) -> Expr:
        value = total[index] if scale == 1.0 else total[index] * scale
        return cast(dtype, value if add is None else value + add(index))

    return d.compute(total.shape, body, dtype)


def batched_matmul(d: Definition, a: Operand, b: Operand, dtype: DType) -> Operand:
    """The product of NumPy's matmul, summed in `dtype`: batch dimensions broadcast, 1-D operands are vectors.

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
        outer, rest = i[: len(batch)], i[len(batch) :]
        left = (*batch_index(a, outer), *rest[: len(rows)], r[0])
        right = (*batch_index(b, outer), r[0], *rest[len(rows) :])
        return widening_product(a[left], b[right], dtype)

    return sum_over(d, (*batch, *rows, *columns), (inner,), body)


def batch_index(x: Operand, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """The part of `index` that addresses the dimensions of `x` before its last two; 0 along sizes of 1."""
    count = max(x.rank - 2, 0)
    tail = index[len(index) - count :]
    return tuple(const(0) if is_one(n) else i for i, n in zip(tail, x.shape[:count], strict=True))
