"""Slice: strided ranges of a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, ceildiv, maximum, minimum, select
from tilewright.ops.clamp import clamp_index, is_in_bounds, zero_if_empty
from tilewright.ops.data_dependent import data_dependent_slice
from tilewright.ops.definition import Definition, OpValue, operator

_END_SENTINEL = 1 << 31
"""Bounds of this magnitude mean "to the end" for all exporters."""


@dataclass(frozen=True, slots=True)
class Range:
    """Elements start, start + step, ... along one dimension."""

    start: Expr
    step: int
    size: Expr


def resolve_range(start: Expr, end: Expr, step: int, size: Expr) -> Range:
    """The range of a dimension between two bounds, clamped as in ONNX; clamps that are proved redundant fold.

    Python's slice `start:end:step`, except that a negative step from before the first element starts at the first.

    Args:
        start, end: int64; negative ones count from the end.
        step: not 0.
        size: of the dimension.
    """
    if step > 0:
        start_position = _clamp_bound(start, size, const(0), size)
        end_position = _clamp_bound(end, size, const(0), size)
    else:
        start_position = _clamp_bound(start, size, const(0), size - 1)
        end_position = _clamp_bound(end, size, const(-1), size - 1)
    distance = _literal_distance(start, end)
    if distance is not None and (distance <= 0 if step > 0 else distance >= 0 and _is_from_front(start)):
        return Range(const(0), step, const(0))
    count = ceildiv(end_position - start_position, step) if step > 0 else ceildiv(start_position - end_position, -step)
    if distance is None:
        count = maximum(count, 0)
    # With a negative step the clamps assume a nonempty dimension.
    return Range(start_position, step, count if step > 0 or can_prove(size >= 1) else minimum(count, size))


def _literal_distance(start: Expr, end: Expr) -> int | None:
    """end - start of two literals that count from the same end of a dimension, else None."""
    if not isinstance(start, Const) or not isinstance(end, Const) or (start.value < 0) != (end.value < 0):
        return None
    return int(end.value) - int(start.value)


def _is_from_front(bound: Expr) -> bool:
    return isinstance(bound, Const) and bound.value >= 0


def _clamp_bound(bound: Expr, size: Expr, low: Expr, high: Expr) -> Expr:
    if isinstance(bound, Const) and bound.value >= _END_SENTINEL - 1:
        return high
    if isinstance(bound, Const) and bound.value <= -_END_SENTINEL:
        return low
    from_front = select(bound < 0, bound + size, bound)
    return maximum(minimum(from_front, high), low)


def _ranges(d: Definition, x: OpValue) -> dict[int, Range]:
    if d.opset < 10:
        starts = [const(n) for n in d.attr_ints("starts") or ()]
        ends = [const(n) for n in d.attr_ints("ends") or ()]
        axes = d.attr_ints("axes")
        steps = None
    else:
        starts = [cast(int64, n) for n in d.known_elements(1)]
        ends = [cast(int64, n) for n in d.known_elements(2)]
        axes = None if d.optional(3) is None else d.known_ints(3)
        steps = None if d.optional(4) is None else d.known_ints(4)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ShapeError(
            "expected as many starts as ends, axes and steps, "
            f"got {len(starts)}, {len(ends)}, {len(axes)} and {len(steps)}",
            where=f"node {d.label}",
        )
    if 0 in steps:
        raise ShapeError("steps: expected a number other than 0, got 0", where=f"node {d.label}")
    result: dict[int, Range] = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        k = d.axis(axis, x.rank)
        if k in result:
            raise ShapeError(f"axes {list(axes)} name a dimension twice", where=f"node {d.label}")
        result[k] = resolve_range(start, end, step, x.shape[k])
    return result


@operator("Slice")
def slice_(d: Definition) -> OpValue:
    """Ranges along some dimensions."""
    x = d.input(0)
    if d.opset >= 10 and any(_is_data_dependent_range(d, k) for k in range(1, 5)):
        return data_dependent_slice(d, x)
    return take_ranges(d, x, _ranges(d, x))


def _is_data_dependent_range(d: Definition, position: int) -> bool:
    """Whether starts (1), ends (2), axes (3) or steps (4) are no expressions that ranges are made of."""
    x = d.optional(position)
    if x is None:
        return False
    if x.known_elements is None:
        return True
    return position > 2 and not all(isinstance(n, Const) for n in x.known_elements)


def take_ranges(d: Definition, x: OpValue, ranges: dict[int, Range]) -> OpValue:
    """The given ranges of `x`; `x` itself where they select everything."""
    proper = {k: r for k, r in ranges.items() if r.step != 1 or r.size is not x.shape[k]}
    if not proper:
        return d.view(x, x.shape)
    sizes = tuple(proper[k].size if k in proper else n for k, n in enumerate(x.shape))

    def body(*i: Expr) -> Expr:
        source, clamped = _source_index(i, x.shape, proper)
        return zero_if_empty(x[source], *clamped)

    return d.compute(sizes, body)


def _source_index(
    i: Sequence[Expr], shape: Sequence[Expr], ranges: dict[int, Range]
) -> tuple[tuple[Expr, ...], tuple[tuple[Expr, Expr], ...]]:
    """The source indices, clamped where not proved in bounds, and the (position, size) pairs of the clamped ones."""
    source = list(i)
    clamped: list[tuple[Expr, Expr]] = []
    for k, r in ranges.items():
        source[k] = r.start + i[k] * r.step
        if not is_in_bounds(source[k], shape[k], i[k], r.size):
            source[k] = clamp_index(source[k], shape[k])
            clamped.append((source[k], shape[k]))
    return tuple(source), tuple(clamped)
