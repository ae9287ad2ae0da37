"""Views between the computations of one kernel are removed: sizes that a view merges or splits are split everywhere.

Exporters reshape [batch, heads, rows, columns] to [batch * heads, rows, columns] and back between two products. A view
is the same memory, but within a kernel that keeps intermediates in registers there is no memory to reinterpret. So the
axis of batch * heads becomes two axes, in every computation that walks it and in every buffer that is read along it;
then both shapes are the same, and readers of the view read its source. Buffers from outside are contiguous, so they are
passed under the finer shape.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation, Stage, View
from tilewright.expr.nodes import Buffer, Expr, Load, Var, const
from tilewright.expr.traversal import is_one, loads, replace_loads

Dim = tuple[str, int]
"""A dimension: the name of its buffer, and its position."""

StageAxis = tuple[int, int]
"""An axis: the position of its stage, and its own among the axes and reduction axes."""


@dataclass(frozen=True, slots=True)
class _Split:
    """One size that is split into factors.

    Attributes:
        dims: the dimensions of this size that are walked together.
        axes: the axes that walk them.
        factors: what takes its place.
    """

    dims: frozenset[Dim]
    axes: frozenset[StageAxis]
    factors: tuple[Expr, ...]


def remove_views(stages: Sequence[Stage]) -> tuple[Computation, ...] | None:
    """Computations without the views between them; None where the shapes of a view can't be made the same.

    Args:
        stages: computations, and views of what these write or read, in order of execution.
    """
    steps = list(stages)
    while (k := next((k for k, s in enumerate(steps) if isinstance(s, View)), None)) is not None:
        view = steps[k]
        assert isinstance(view, View)
        if _sizes(view.source) == _sizes(view.output):
            steps = [_read_source(s, view) for s in steps if s is not view]
            continue
        split = next(_splits(view), None)
        groups = None if split is None else _closure(steps, *split)
        if groups is None:
            return None
        steps = _apply(steps, groups)
    return tuple(s for s in steps if isinstance(s, Computation))


def _sizes(b: Buffer) -> list[Expr]:
    """The sizes other than 1."""
    return [n for n in b.shape if not is_one(n)]


def _read_source(step: Stage, view: View) -> Stage:
    """A step that reads the source of a view whose shape is the same but for dimensions of size 1."""
    if isinstance(step, View):
        return replace(step, source=view.source) if step.source == view.output else step

    def load(x: Load) -> Load:
        if x.buffer != view.output:
            return x
        used = iter([i for i, n in zip(x.indices, x.buffer.shape, strict=True) if not is_one(n)])
        return Load(view.source, tuple(const(0) if is_one(n) else next(used) for n in view.source.shape))

    return replace(step, body=replace_loads(step.body, load))


def _blocks(view: View) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The dimensions of a view's source and of its output that cover the same elements, as few as possible at a time;
    those of size 1 are left out. Ends where there are none."""
    left, right = ([(d, n) for d, n in enumerate(b.shape) if not is_one(n)] for b in (view.source, view.output))
    while left and right:
        counts = [(a, b) for a in range(1, len(left) + 1) for b in range(1, len(right) + 1)]
        same = ((a, b) for a, b in sorted(counts, key=sum) if _product(left[:a]) is _product(right[:b]))
        a, b = next(same, (0, 0))
        if not a:
            return
        yield tuple(d for d, _ in left[:a]), tuple(d for d, _ in right[:b])
        left, right = left[a:], right[b:]


def _product(dims: Sequence[tuple[int, Expr]]) -> Expr:
    return prod((n for _, n in dims), start=const(1))


def _splits(view: View) -> Iterator[tuple[Dim, tuple[Expr, ...]]]:
    """The dimensions that a view merges or splits, with the factors."""
    for left, right in _blocks(view):
        if len(left) == 1 < len(right):
            yield (view.source.name, left[0]), tuple(view.output.shape[d] for d in right)
        if len(right) == 1 < len(left):
            yield (view.output.name, right[0]), tuple(view.source.shape[d] for d in left)


