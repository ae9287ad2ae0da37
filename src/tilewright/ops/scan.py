"""CumSum and CumProd."""

from tilewright.errors import ShapeError
from tilewright.ops.axes import num_elements
from tilewright.ops.cast import convert
from tilewright.ops.checks import expect_one_element
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine, shape_tensor
from tilewright.ops.routines.running import data_dependent_running_reduction, running_reduction


@operator("CumSum", "CumProd")
def cumulative_reduction(d: Definition) -> OpValue:
    """The sum (product) of all elements up to each one along a dimension, in linear time.

    Raises:
        ShapeError: not exactly one axis is given, or it is out of range.
    """
    x, axes = d.input(0), d.input(1)
    exclusive, is_reverse = d.attr_int("exclusive", 0), d.attr_int("reverse", 0)
    flags = [int(d.op_type == "CumProd"), exclusive, is_reverse]
    wide = convert(d, x, accumulator_dtype(x.dtype))
    result = [(x.shape, wide.dtype)]
    if axes.known_elements is None:
        expect_one_element(d, axes, "input 1 (axis)")
        operands = [wide, axes, shape_tensor(d, x.shape)]
        return convert(d, call_routine(d, data_dependent_running_reduction, operands, result, flags)[0], x.dtype)
    if len(axes.known_elements) != 1:
        what = f"input 1 (axis): expected one element, got {len(axes.known_elements)}"
        raise ShapeError(what, where=f"node {d.label}")
    axis = d.axis(d.known_ints(1)[0], x.rank)
    outer, inner = num_elements(x.shape[:axis]), num_elements(x.shape[axis + 1 :])
    sizes = [outer, x.shape[axis], inner, *flags]
    return convert(d, call_routine(d, running_reduction, [wide], result, sizes)[0], x.dtype)
