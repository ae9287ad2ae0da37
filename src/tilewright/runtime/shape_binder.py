"""Sizes of symbols from the shapes of arrays, by a table that is made once: what the first call of a shape needs.

It refuses what is not right; what is wrong is found out by `feeds.InputSignature`, which takes several times as long.
"""

from collections.abc import Callable, Sequence

from tilewright.runtime.feeds import make_picker
from tilewright.runtime.manifest import SymbolSpec, TensorSpec

ShapeBinder = Callable[[Sequence[tuple[int, ...]]], tuple[int, ...] | None]
"""Sizes for the shapes of all inputs; None where a rank, a size or a range is not what is declared."""

_NO_LIMIT = (1 << 63) - 1


def make_binder(specs: Sequence[TensorSpec], symbols: Sequence[SymbolSpec], names: Sequence[str]) -> ShapeBinder | None:
    """A function from shapes to the sizes of symbols; None where inputs do not have all of these, or dimensions
    that are not checked.

    Args:
        specs: the inputs.
        symbols: all symbols in their dimensions.
        names: the symbols whose sizes are asked for, in order.
    """
    ranges = {s.name: (s.lo, _NO_LIMIT if s.hi is None else s.hi) for s in symbols}
    flat = [dim for spec in specs for dim in spec.dims if dim is not None]
    is_whole = sum(len(spec.dims) for spec in specs) == len(flat)
    if not is_whole or any(spec.dtype == "any" for spec in specs) or not set(names) <= set(flat):
        return None
    ranks = [len(spec.dims) for spec in specs]
    # per dimension its limits, and the first one that has the same symbol
    limits = [(dim, dim) if isinstance(dim, int) else ranges[dim] for dim in flat]
    checks = [(flat.index(dim) if isinstance(dim, str) else k, *limits[k]) for k, dim in enumerate(flat)]
    pick = make_picker([flat.index(name) for name in names])

    def bind(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        if [len(shape) for shape in shapes] != ranks:
            return None
        sizes = [size for shape in shapes for size in shape]
        for size, (first, low, high) in zip(sizes, checks, strict=True):
            if size < low or size > high or size != sizes[first]:
                return None
        return pick(sizes)

    return bind
