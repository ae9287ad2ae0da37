"""BitCast: the bits of elements as another type."""

from tilewright.errors import ShapeError
from tilewright.expr.dtype import boolean
from tilewright.ops.axes import num_elements
from tilewright.ops.cast import attribute_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine
from tilewright.ops.routines.bits import copy_elements


@operator("BitCast")
def bit_cast(d: Definition) -> OpValue:
    """The elements of X, whose bits are read as the type `to`.

    Raises:
        ShapeError: the types are not equally wide.
        UnsupportedError: other numbers than 0 and 1 become bools.
    """
    x, dtype = d.input(0), attribute_dtype(d, "to")
    if dtype.bits != x.dtype.bits:
        what = f"to: expected a type of {x.dtype.bits} bits as {x.dtype}, got {dtype}"
        raise ShapeError(what, where=f"node {d.label}")
    if dtype == x.dtype:
        return x
    if dtype is boolean:
        raise d.unsupported(f"the bits of {x.dtype} as bools")
    (result,) = call_routine(d, copy_elements, [x], [(x.shape, dtype)], [num_elements(x.shape)])
    return result
