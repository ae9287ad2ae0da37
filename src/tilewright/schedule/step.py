"""Steps and traces: primitives with their arguments as data, and the registry of primitives.

A trace is a list of steps that replays to an equal function. Sizes and layouts of a step refer to symbols and loop
variables by name and are resolved in the function that the step is applied to. So a trace also replays on the same
computation with other sizes, each step checked again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.errors import Defect, LayoutError, ScheduleError, VerifyError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.layout.layout import Layout
from tilewright.loops.ir import Block, For, Func, If, walk
from tilewright.names import suggestion
from tilewright.schedule import (
    annotate,
    cache,
    cache_value,
    compute_at,
    compute_with,
    hoist,
    inline,
    loop_transforms,
    prefetch,
    reduction,
    reverse_compute_at,
    reverse_inline,
    rolling_update,
    round_up,
    staging,
    store_at,
    tile,
    transform_layout,
)
from tilewright.schedule.arguments import bind_arguments, parameters

Argument = Any
"""A name, an integer, a size, a member of an enumeration, a layout, a tuple of these, or None."""

PRIMITIVES: Mapping[str, Callable[..., Func]] = {
    f.__name__: f
    for f in (
        loop_transforms.split, loop_transforms.split_parts, tile.tile, loop_transforms.fuse, loop_transforms.reorder,
        loop_transforms.peel,
        annotate.parallel, annotate.vectorize, annotate.unroll, annotate.bind, annotate.virtual_thread,
        staging.set_scope, staging.clone_producer, staging.pad_storage, cache.cache_read, cache.cache_write, cache.pack,
        transform_layout.transform_layout, prefetch.prefetch, hoist.hoist,
        reduction.decompose_reduction, reduction.rfactor, rolling_update.rolling_update, cache_value.cache_value,
        round_up.round_up,
        compute_at.compute_at,
        compute_with.compute_with, reverse_compute_at.reverse_compute_at, store_at.store_at, inline.inline,
        reverse_inline.reverse_inline,
    )
}  # fmt: skip
"""Every primitive by name; each takes the function first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive with its arguments, in the order of its signature; defaults at the end are left out.

    Prints as the call of a `Schedule`'s method.
    """

    primitive: str
    args: tuple[Argument, ...]

    @classmethod
    def of(cls, primitive: str, *args: object, **named: object) -> "Step":
        """A step with its arguments in normal form: lists as tuples, texts as members of enumerations or sizes.

        Raises:
            ScheduleError: there is no such primitive, or an argument is missing, unknown or of the wrong kind.
        """
        function = primitive_named(primitive)
        problems: list[Defect] = []
        values = bind_arguments(function, args, named, problems)
        if problems:
            problem = problems[0]
            place = f"{primitive}, {problem.where}" if problem.where else primitive
            raise ScheduleError(problem.what, where=place, hint=problem.hint)
        return cls(primitive, values)

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments by name, without those left out."""
        return dict(zip(parameters(primitive_named(self.primitive)), self.args))  # noqa: B905 - defaults are left out

    def __str__(self) -> str:
        if self.primitive not in PRIMITIVES:
            return f"{self.primitive}({', '.join(map(repr, self.args))})"
        shown: list[str] = []
        for p, value in zip(parameters(PRIMITIVES[self.primitive]).values(), self.args, strict=False):
            if p.required:
                shown.append(p.kind.show(value))
            elif value != p.default:
                shown.append(f"{p.name}={p.kind.show(value)}")
        return f"{self.primitive}({', '.join(shown)})"


Trace = tuple[Step, ...]


def primitive_named(name: str) -> Callable[..., Func]:
    """The primitive of this name.

    Raises:
        ScheduleError: there is none.
    """
    if name not in PRIMITIVES:
        raise ScheduleError(unknown_primitive(name), hint=suggestion(name, PRIMITIVES))
    return PRIMITIVES[name]


