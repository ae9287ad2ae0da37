"""CumSum and CumProd as reductions."""

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import cast, select
from tilewright.ops.axes import replace_axis
from tilewright.ops.cast import convert
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator


@operator("CumSum", "CumProd")
def cumulative_reduction(d: Definition) -> OpValue:
    """The cumulative sum (product) along a dimension.

    Each element is a reduction over the whole dimension, with the neutral element in place of those that do not
    contribute: quadratic cost in that size, but no dependence between elements.

    Raises:
        UnsupportedError: the axis depends on data.
        ShapeError: not exactly one axis is given.
    """
    x, axes = d.input(0), d.known_ints(1)
    if len(axes) != 1:
        raise ShapeError(f"input 1 (axis): expected one element, got {len(axes)}", where=f"node {d.label}")
    axis = d.axis(axes[0], x.rank)
    exclusive, is_reverse = bool(d.attr_int("exclusive", 0)), bool(d.attr_int("reverse", 0))
    reducer = Reducer.SUM if d.op_type == "CumSum" else Reducer.PROD
    wide = accumulator_dtype(x.dtype)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        end, element = (r[0], i[axis]) if is_reverse else (i[axis], r[0])
        contributes = element < end if exclusive else element <= end
        return select(contributes, cast(wide, x[replace_axis(i, axis, r[0])]), reducer.identity(wide))

    return convert(d, d.reduce(x.shape, (x.shape[axis],), body, reducer), x.dtype)
