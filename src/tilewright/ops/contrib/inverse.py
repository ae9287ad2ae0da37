"""Inverses of square matrices."""

from tilewright.errors import ShapeError
from tilewright.expr.operations import cast
from tilewright.ops.axes import num_elements
from tilewright.ops.checks import expect_size
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine
from tilewright.ops.routines.matrix import invert_matrices


@operator("Inverse", domain=CONTRIB)
def inverse(d: Definition) -> OpValue:
    """The inverse of each matrix in the last two dimensions; a singular one gives elements that are not finite.

    Raises:
        ShapeError: the matrices are not square.
    """
    x = d.input(0)
    if x.rank < 2:
        raise ShapeError(f"X: expected at least 2 dimensions, got {x.rank}", where=f"node {d.label}")
    size = expect_size(d, x.shape[-1], x.shape[-2], "columns of X")
    wide, source = accumulator_dtype(x.dtype), x
    if wide != x.dtype:
        x = d.compute(x.shape, lambda *i: cast(wide, source[i]))
    batches = num_elements(x.shape[:-2])
    (result,) = call_routine(d, invert_matrices, [x], [(x.shape, wide)], (batches, size), [(size * size, wide)])
    return result if wide == source.dtype else d.compute(x.shape, lambda *i: cast(source.dtype, result[i]))