def unknown_primitive(name: object) -> str:
    """The error message for a primitive that does not exist."""
    return f"there is no primitive {name!r}; there are {', '.join(sorted(PRIMITIVES))}"


def apply(func: Func, step: Step) -> Func:
    """The function after one step.

    Raises:
        ScheduleError: the primitive is unknown, an argument does not fit, or the step is not legal here.
    """
    step = Step.of(step.primitive, *step.args)
    if any(isinstance(s, If) for s, _ in walk(func.body)):
        what, hint = "the loops have branches, which are made after scheduling", "schedule the loops before lowering"
        raise ScheduleError(what, where=func.name, hint=hint)
    try:
        args = (_resolve_variables(func, step, a) for a in step.args)
        return PRIMITIVES[step.primitive](func, *args)
    except LayoutError as e:
        place = f"{step.primitive}, {e.where}" if e.where else step.primitive
        raise ScheduleError(e.what, where=place, hint=e.hint) from e


def replay(func: Func, trace: Trace) -> Func:
    """The function after all steps of a trace, each checked again.

    Raises:
        ScheduleError: a step is not legal here; names it.
    """
    for number, step in enumerate(trace, 1):
        func = apply_numbered(func, step, number)
    return func


def apply_numbered(func: Func, step: Step, number: int) -> Func:
    """The function after one step of a trace; errors name the step by its number."""
    try:
        return apply(func, step)
    except (ScheduleError, VerifyError) as e:
        place = f"step {number}, {step}"
        raise ScheduleError(e.what, where=f"{place}: {e.where}" if e.where else place, hint=e.hint) from e


def to_python(trace: Trace, name: str = "s") -> str:
    """A trace as Python text to paste: calls of the methods of a `Schedule` called `name`."""
    return "".join(f"{name}.{step}\n" for step in trace)


def _resolve_variables(func: Func, step: Step, value: Argument) -> Argument:
    """An argument with its variables replaced by the function's variables of the same names."""
    if not isinstance(value, Expr | Layout):
        return value
    loop_transforms = [s.var for s, _ in walk(func.body) if isinstance(s, For)]
    by_name: dict[str, Var] = {v.name: v for v in (*loop_transforms, *func.symbols)}
    variables = free_vars(value) if isinstance(value, Expr) else frozenset(value.symbols)
    renaming: dict[Var, Expr] = {
        v: by_name[v.name] for v in variables if v.name in by_name and by_name[v.name] is not v
    }
    if isinstance(value, Expr):
        return substitute(value, renaming) if renaming else value
    layout = value.at(renaming) if renaming else value
    buffer = _layout_target(func, step)
    layout = layout if buffer is None or buffer.shape == layout.shape else _resize_layout(layout, buffer)
    check_layout_symbols(func, layout, step.primitive)
    return layout


def check_layout_symbols(func: Func, layout: Layout, place: str) -> None:
    """Checks that a layout refers to sizes of the function, and to nothing else.

    Raises:
        ScheduleError: names the unknown symbol.
    """
    for v in layout.symbols:
        if v not in func.symbols:
            symbols = ", ".join(s.name for s in func.symbols) or "none"
            what = f"the layout names {v.name!r}, which is not a symbol of func {func.name!r}"
            raise ScheduleError(what, where=place, hint=f"its symbols: {symbols}")


def _layout_target(func: Func, step: Step) -> Buffer | None:
    """The buffer that a step's layout is for."""
    arguments = step.arguments
    for b in (*func.allocs, *func.params):
        if b.name == arguments.get("buffer"):
            return b
    blocks = (s for s, _ in walk(func.body) if isinstance(s, Block))
    return next((b.body.buffer for b in blocks if b.name == arguments.get("block")), None)


def _resize_layout(layout: Layout, buffer: Buffer) -> Layout:
    """The same layout primitives on the shape of the buffer here, where its rank is the same."""
    return Layout(buffer.shape, layout.primitives) if len(layout.shape) == buffer.rank else layout
