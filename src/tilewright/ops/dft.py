"""DFT: discrete Fourier transforms, by fast ones."""

from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, maximum, minimum
from tilewright.ops.axes import num_elements, replace_axis
from tilewright.ops.cast import convert
from tilewright.ops.checks import expect_one_element
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.fourier import MAX_SYMBOLIC_LENGTH, MAX_TRANSFORM_LENGTH, FourierTask, fourier
from tilewright.ops.routine_call import call_routine, data_sizes, shape_tensor, upper_bound
from tilewright.ops.routines.shapes import split_at_axis
from tilewright.routine.stages import DataSize


@dataclass(frozen=True, slots=True)
class _Transform:
    """The attributes, and the length where it is not that of the signals."""

    inverse: bool
    onesided: bool
    length: Expr | None

    @property
    def is_real(self) -> bool:
        """Whether the result has real parts only."""
        return self.inverse and self.onesided

    def size(self, given: Expr) -> Expr:
        """The length of the transform of `given` elements."""
        return self.length if self.length is not None else (given - 1) * 2 if self.is_real else given

    def results(self, size: Expr) -> Expr:
        """The number of results of a transform of length `size`."""
        return size // 2 + 1 if self.onesided and not self.inverse else size


@operator("DFT")
def dft(d: Definition) -> OpValue:
    """The spectrum of real or complex signals along an axis, whose last dimension are real and imaginary parts.

    Raises:
        ShapeError: the last dimension is neither 1 nor 2, or the axis is the last one.
        UnsupportedError: the length may be very large.
    """
    x, inverse, onesided = d.input(0), d.attr_int("inverse", 0), d.attr_int("onesided", 0)
    parts = x.shape[-1]
    if not isinstance(parts, Const) or parts.value not in (1, 2):
        raise ShapeError(f"expected a last dimension of size 1 or 2, got {parts}", where=f"node {d.label}")
    length = None if d.optional(1) is None else cast(int64, d.known_elements(1)[0])
    transform = _Transform(bool(inverse), bool(onesided), length)
    given = None if d.opset < 20 else d.optional(2)
    if given is not None and given.known_elements is None:
        return _along_axis_of_data(d, x, given, transform)
    axis = d.attr_int("axis", 1) if d.opset < 20 else -2 if given is None else d.known_ints(2)[0]
    axis = d.axis(axis, x.rank)
    if axis == x.rank - 1:
        raise ShapeError(f"expected an axis before the last dimension, got axis {axis}", where=f"node {d.label}")
    return _along(d, x, axis, transform)


def _along_axis_of_data(d: Definition, x: OpValue, axis: OpValue, transform: _Transform) -> OpValue:
    """The transform along an axis that is data: the dimensions before it, and those behind it, are one each."""
    expect_one_element(d, axis, "axis")
    dims, rank = x.shape[:-1], x.rank
    longest = max((upper_bound(n) for n in dims), default=0)
    fixed = const(-1) if transform.length is None else transform.length
    scalars = [fixed, int(transform.inverse), int(transform.onesided)]
    (sizes,) = call_routine(d, split_at_axis, [axis, shape_tensor(d, x.shape)], [((rank + 2,), int64)], scalars)
    total = max(upper_bound(*x.shape), 1)
    most = max(longest, upper_bound(transform.results(transform.size(const(longest)))))
    bounds = [total, longest, total, *[most] * (rank - 1)]
    symbols = data_sizes(d, sizes, [DataSize(k, n) for k, n in enumerate(bounds)])
    outer, length, inner, *shape = [size for _, size in symbols]
    y = _along(d, d.view(x, (outer, length, inner, x.shape[-1])), 1, transform)
    return d.view(y, (*shape, y.shape[-1]))


def _along(d: Definition, x: OpValue, axis: int, transform: _Transform) -> OpValue:
    given = x.shape[axis]
    size = transform.size(given)
    if isinstance(size, Const) and size.value < 1:
        raise d.unsupported(f"a transform of length {size}")
    highest = interval(size)[1]
    if highest is None or highest > (MAX_TRANSFORM_LENGTH if isinstance(size, Const) else MAX_SYMBOLIC_LENGTH):
        raise d.unsupported(f"a transform of length {size}")
    d.require(size >= 1, f"a transform of length {size}")
    size = maximum(size, 1)
    used = minimum(given, size // 2 + 1 if transform.is_real else size)
    wide = accumulator_dtype(x.dtype)
    signals, inner = num_elements((*x.shape[:axis], *x.shape[axis + 1 : -1])), num_elements(x.shape[axis + 1 : -1])
    results = transform.results(size)
    shape = (*replace_axis(x.shape[:-1], axis, results), const(1 if transform.is_real else 2))
    geometry = [inner, given * inner, 1, inner, used, results * inner, 1, inner, results]
    task = FourierTask(signals, size, geometry, transform.inverse, transform.is_real)
    return convert(d, fourier(d, convert(d, x, wide), None, task, shape), x.dtype)