def _closure(steps: Sequence[Stage], dim: Dim, factors: tuple[Expr, ...]) -> _Split | None:
    """All that walks a dimension; None where it is accessed at anything but an axis of its own size."""
    dims, axes = {dim}, set[StageAxis]()
    pending: list[Dim | StageAxis] = [dim]

    def add_axis(axis: StageAxis) -> None:
        if axis not in axes:
            axes.add(axis)
            pending.append(axis)

    def add_dim(new: Dim) -> None:
        if new not in dims:
            dims.add(new)
            pending.append(new)

    while pending:
        match pending.pop():
            case (str() as name, d):
                for k, step in enumerate(steps):
                    if isinstance(step, View):
                        for other in _same_dims(step, (name, d)):
                            add_dim(other)
                        continue
                    found = _axes_at(step, name, d)
                    if found is None:
                        return None
                    for position in found:
                        add_axis((k, position))
            case (int() as k, position):
                step = steps[k]
                assert isinstance(step, Computation)
                for new in _dims_at(step, position):
                    add_dim(new)
    return _Split(frozenset(dims), frozenset(axes), factors)


def _same_dims(view: View, dim: Dim) -> Iterator[Dim]:
    """The dimension of a view's other side that is the same as one of this side."""
    for left, right in _blocks(view):
        if len(left) == len(right) == 1:
            pair = (view.source.name, left[0]), (view.output.name, right[0])
            if dim in pair:
                yield from (x for x in pair if x != dim)


def _axes_at(c: Computation, buffer: str, d: int) -> list[int] | None:
    """The positions of the axes at which a computation accesses a dimension; None where it does otherwise."""
    found = [d] if c.output.name == buffer else []
    variables = [a.var for a in (*c.axes, *c.reduce_axes)]
    extents = [a.extent for a in (*c.axes, *c.reduce_axes)]
    for x in loads(c.body):
        if x.buffer.name == buffer:
            index = x.indices[d]
            if not isinstance(index, Var) or extents[variables.index(index)] is not x.buffer.shape[d]:
                return None
            found.append(variables.index(index))
    return found


def _dims_at(c: Computation, position: int) -> Iterator[Dim]:
    """The dimensions that a computation accesses at an axis."""
    axis = (*c.axes, *c.reduce_axes)[position]
    if position < len(c.axes):
        yield c.output.name, position
    for x in loads(c.body):
        for d, index in enumerate(x.indices):
            if index is axis.var and x.buffer.shape[d] is axis.extent:
                yield x.buffer.name, d


def _apply(steps: Sequence[Stage], split: _Split) -> list[Stage]:
    """The steps with a size split."""

    def buffer(b: Buffer) -> Buffer:
        shape = [
            n for d, old in enumerate(b.shape) for n in (split.factors if (b.name, d) in split.dims else (old,))
        ]  # fmt: skip
        return replace(b, shape=tuple(shape))

    result: list[Stage] = []
    for k, step in enumerate(steps):
        if isinstance(step, View):
            result.append(replace(step, output=buffer(step.output), source=buffer(step.source)))
        else:
            result.append(_split_computation(step, [p for n, p in split.axes if n == k], split, buffer))
    return result


def _split_computation(
    c: Computation, positions: Sequence[int], split: _Split, buffer: Callable[[Buffer], Buffer]
) -> Computation:
    axes = (*c.axes, *c.reduce_axes)
    parts = {p: tuple(Axis(Var(f"{axes[p].var.name}_{k}"), n) for k, n in enumerate(split.factors)) for p in positions}
    whole: dict[Var, Expr] = {axes[p].var: _position_along(x) for p, x in parts.items()}
    variables = {whole[axes[p].var]: tuple(a.var for a in x) for p, x in parts.items()}

    def load(x: Load) -> Load:
        indices: list[Expr] = []
        for d, index in enumerate(x.indices):
            indices += variables[index] if (x.buffer.name, d) in split.dims else (index,)
        return Load(buffer(x.buffer), tuple(indices))

    def split_axes(group: Sequence[Axis], first: int) -> tuple[Axis, ...]:
        return tuple(new for p, a in enumerate(group, first) for new in parts.get(p, (a,)))

    body = replace_loads(substitute(c.body, whole), load)
    spatial, reduced = split_axes(c.axes, 0), split_axes(c.reduce_axes, len(c.axes))
    return Computation(buffer(c.output), spatial, reduced, body, c.reducer, c.label)


def _position_along(axes: Sequence[Axis]) -> Expr:
    """The position along an axis, from those along its parts."""
    total: Expr = const(0)
    for a in axes:
        total = total * a.extent + a.var
    return total
