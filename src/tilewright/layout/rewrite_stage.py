"""Rewriting of computations for stored tensors: loops and accesses follow the layouts (ALT, Section 6).

For Y = F(X) with layouts S_Y and S_X the loops become L' = S_Y(L), one per physical dimension of Y. Every L in the body
is replaced by S_Y^-1(L'), so X's accesses become S_X(S_Y^-1(L')). Padding of Y is 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import LayoutError
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.computation import Axis, Computation, Stage, View
from tilewright.expr.nodes import TRUE, Buffer, Expr, Load, Var, const
from tilewright.expr.operations import select
from tilewright.expr.traversal import free_vars, is_one, replace_loads
from tilewright.layout.layout import Layout
from tilewright.layout.primitive import is_provably_equal, show_shape
from tilewright.layout.primitives import StoreAt
from tilewright.layout.views import copy_view
from tilewright.names import UniqueNames


def rewrite_stage(stage: Stage, layouts: Mapping[str, Layout]) -> Stage:
    """The stage over stored tensors.

    Args:
        stage: over logical tensors. A view with a layout at either end becomes a computation that copies.
        layouts: by buffer name; other buffers are row-major. Tensors that a layout attaches (`store_at`) are read from
            the buffer that carries them.

    Returns:
        The stage with buffers of physical shapes under the same names, and one axis per physical dimension of the
        output. Reduction axes stay.

    Raises:
        LayoutError: a layout's logical shape is not its buffer's shape, or the output is attached to another buffer.
    """
    carried = {a.other: name for name, layout in layouts.items() for a in layout.attached}
    affected = {name for name, layout in layouts.items() if not layout.is_plain} | carried.keys()
    if not any(b.name in affected for b in (stage.output, *stage.inputs)):
        return stage
    c = copy_view(stage) if isinstance(stage, View) else stage
    for b in (c.output, *c.inputs):
        if b.name in layouts:
            check_layout(b, layouts[b.name])
    check_writable(c, carried, layouts)
    axes, place, exists, bounds = _physical_loops(c, layouts.get(c.output.name))
    window = frozenset(a.var for a in c.reduce_axes)

    # The stage that writes the elements of an attached tensor to their place reads the tensor itself.
    read_from = {other: name for other, name in carried.items() if name != c.output.name}

    def read(x: Load) -> Expr:
        return _physical_load(x, layouts, read_from, bounds, window)

    # First the loops, then the loads at their values, then simplification under the loops' bounds.
    body = replace_loads(substitute(c.body, place, bounds), read)
    if exists is not TRUE:
        body = select(exists, body, _padding_value(c, layouts[c.output.name], axes, bounds))
    return replace(c, output=stored_buffer(c.output, layouts), axes=axes, body=simplify(body, bounds))


def stored_buffer(buffer: Buffer, layouts: Mapping[str, Layout]) -> Buffer:
    """The buffer under its physical shape."""
    layout = layouts.get(buffer.name)
    return buffer if layout is None else replace(buffer, shape=layout.physical_shape)


def check_layout(buffer: Buffer, layout: Layout) -> None:
    """Raises LayoutError unless a layout has its buffer's shape."""
    if len(layout.shape) != buffer.rank or not all(
        is_provably_equal(a, b) for a, b in zip(layout.shape, buffer.shape, strict=True)
    ):
        raise LayoutError(
            f"expected a layout of shape {show_shape(buffer.shape)}, got {layout}", where=f"buffer {buffer.name!r}"
        )


def check_writable(c: Computation, carried: Mapping[str, str], layouts: Mapping[str, Layout]) -> None:
    """Raises LayoutError where the output has no place of its own, or a reduction would write tensors attached to
    it."""
    name = c.output.name
    if name in carried:
        raise LayoutError(
            f"it is stored at {carried[name]!r}, which another stage writes", where=f"output {name!r}",
            hint="attach constants and inputs only",
        )  # fmt: skip
    if c.is_reduction and name in layouts and layouts[name].attached:
        other = layouts[name].attached[0].other
        raise LayoutError(
            f"a reduction can't write the elements of {other!r} that are stored there", where=f"output {name!r}",
            hint="attach constants and inputs only",
        )  # fmt: skip


def _physical_loops(c: Computation, layout: Layout | None) -> tuple[tuple[Axis, ...], dict[Var, Expr], Expr, Bounds]:
    """The new axes, the values of the old ones, the condition that an element exists, and the bounds of all
    variables."""
    if layout is None or layout.is_plain:
        return c.axes, {}, TRUE, _bounds((*c.axes, *c.reduce_axes))
    taken = {a.var.name for a in c.reduce_axes} | {v.name for v in layout.symbols}
    taken |= {v.name for v in free_vars(c.body)} - {a.var.name for a in c.axes}
    names = UniqueNames(taken)
    physical = layout.rename([a.var.name for a in c.axes])
    axes = tuple(Axis(Var(names.fresh(n)), size) for n, size in zip(physical, layout.physical_shape, strict=True))
    bounds = _bounds((*axes, *c.reduce_axes))
    place, exists = layout.backward(_axis_values(axes), bounds)
    return axes, {a.var: e for a, e in zip(c.axes, place, strict=True)}, exists, bounds


def _axis_values(axes: Sequence[Axis]) -> tuple[Expr, ...]:
    """The variables of axes; 0 for those of extent 1."""
    return tuple(const(0) if is_one(a.extent) else a.var for a in axes)


def _bounds(axes: Sequence[Axis]) -> Bounds:
    bounds = Bounds()
    for a in axes:
        bounds = bounds.with_loop(a.var, a.extent)
    return bounds


def _physical_load(
    x: Load, layouts: Mapping[str, Layout], carried: Mapping[str, str], bounds: Bounds, window: frozenset[Var]
) -> Expr:
    """The load of an element from its physical place."""
    name = x.buffer.name
    if name in carried:
        layout = layouts[carried[name]]
        place = layout.attached_forward(name, x.indices, bounds, window)
        return Load(Buffer(carried[name], layout.physical_shape, x.dtype, x.buffer.scope), place)
    if name not in layouts or layouts[name].is_plain:
        return x
    return Load(stored_buffer(x.buffer, layouts), layouts[name].forward(x.indices, bounds, window))


def _padding_value(c: Computation, layout: Layout, axes: Sequence[Axis], bounds: Bounds) -> Expr:
    """The output's value at places without an element of its own: elements of attached tensors, else 0."""
    value: Expr = const(0, c.output.dtype)
    for position, p in enumerate(layout.primitives):
        if isinstance(p, StoreAt):
            remaining = Layout(layout.shapes[position + 1], layout.primitives[position + 1 :])
            place, exists = remaining.backward(_axis_values(axes), bounds)
            is_attached = place[p.dim].equals(layout.shapes[position][p.dim])
            other = Buffer(p.other, Layout.of(p.other_shape).shape, c.output.dtype)
            load = Load(other, (*place[: p.dim], *place[p.dim + 1 :]))
            value = select(exists, select(is_attached, load, value), const(0, c.output.dtype))
    return value
