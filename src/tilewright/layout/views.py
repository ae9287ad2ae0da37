"""Views as computations that copy, for where the layout of either end makes the elements move."""

from collections.abc import Iterator, Sequence

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.computation import Axis, Computation, View
from tilewright.expr.nodes import Expr, Load, Var
from tilewright.layout.basic import delinearize, linearize
from tilewright.layout.primitive import Indices, Shape, element_count, is_provably_equal


def copy_view(view: View) -> Computation:
    """The computation that copies what a view looks at."""
    axes = tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(view.output.shape))
    bounds = NO_BOUNDS
    for a in axes:
        bounds = bounds.with_loop(a.var, a.extent)
    place = reshape_indices([a.var for a in axes], view.output.shape, view.source.shape, bounds)
    return Computation(view.output, axes, (), Load(view.source, place), label=view.label)


def reshape_indices(indices: Sequence[Expr], shape: Shape, source: Shape, bounds: Bounds) -> Indices:
    """Where a tensor of shape `source` holds the element that it has at `indices` under another shape."""
    place: list[Expr] = []
    for (first, end), (low, high) in _reassociation_groups(shape, source):
        place += delinearize(linearize(indices[first:end], shape[first:end], bounds), source[low:high], bounds)
    return tuple(place)


def _reassociation_groups(shape: Shape, source: Shape) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges of dimensions on both sides that hold equally many elements, as short as they are known to."""
    first = low = 0
    for end in range(1, len(shape)):
        ends = (
            h
            for h in range(low, len(source) + 1)
            if is_provably_equal(element_count(shape[first:end]), element_count(source[low:h]))
        )
        high = next(ends, None)
        if high is not None:
            yield (first, end), (low, high)
            first, low = end, high
    yield (first, len(shape)), (low, len(source))
