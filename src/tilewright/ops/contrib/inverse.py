"""Inverses of square matrices."""

from tilewright.ops.cast import convert
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.matrix import square_matrices
from tilewright.ops.routine_call import call_routine
from tilewright.ops.routines.matrix import invert_matrices


@operator("Inverse", domain=CONTRIB)
def inverse(d: Definition) -> OpValue:
    """The inverse of each matrix in the last two dimensions; a singular one gives elements that are not finite.

    Raises:
        ShapeError: the matrices are not square.
    """
    x, batches, size = square_matrices(d)
    wide = accumulator_dtype(x.dtype)
    scalars, work = (batches, size), [(size * size, wide)]
    (result,) = call_routine(d, invert_matrices, [convert(d, x, wide)], [(x.shape, wide)], scalars, work)
    return convert(d, result, x.dtype)
