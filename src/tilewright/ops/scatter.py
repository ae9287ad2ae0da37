"""Operators that write at positions that are data: Scatter, ScatterElements, ScatterND, TensorScatter, MaxUnpool."""

from collections.abc import Sequence

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, conjunction, select
from tilewright.ops.axes import num_elements, show_shape
from tilewright.ops.checks import expect_rank, expect_shape
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.data_dependent import elements_or_symbols
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine, shape_tensor
from tilewright.ops.routines import scatter as routines

_REDUCTIONS = {
    "none": routines.REPLACE, "add": routines.ADD, "mul": routines.MUL, "min": routines.MIN, "max": routines.MAX,
}  # fmt: skip


def _reduction(d: Definition) -> int:
    name = d.attr_str("reduction", "none")
    if name not in _REDUCTIONS:
        what = f"reduction: expected one of {', '.join(_REDUCTIONS)}, got {name!r}"
        raise ShapeError(what, where=f"node {d.label}")
    return _REDUCTIONS[name]


def _strides(shape: Sequence[Expr]) -> list[Expr]:
    return [num_elements(shape[k + 1 :]) for k in range(len(shape))]


def _expect_integers(d: Definition, x: OpValue) -> None:
    if not x.dtype.is_int:
        raise ShapeError(f"indices: expected an integer type, got {x.dtype}", where=f"node {d.label}")


@operator("ScatterElements", "Scatter")
def scatter_elements(d: Definition) -> OpValue:
    """A copy of the data with updates at their own positions, of which an index replaces the one along `axis`.

    Raises:
        ShapeError: ranks or shapes do not fit; at a call: an index is out of range.
    """
    x, indices, updates = d.input(0), d.input(1), d.input(2)
    axis, reduction = d.axis(d.attr_int("axis", 0), x.rank), _reduction(d)
    _expect_integers(d, indices)
    if not x.rank:
        raise d.unsupported("a scalar has no positions")
    expect_rank(d, indices, x.rank, "indices")
    expect_shape(d, updates, indices.shape, "updates")
    for k, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if k != axis:
            d.require(m <= n, f"indices, dimension {k}: expected a size of at most {n}, got {m}")
    operands = [x, indices, updates, shape_tensor(d, indices.shape), shape_tensor(d, _strides(x.shape))]
    scalars = [axis, x.shape[axis], reduction]
    return call_routine(
        d, routines.scatter_elements, operands, [(x.shape, x.dtype)], scalars, [(x.rank, int64)]
    )[0]  # fmt: skip


@operator("ScatterND")
def scatter_nd(d: Definition) -> OpValue:
    """A copy of the data with slices at index tuples, which are along the last dimension of the indices.

    Raises:
        ShapeError: ranks or shapes do not fit; at a call: an index is out of range.
        UnsupportedError: the length of the tuples is symbolic.
    """
    x, indices, updates, reduction = d.input(0), d.input(1), d.input(2), _reduction(d)
    _expect_integers(d, indices)
    if not indices.rank or not isinstance(indices.shape[-1], Const):
        raise d.unsupported("the length of the index tuples is not known")
    depth = int(indices.shape[-1].value)
    if not 0 <= depth <= x.rank:
        what = f"index tuples: expected at most {x.rank} entries, got {depth}"
        raise ShapeError(what, where=f"node {d.label}")
    expect_shape(d, updates, (*indices.shape[:-1], *x.shape[depth:]), "updates")
    shape = x.shape or (const(1),)
    operands = [x, indices, updates, shape_tensor(d, shape), shape_tensor(d, _strides(shape))]
    tuples, inner = num_elements(indices.shape[:-1]), num_elements(x.shape[depth:])
    return call_routine(
        d, routines.scatter_slices, operands, [(x.shape, x.dtype)], [tuples, depth, inner, reduction]
    )[0]  # fmt: skip


