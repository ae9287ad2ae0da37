"""Gather and its relatives. Data-dependent indices are clamped, so that no input can cause an out-of-bounds load."""

from collections.abc import Sequence

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import binary, cast, select
from tilewright.ops.axes import replace_axis
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.definition import Definition, OpValue, operator


def resolve_index(d: Definition, indices: OpValue, at: Sequence[Expr], size: Expr, what: str) -> Expr:
    """The index at `at` of an index tensor as a position in a dimension, counted from the front and in bounds.

    Raises:
        ShapeError: a known index is out of range, or the index tensor is not of integers.
    """
    if not indices.dtype.is_int:
        raise ShapeError(f"indices: expected an integer type, got {indices.dtype}", where=f"node {d.label}")
    may_be_negative = indices.dtype.kind == "i"
    if indices.known_elements is not None and all(isinstance(v, Const) for v in indices.known_elements):
        values = [int(v.value) for v in indices.known_elements if isinstance(v, Const)]
        _check_known_indices(d, values, size, what)
        if len(values) == 1:
            return const(values[0]) if values[0] >= 0 else size + values[0]
        may_be_negative = min(values, default=0) < 0
    value = (
        indices.known_elements[0]
        if indices.known_elements is not None and len(indices.known_elements) == 1
        else indices[tuple(at)]
    )
    index = cast(int64, value)
    if may_be_negative:
        index = select(index < 0, index + size, index)
    return clamp_index(index, size)


def _require_elements(d: Definition, size: Expr, index_shape: Sequence[Expr], what: str) -> None:
    """Requires that the dimension has elements, or that the shape of the indices is empty."""
    if can_prove(size >= 1):
        return
    condition = size >= 1
    for n in index_shape:
        condition = binary("or", condition, n.equals(0))
    d.require(condition, f"indices into {what}, which has no elements")


def _check_known_indices(d: Definition, values: Sequence[int], size: Expr, what: str) -> None:
    """Rejects known indices out of range; for a symbolic size this is checked on every call."""
    for value in sorted({min(values), max(values)}) if values else ():
        in_bounds = const(value) < size if value >= 0 else const(-value) <= size
        d.require(in_bounds, f"index {value} is out of range for {what} of size {size}")


@operator("Gather")
def gather(d: Definition) -> OpValue:
    """Slices of input 0 along `axis`, in the order of the indices."""
    x, indices = d.input(0), d.input(1)
    axis = d.axis(d.attr_int("axis", 0), x.rank)
    end = axis + indices.rank
    sizes = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    size = x.shape[axis]
    _require_elements(d, size, indices.shape, f"dimension {axis}")

    def body(*i: Expr) -> Expr:
        position = resolve_index(d, indices, i[axis:end], size, f"dimension {axis}")
        return zero_if_empty(x[(*i[:axis], position, *i[end:])], (position, size))

    return d.compute(sizes, body)


@operator("GatherElements")
def gather_elements(d: Definition) -> OpValue:
    """One element per index: the index is the position along `axis`, the other positions are those of the index.

    Raises:
        ShapeError: the numbers of dimensions differ.
    """
    x, indices = d.input(0), d.input(1)
    if x.rank != indices.rank:
        what = f"indices: expected {pluralize(x.rank, 'dimension')}, got {indices.rank}"
        raise ShapeError(what, where=f"node {d.label}")
    axis = d.axis(d.attr_int("axis", 0), x.rank)
    for k, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if k != axis:
            d.require(m <= n, f"indices, dimension {k}: expected a size of at most {n}, got {m}")
    _require_elements(d, x.shape[axis], indices.shape, f"dimension {axis}")

    def body(*i: Expr) -> Expr:
        # Symbols are compared only at a call; clamping keeps every load in bounds in any case.
        clamped = tuple(
            k if can_prove(m <= n) else clamp_index(k, n) for k, m, n in zip(i, indices.shape, x.shape, strict=True)
        )
        source = replace_axis(clamped, axis, resolve_index(d, indices, i, x.shape[axis], f"dimension {axis}"))
        sizes = zip(source, indices.shape, x.shape, strict=True)
        guarded = [(p, n) for k, (p, m, n) in enumerate(sizes) if k == axis or not can_prove(m <= n)]
        return zero_if_empty(x[source], *guarded)

    return d.compute(indices.shape, body)


@operator("GatherND")
def gather_nd(d: Definition) -> OpValue:
    """Slices of input 0 at index tuples, which are along the last dimension of the indices.

    Raises:
        ShapeError: a tuple has no or too many entries, or the batch dimensions do not match.
        UnsupportedError: the length of the tuples is symbolic.
    """
    x, indices = d.input(0), d.input(1)
    batch = d.attr_int("batch_dims", 0)
    if not indices.rank:
        raise ShapeError("indices: expected 1 dimension or more, got 0", where=f"node {d.label}")
    if not isinstance(indices.shape[-1], Const):
        raise d.unsupported("the length of the index tuples is symbolic")
    depth = int(indices.shape[-1].value)
    if not 0 <= batch < min(x.rank, indices.rank):
        limit = min(x.rank, indices.rank)
        raise ShapeError(f"batch_dims: expected 0 to {limit - 1}, got {batch}", where=f"node {d.label}")
    if not 1 <= depth <= x.rank - batch:
        raise ShapeError(f"index tuples: expected 1 to {x.rank - batch} entries, got {depth}", where=f"node {d.label}")
    for k in range(batch):
        d.require_equal(x.shape[k], indices.shape[k], f"batch dimension {k}")
    outer = indices.rank - 1
    entry_operands = _index_tuple_entries(d, indices, depth)
    for k in range(batch, batch + depth):
        _require_elements(d, x.shape[k], indices.shape[:-1], f"dimension {k}")

    def body(*i: Expr) -> Expr:
        entries = tuple(
            resolve_index(d, entry_operands[k], (*i[:outer], const(k)), x.shape[batch + k], f"dimension {batch + k}")
            for k in range(depth)
        )
        value = x[(*i[:batch], *entries, *i[outer:])]
        return zero_if_empty(value, *zip(entries, x.shape[batch : batch + depth], strict=True))

    return d.compute((*indices.shape[:-1], *x.shape[batch + depth :]), body)


def _index_tuple_entries(d: Definition, indices: OpValue, depth: int) -> list[OpValue]:
    """For each entry of the tuples, the index tensor with the known elements of that entry."""
    if indices.known_elements is None or not all(isinstance(v, Const) for v in indices.known_elements):
        return [OpValue(indices.buffer)] * depth
    return [OpValue(indices.buffer, indices.known_elements[k::depth]) for k in range(depth)]
