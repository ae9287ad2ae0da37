"""Operators that generate tensors: ConstantOfShape, Range, OneHot, EyeLike, Trilu."""

import numpy as np

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, bfloat16, boolean, dtype_of, float16, float32, float64, int64
from tilewright.expr.nodes import Binary, Const, Expr, Select, Var, const
from tilewright.expr.operations import cast, ceildiv, maximum, select, unary
from tilewright.expr.traversal import post_order
from tilewright.ops.axes import show_shape
from tilewright.ops.cast import attribute_dtype
from tilewright.ops.checks import expect_shape
from tilewright.ops.data_dependent import data_dependent_range, elements_or_symbols
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import inputs_of_one_type, optional_scalar
from tilewright.routine.intrinsics import as_integer

_MAX_LIMIT = 1 << 62
"""The largest limit of a range whose distance from a size does not overflow."""


@operator("ConstantOfShape")
def constant_of_shape(d: Definition) -> OpValue:
    """A tensor of the shape of input 0, filled with one value (default: float32 zero).

    Raises:
        ShapeError: a size is negative, or `value` does not have exactly one element.
    """
    sizes = elements_or_symbols(d, 0)
    if any(isinstance(n, Const) and n.value < 0 for n in sizes):
        raise ShapeError(f"shape: expected sizes of 0 or more, got {show_shape(sizes)}", where=f"node {d.label}")
    value = np.asarray(d.attributes.get("value", np.zeros(1, np.float32)))
    if value.size != 1:
        raise ShapeError(f"value: expected one element, got {value.size}", where=f"node {d.label}")
    fill = const(value.reshape(-1)[0].item(), dtype_of(value.dtype))
    return d.compute(tuple(cast(int64, n) for n in sizes), lambda *_: fill)


@operator("Range")
def range_(d: Definition) -> OpValue:
    """start, start + delta, ... below limit; 16-bit floats are computed in the type of `stash_type`.

    Raises:
        UnsupportedError: the number of elements is symbolic and can't be derived; `stash_type` is neither float32 nor
            float64.
        ShapeError: the step is 0, there are more elements than int64 counts, or a limit is too far from a symbolic one.
    """
    inputs_of_one_type(d, 0, 3)
    if any(d.input(k).known_elements is None for k in range(3)):
        return data_dependent_range(d, _stash_type(d, d.input(0).dtype))
    start, limit, delta = (d.known_elements(k)[0] for k in range(3))
    return arithmetic_sequence(d, start, limit, delta)


def arithmetic_sequence(d: Definition, start: Expr, limit: Expr, delta: Expr) -> OpValue:
    """start, start + delta, ... below limit; errors as of Range."""
    if isinstance(delta, Const) and not delta.value:
        raise ShapeError("delta: expected a number other than 0, got 0", where=f"node {d.label}")
    length = _range_length(d, start, limit, delta)
    wide = _stash_type(d, start.dtype)

    def body(i: Expr) -> Expr:
        return cast(start.dtype, cast(wide, start) + cast(wide, i) * cast(wide, delta))

    return d.compute((length,), body)


def _stash_type(d: Definition, dtype: DType) -> DType:
    """The type in which elements of `dtype` are computed: for 16-bit floats that of `stash_type`, default float32."""
    number = d.attr_int("stash_type", 1)
    if dtype not in (float16, bfloat16):
        return dtype
    if number not in (1, 11):
        raise d.unsupported(f"stash_type {number} is not float32 or float64")
    return float32 if number == 1 else float64


def _range_length(d: Definition, start: Expr, limit: Expr, delta: Expr) -> Expr:
    if isinstance(start, Const) and isinstance(limit, Const) and isinstance(delta, Const):
        length = _literal_length(start.value, limit.value, delta.value)
        if length > np.iinfo(np.int64).max:
            raise ShapeError(f"expected a number of elements that int64 holds, got {length}", where=f"node {d.label}")
        return const(length)
    if start.dtype.is_float:
        # A size must be an integer expression again.
        steps = limit - start if not (isinstance(start, Const) and start.value == 0) else limit
        length = cast(int64, unary("ceil", steps / delta))
        if not all(
            isinstance(e, Const | Var | Binary | Select) and e.dtype in (int64, boolean) for e in post_order(length)
        ):
            raise d.unsupported("the length of a range of symbolic floating-point limits")
        return maximum(length, 0)
    first, last = cast(int64, start), cast(int64, limit)
    if not isinstance(delta, Const):
        raise d.unsupported("the step of the range is symbolic")
    for n in (start, limit):
        if isinstance(n, Const) and abs(n.value) > _MAX_LIMIT:
            what = f"expected limits from -2^62 to 2^62, as one of them is symbolic, got {n}"
            raise ShapeError(what, where=f"node {d.label}")
    step = int(delta.value)
    return maximum(ceildiv(last - first, step) if step > 0 else ceildiv(first - last, -step), 0)


def _literal_length(start: float, limit: float, delta: float) -> int:
    """The number of elements of a range of integers, exactly, or of floats; 0 where it is NaN."""
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        return max(-((start - limit) // delta), 0)
    return max(as_integer(np.ceil((limit - start) / delta)), 0)


@operator("OneHot")
def one_hot(d: Definition) -> OpValue:
    """Along a new dimension of size `depth`: the "on" value at the index, the "off" value elsewhere."""
    indices, values = d.input(0), d.input(2)
    depths = elements_or_symbols(d, 1)
    if len(depths) != 1:
        raise ShapeError(f"input 1 (depth): expected one element, got {len(depths)}", where=f"node {d.label}")
    expect_shape(d, values, (const(2),), "input 2 (values)")
    depth = cast(int64, depths[0])
    axis = d.axis(d.attr_int("axis", -1), indices.rank + 1)

    def body(*i: Expr) -> Expr:
        index = cast(int64, indices[(*i[:axis], *i[axis + 1 :])])
        position = select(index < 0, index + depth, index)
        return select(position.equals(i[axis]), values[1], values[0])

    return d.compute((*indices.shape[:axis], depth, *indices.shape[axis:]), body)


@operator("EyeLike")
def eye_like(d: Definition) -> OpValue:
    """Ones on diagonal `k`, zeros elsewhere, in the shape of a matrix.

    Raises:
        ShapeError: the input is not a matrix.
    """
    x = d.input(0)
    if x.rank != 2:
        raise ShapeError(f"input 0: expected 2 dimensions, got {x.rank}", where=f"node {d.label}")
    dtype = attribute_dtype(d, "dtype", x.dtype if d.opset >= 9 else float32)
    k = d.attr_int("k", 0)
    return d.compute(x.shape, lambda *i: select((i[1] - i[0]).equals(k), const(1, dtype), 0))


@operator("Trilu")
def trilu(d: Definition) -> OpValue:
    """The upper or lower triangle from diagonal `k` on, zeros elsewhere.

    Raises:
        ShapeError: the input has less than two dimensions.
    """
    x = d.input(0)
    if x.rank < 2:
        raise ShapeError(f"input 0: expected 2 dimensions or more, got {x.rank}", where=f"node {d.label}")
    diagonal = optional_scalar(d, 1)
    upper = bool(d.attr_int("upper", 1))

    def body(*i: Expr) -> Expr:
        offset = i[-1] - i[-2]
        k = const(0) if diagonal is None else cast(int64, diagonal)
        return select(offset >= k if upper else offset <= k, x[i], 0)

    return d.compute(x.shape, body)