@operator("TensorScatter")
def tensor_scatter(d: Definition) -> OpValue:
    """A cache with an update at a position along `axis` per batch, with wrap-around in the mode "circular".

    Raises:
        ShapeError: shapes do not fit, or the mode is unknown; at a call: an update does not fit behind its position.
    """
    x, update, positions = d.input(0), d.input(1), d.optional(2)
    axis, mode = d.axis(d.attr_int("axis", -2), x.rank), d.attr_str("mode", "linear")
    expect_rank(d, update, x.rank, "update")
    if mode not in ("linear", "circular") or axis == 0:
        raise ShapeError(f"expected an axis after the batch, got {axis} and mode {mode!r}", where=f"node {d.label}")
    size, length = x.shape[axis], update.shape[axis]
    expect_shape(d, update, (*x.shape[:axis], length, *x.shape[axis + 1 :]), "update")
    d.require(length <= size, f"update: expected at most {size} elements along dimension {axis}, got {length}")
    if positions is not None:
        expect_shape(d, positions, (x.shape[0],), "write_indices")
        high = size - length if mode == "linear" else size - 1
        (positions,) = call_routine(d, routines.checked_range, [positions], [((x.shape[0],), int64)], [0, high])

    def body(*i: Expr) -> Expr:
        start = const(0) if positions is None else positions[i[0]]
        offset = i[axis] - start
        if mode == "circular":
            offset = select(offset < 0, offset + size, offset)
        at = clamp_index(offset, length)
        value = zero_if_empty(update[(*i[:axis], at, *i[axis + 1 :])], (at, length))
        return select(conjunction(offset >= 0, offset < length), value, x[i])

    return d.compute(x.shape, body)


@operator("ReverseSequence")
def reverse_sequence(d: Definition) -> OpValue:
    """The first elements of each batch along the time axis in reverse order, as many as its length says.

    Raises:
        ShapeError: the axes do not fit; at a call: a length is out of range.
    """
    x, lengths = d.input(0), d.input(1)
    batch, time = d.axis(d.attr_int("batch_axis", 1), x.rank), d.axis(d.attr_int("time_axis", 0), x.rank)
    if batch == time:
        raise ShapeError(f"expected two axes, got {batch} twice", where=f"node {d.label}")
    expect_shape(d, lengths, (x.shape[batch],), "sequence_lens")
    size = x.shape[time]
    (checked,) = call_routine(d, routines.checked_range, [lengths], [(lengths.shape, int64)], [0, size])

    def body(*i: Expr) -> Expr:
        length = checked[i[batch]]
        at = clamp_index(select(i[time] < length, length - 1 - i[time], i[time]), size)
        return zero_if_empty(x[(*i[:time], at, *i[time + 1 :])], (at, size))

    return d.compute(x.shape, body)


@operator("MaxUnpool")
def max_unpool(d: Definition) -> OpValue:
    """Zeros, with the elements of a pooled tensor at the flat positions from which they were taken.

    A given shape of the output extends the inferred one at the end of each dimension.

    Raises:
        ShapeError: an attribute does not fit, or the given shape is smaller than the inferred one.
    """
    x, indices = d.input(0), d.input(1)
    expect_shape(d, indices, x.shape, "indices")
    kernel = d.attr_ints("kernel_shape", ())
    count = x.rank - 2
    if kernel is None or len(kernel) != count or count < 1:
        raise ShapeError(f"kernel_shape: expected {pluralize(count, 'size')}, got {kernel}", where=f"node {d.label}")
    strides, pads = d.attr_ints("strides", (1,) * count), d.attr_ints("pads", (0,) * (2 * count))
    if strides is None or pads is None or len(strides) != count or len(pads) != 2 * count:
        raise ShapeError(f"expected {count} strides and {2 * count} pads", where=f"node {d.label}")
    spatial = [(n - 1) * strides[k] - pads[k] - pads[count + k] + kernel[k] for k, n in enumerate(x.shape[2:])]
    inferred = (*x.shape[:2], *spatial)
    (scattered,) = call_routine(d, routines.scatter_flat, [x, indices], [(inferred, x.dtype)])
    if d.optional(2) is None:
        return scattered
    shape = tuple(cast(int64, n) for n in elements_or_symbols(d, 2))
    if len(shape) != x.rank:
        what = f"output_shape: expected {pluralize(x.rank, 'size')}, got {show_shape(shape)}"
        raise ShapeError(what, where=f"node {d.label}")
    for n, m in zip(shape, inferred, strict=True):
        d.require(m <= n, f"output_shape: expected at least {show_shape(inferred)}, got {show_shape(shape)}")

    def body(*i: Expr) -> Expr:
        inside = conjunction(*(k < m for k, m, n in zip(i, inferred, shape, strict=True) if not can_prove(n <= m)))
        return select(inside, scattered[i], const(0, x.dtype))

    return d.compute(shape, body)
