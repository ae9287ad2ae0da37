"""AffineGrid: the positions that GridSample reads for an affine map."""

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, maximum
from tilewright.ops.checks import expect_shape
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.data_dependent import elements_or_symbols
from tilewright.ops.definition import Definition, OpValue, operator


@operator("AffineGrid")
def affine_grid(d: Definition) -> OpValue:
    """Y[n, y, x] = theta[n] @ (x, y, 1), with coordinates of -1 to 1, innermost first; with z for three dimensions

    Raises:
        ShapeError: there are not four or five sizes, or theta does not fit them.
    """
    theta, sizes = d.input(0), elements_or_symbols(d, 1)
    rank = len(sizes) - 2
    if rank not in (2, 3):
        raise ShapeError(f"size: expected 4 or 5 sizes, got {len(sizes)}", where=f"node {d.label}")
    expect_shape(d, theta, (sizes[0], const(rank), const(rank + 1)), "theta")
    wide, aligns = accumulator_dtype(theta.dtype), bool(d.attr_int("align_corners", 0))
    axes = [_coordinates(d, n, wide, aligns) for n in sizes[2:]]

    def body(n: Expr, *i: Expr) -> Expr:
        *place, row = i
        total = cast(wide, theta[n, row, const(rank)])
        for k in range(rank):
            total = total + cast(wide, theta[n, row, const(k)]) * axes[rank - 1 - k][place[rank - 1 - k]]
        return cast(theta.dtype, total)

    return d.compute((theta.shape[0], *sizes[2:], const(rank)), body)


def _coordinates(d: Definition, size: Expr, dtype: DType, aligns: bool) -> OpValue:
    """`size` coordinates between -1 and 1, which are the middles of the outermost elements or their outer edges."""

    def body(i: Expr) -> Expr:
        if aligns:
            return cast(dtype, i) * (cast(dtype, const(2)) / cast(dtype, maximum(size - 1, 1))) - 1.0
        return cast(dtype, i * 2 + 1) / cast(dtype, size) - 1.0

    return d.compute((size,), body)
