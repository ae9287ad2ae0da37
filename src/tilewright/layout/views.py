"""Views as copies, for views with a layout at either end."""

from collections.abc import Iterator, Sequence

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.computation import Axis, Computation, View
from tilewright.expr.nodes import Expr, Load, Var
from tilewright.layout.basic import delinearize, linearize
from tilewright.layout.primitive import Indices, Shape, element_count, is_provably_equal


def copy_view(view: View) -> Computation:
    """The computation that copies the source of a view to its output."""
    axes = tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(view.output.shape))
    bounds = NO_BOUNDS
    for a in axes:
        bounds = bounds.with_loop(a.var, a.extent)
    indices = reshape_indices([a.var for a in axes], view.output.shape, view.source.shape, bounds)
    return Computation(view.output, axes, (), Load(view.source, indices), label=view.label)


def reshape_indices(indices: Sequence[Expr], shape: Shape, source: Shape, bounds: Bounds) -> Indices:
    """The indices in a tensor of shape `source` of the element that has `indices` under another shape."""
    result: list[Expr] = []
    for (first, end), (low, high) in _reassociation_groups(shape, source):
        result += delinearize(linearize(indices[first:end], shape[first:end], bounds), source[low:high], bounds)
    return tuple(result)


def _reassociation_groups(shape: Shape, source: Shape) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges of dimensions on both sides with equally many elements, each as short as can be proved."""
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
