"""Shapes as tensors (Shape, Size), and operators that only change the shape."""

from collections.abc import Sequence

from tilewright.errors import ShapeError
from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.dtype import boolean
from tilewright.expr.nodes import Const, Expr, as_expr, const
from tilewright.expr.operations import binary, select
from tilewright.expr.traversal import is_one
from tilewright.ops.axes import axes_of, num_elements, show_shape
from tilewright.ops.data_dependent import data_dependent_view, is_data_dependent
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import known_length
from tilewright.ops.routines.shapes import resolve_reshape, resolve_squeeze, resolve_unsqueeze


def stack_scalars(d: Definition, values: Sequence[Expr]) -> OpValue:
    """A tensor of one dimension that holds the given values."""

    def body(i: Expr) -> Expr:
        result: Expr = values[-1] if values else const(0)
        for k, value in reversed(list(enumerate(values[:-1]))):
            result = select(i.equals(k), value, result)
        return result

    return d.compute((len(values),), body)


@operator("Shape")
def shape(d: Definition) -> OpValue:
    """The sizes of dimensions `start` to `end` (exclusive) of the input."""
    x = d.input(0)
    start, end = d.attr_int("start", 0), d.attr_int("end", x.rank)
    return stack_scalars(d, x.shape[slice(start, end)])


@operator("Size")
def size(d: Definition) -> OpValue:
    """The number of elements of the input."""
    total = num_elements(d.input(0).shape)
    return d.compute((), lambda: total)


@operator("Identity")
def identity(d: Definition) -> OpValue:
    """The input itself."""
    x = d.input(0)
    return d.view(x, x.shape)


@operator("Dropout", ignores=("ratio", "seed"))
def dropout(d: Definition) -> tuple[OpValue, ...]:
    """The input itself and, on demand, a mask of True; training runs on the reference evaluator."""
    x = d.input(0)
    training = d.optional(2)
    if training is not None and not (training.known_elements and isinstance(training.known_elements[0], Const)):
        raise d.unsupported("training_mode depends on data")
    if training is not None and training.known_elements and training.known_elements[0] != const(False, boolean):
        raise d.unsupported("training_mode is true")
    result = d.view(x, x.shape)
    return (result,) if d.num_outputs == 1 else (result, d.compute(x.shape, lambda *_: const(True, boolean)))


@operator("Reshape")
def reshape(d: Definition) -> OpValue:
    """The same elements with the shape of input 1: 0 copies a size (unless `allowzero`), -1 is inferred.

    Raises:
        ShapeError: the numbers of elements differ.
    """
    x, allows_zero = d.input(0), d.attr_int("allowzero", 0)
    if is_data_dependent(d, 1):
        return data_dependent_view(d, x, resolve_reshape, 1, known_length(d.input(1)) or 0, allows_zero)
    target, zero_copies = d.known_elements(1), not allows_zero
    sizes: list[Expr] = []
    inferred: list[int] = []
    for k, n in enumerate(target):
        if isinstance(n, Const) and n.value == -1:
            inferred.append(k)
            sizes.append(const(1))
        elif isinstance(n, Const) and n.value == 0 and zero_copies:
            if k >= x.rank:
                raise ShapeError(
                    f"shape {show_shape(target)} copies dimension {k}, the input has {x.rank}", where=f"node {d.label}"
                )
            sizes.append(x.shape[k])
        elif isinstance(n, Const) and n.value < 0:
            raise ShapeError(f"shape: expected -1 or more, got {n.value}", where=f"node {d.label}")
        else:
            sizes.append(n)
    if len(inferred) > 1:
        raise ShapeError(
            f"shape {show_shape(target)}: expected at most one -1, got {len(inferred)}", where=f"node {d.label}"
        )
    total, fixed = num_elements(x.shape), num_elements(sizes)
    message = f"cannot reshape {show_shape(x.shape)} into {show_shape(target)}"
    if inferred:
        sizes[inferred[0]] = _exact_quotient(d, total, fixed, message)
    else:
        _infer_unbounded_size(d, sizes, total, message)
        fixed = num_elements(sizes)
        d.require(total.equals(fixed), f"{message}: expected {total} elements, got {fixed}")
    return d.view(x, sizes)


def _infer_unbounded_size(d: Definition, sizes: list[Expr], total: Expr, message: str) -> None:
    """Replaces a size that might be negative as far as its expression tells, as products in int32 may, by what the
    number of elements leaves for it, and requires both to be equal."""
    unbounded = [k for k, n in enumerate(sizes) if not can_prove(const(0) <= n)]
    if len(unbounded) != 1:
        return
    (k,) = unbounded
    others = num_elements([n for j, n in enumerate(sizes) if j != k])
    if isinstance(others, Const) and others.value == 0:
        return
    quotient, remainder = poly.divide(poly.polynomial(total), poly.polynomial(others))
    if not remainder:
        size, sizes[k] = sizes[k], poly.expression(quotient)
        d.require(size.equals(sizes[k]), f"{message}: expected dimension {k} to be {sizes[k]}, got {size}")


def _exact_quotient(d: Definition, total: Expr, divisor: Expr, message: str) -> Expr:
    """total / divisor, exact: by polynomial division where possible, else by a division that is checked."""
    if isinstance(divisor, Const) and divisor.value == 0:
        raise ShapeError(f"{message}: -1 together with a size of 0", where=f"node {d.label}")
    quotient, remainder = poly.divide(poly.polynomial(total), poly.polynomial(divisor))
    if not remainder:
        return poly.expression(quotient)
    result = total // divisor
    d.require((result * divisor).equals(total), f"{message}: expected a multiple of {divisor} elements, got {total}")
    return result


@operator("Flatten")
def flatten(d: Definition) -> OpValue:
    """A matrix: the dimensions before `axis` merged, the others merged."""
    x = d.input(0)
    axis = d.attr_int("axis", 1)
    axis = x.rank if axis == x.rank else d.axis(axis, x.rank)
    return d.view(x, (num_elements(x.shape[:axis]), num_elements(x.shape[axis:])))


@operator("Squeeze")
def squeeze(d: Definition) -> OpValue:
    """The input without the given dimensions of size 1, or without all of them.

    Without axes, a symbolic size counts as larger than 1, which is checked at run time.
    """
    x = d.input(0)
    if is_data_dependent(d, 1):
        return data_dependent_view(d, x, resolve_squeeze, 1, x.rank - (known_length(d.input(1)) or 0))
    axes = axes_of(d, x.rank)
    if axes is None:
        axes = tuple(k for k, n in enumerate(x.shape) if is_one(n))
        for k, n in enumerate(x.shape):
            if k not in axes:
                d.require(binary("ne", n, 1), f"dimension {k} without axes: expected a size other than 1, got 1")
    for k in axes:
        d.require(x.shape[k].equals(1), f"dimension {k}: expected size 1, got {x.shape[k]}")
    return d.view(x, tuple(n for k, n in enumerate(x.shape) if k not in axes))


@operator("Unsqueeze")
def unsqueeze(d: Definition) -> OpValue:
    """The input with dimensions of size 1 inserted at the given places of the result."""
    x = d.input(0)
    attribute = d.attr_ints("axes")
    if attribute is None and is_data_dependent(d, 1):
        return data_dependent_view(d, x, resolve_unsqueeze, 1, x.rank + (known_length(d.input(1)) or 0))
    count = len(d.known_elements(1) if attribute is None else attribute)
    axes = axes_of(d, x.rank + count) or ()
    sizes = list(x.shape)
    for k in sorted(axes):
        sizes.insert(k, as_expr(1))
    return d.view(x, sizes)
