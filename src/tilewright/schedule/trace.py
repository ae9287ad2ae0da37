"""A schedule is data: the list of primitives with their arguments, which replays to an equal function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.expr.buffer import Scope
from tilewright.expr.nodes import Expr
from tilewright.loops.ir import Func
from tilewright.schedule import compute_at, kinds, loops, reduction, staging
from tilewright.schedule.tree import find_block, fresh, used_names

Argument = str | int | Expr | Scope | tuple[str, ...] | tuple[int, ...] | None

PRIMITIVES: Mapping[str, Callable[..., Func]] = {
    f.__name__: f
    for f in (
        loops.split, loops.fuse, loops.reorder, loops.peel, kinds.parallel, kinds.vectorize, kinds.unroll,
        staging.set_scope, staging.cache_write, staging.clone_producer, staging.permute, staging.pack,
        reduction.decompose_reduction, reduction.rfactor, compute_at.compute_at,
    )
}  # fmt: skip
"""Every primitive by name; each takes the function first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive with its arguments."""

    primitive: str
    args: tuple[Argument, ...]

    def __str__(self) -> str:
        shown = ", ".join(str(a) if isinstance(a, Expr | Scope) else repr(a) for a in self.args)
        return f"{self.primitive}({shown})"


Trace = tuple[Step, ...]


def apply(func: Func, step: Step) -> Func:
    """The function after one step.

    Raises:
        ScheduleError: the primitive is unknown or not legal here.
    """
    if step.primitive not in PRIMITIVES:
        raise ScheduleError(f"there is no primitive {step.primitive!r}; there are {', '.join(sorted(PRIMITIVES))}")
    return PRIMITIVES[step.primitive](func, *step.args)


def replay(func: Func, trace: Trace) -> Func:
    """The function after all steps of a trace, each checked again."""
    for step in trace:
        func = apply(func, step)
    return func


class Schedule:
    """A function being scheduled: applies primitives and records them.

    `func` is the function as it is now, `trace` what was done. Methods carry the primitives' names.
    """

    def __init__(self, func: Func) -> None:
        self.origin = func
        self.func = func
        self.trace: Trace = ()

    def do(self, primitive: str, *args: Any) -> None:
        """Applies a primitive by name and records it."""
        step = Step(primitive, args)
        self.func = apply(self.func, step)
        self.trace = (*self.trace, step)

    def _new_name(self, name: str) -> str:
        return fresh(name, used_names(self.func))

    def split(self, loop: str, factor: int) -> tuple[str, str]:
        """Splits a loop; returns the names of the outer and the inner one."""
        names = self._new_name(f"{loop}_o"), self._new_name(f"{loop}_i")
        self.do("split", loop, factor, names)
        return names

    def fuse(self, outer: str, inner: str) -> str:
        """Fuses two directly nested loops; returns the name of the new one."""
        name = self._new_name(f"{outer}_{inner}")
        self.do("fuse", outer, inner, name)
        return name

    def cache_write(self, block: str) -> str:
        """Stages a block's results in an internal buffer; returns the buffer's name."""
        buffer = find_block(self.func, block)[0].body.buffer
        name = self._new_name(f"{buffer.name}_local")
        self.do("cache_write", block, name)
        return name

    def pack(self, block: str, buffer: str, dim: int, factor: int) -> str:
        """Packs an operand; returns the packed buffer's name."""
        name = self._new_name(f"{buffer}_packed")
        self.do("pack", block, buffer, dim, factor, name)
        return name
