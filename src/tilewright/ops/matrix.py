"""Det: determinants of square matrices."""

from tilewright.errors import ShapeError
from tilewright.expr.dtype import float64
from tilewright.expr.nodes import Expr
from tilewright.ops.axes import num_elements
from tilewright.ops.cast import convert
from tilewright.ops.checks import expect_size
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine
from tilewright.ops.routines.matrix import PANEL, determinants


def square_matrices(d: Definition) -> tuple[OpValue, Expr, Expr]:
    """Input 0, the number of matrices in its last two dimensions, and their number of rows and columns.

    Raises:
        ShapeError: the matrices are not square.
    """
    x = d.input(0)
    if x.rank < 2:
        raise ShapeError(f"X: expected at least 2 dimensions, got {x.rank}", where=f"node {d.label}")
    size = expect_size(d, x.shape[-1], x.shape[-2], "columns of X")
    return x, num_elements(x.shape[:-2]), size


@operator("Det")
def det(d: Definition) -> OpValue:
    """The determinant of each matrix in the last two dimensions: 0 for a singular one, 1 for one without elements.

    Raises:
        ShapeError: the matrices are not square.
    """
    x, batches, size = square_matrices(d)
    wide, work = convert(d, x, float64), [(size * size, float64), (size * PANEL, float64)]
    (result,) = call_routine(d, determinants, [wide], [(x.shape[:-2], float64)], (batches, size), work)
    return convert(d, result, x.dtype)
