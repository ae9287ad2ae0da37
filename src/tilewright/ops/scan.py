"""Running sums and products."""

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import cast, select
from tilewright.ops.axes import replace_axis
from tilewright.ops.cast import convert
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, Operand, operator


@operator("CumSum", "CumProd")
def cumulative_reduction(d: Definition) -> Operand:
    """The sum (product) of the elements up to each one along a dimension.

    It is a reduction over the whole dimension in which the elements that do not count are neutral, so its cost is
    quadratic in that size; the elements do not depend on each other.

    Raises:
        UnsupportedError: the axis depends on data.
        ShapeError: there is not one axis.
    """
    x, listed = d.input(0), d.known_ints(1)
    if len(listed) != 1:
        raise ShapeError(f"input 1 (axis): expected one element, got {len(listed)}", where=f"node {d.label}")
    axis = d.axis(listed[0], x.rank)
    exclusive, backwards = bool(d.attr_int("exclusive", 0)), bool(d.attr_int("reverse", 0))
    reducer = Reducer.SUM if d.op_type == "CumSum" else Reducer.PROD
    wide = accumulator_dtype(x.dtype)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        here, other = (r[0], i[axis]) if backwards else (i[axis], r[0])
        counts = other < here if exclusive else other <= here
        return select(counts, cast(wide, x[replace_axis(i, axis, r[0])]), reducer.identity(wide))

    return convert(d, d.reduce(x.shape, (x.shape[axis],), body, reducer), x.dtype)
