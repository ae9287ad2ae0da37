"""Arguments of primitives as data: what a primitive's signature says about them.

A primitive gets its JSON form, its schema and the checks of its arguments from its annotations alone; each parameter
after the function has one of the kinds of `argument_kinds`. `Annotated[Enumeration, members]` is a choice of some.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from tilewright.errors import InternalError, Problem
from tilewright.expr.nodes import Expr
from tilewright.layout.layout import Layout
from tilewright.schedule.argument_kinds import (
    ArgumentKind,
    ChoiceKind,
    FlagKind,
    IntegerKind,
    LayoutKind,
    NameKind,
    OptionalKind,
    SizeKind,
    TupleKind,
    WrongValueError,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a primitive; `required` where it has no default."""

    name: str
    kind: ArgumentKind
    required: bool
    default: Any


@lru_cache(maxsize=256)
def parameters(primitive: Callable[..., Any]) -> Mapping[str, Parameter]:
    """The parameters of a primitive after the function, by name in their order.

    Raises:
        InternalError: one is annotated with what can't travel as data.
    """
    hints = get_type_hints(primitive, include_extras=True)
    found: dict[str, Parameter] = {}
    for p in list(inspect.signature(primitive).parameters.values())[1:]:
        if p.kind is not p.POSITIONAL_OR_KEYWORD:
            raise InternalError(f"parameter {p.name!r} of {primitive.__name__} is not positional")
        kind = _kind_of(hints.get(p.name), f"parameter {p.name!r} of {primitive.__name__}")
        required = p.default is p.empty
        found[p.name] = Parameter(p.name, kind, required, None if required else p.default)
    return found


def _kind_of(hint: Any, where: str) -> ArgumentKind:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in (str, int, bool, Layout):
        return {str: NameKind(), int: IntegerKind(), bool: FlagKind(), Layout: LayoutKind()}[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return ChoiceKind(tuple(hint))
    if origin is Annotated:
        return ChoiceKind(inner[1])
    if origin in (Union, UnionType):
        rest = tuple(a for a in inner if a is not NoneType)
        one = SizeKind() if set(rest) == {int, Expr} else _kind_of(rest[0], where) if len(rest) == 1 else None
        if one is not None:
            return OptionalKind(one) if len(rest) < len(inner) else one
    if origin is tuple and (len(inner) == 2 and inner[1] is Ellipsis):
        return TupleKind(_kind_of(inner[0], where))
    if origin is tuple and inner and len(set(inner)) == 1:
        return TupleKind(_kind_of(inner[0], where), len(inner))
    if origin is Sequence:
        return TupleKind(_kind_of(inner[0], where))
    raise InternalError(f"{where} has the type {hint}, which can't travel as data")


def bind_arguments(
    primitive: Callable[..., Any], args: Sequence[object], named: Mapping[str, object], problems: list[Problem]
) -> tuple[Any, ...]:
    """Arguments in their one form, in the signature's order, without defaults at the end.

    Args:
        primitive: a function whose first parameter is the loop function.
        args: arguments by position.
        named: arguments by name.
        problems: whatever does not fit is appended here; the result is then of no use.
    """
    known = parameters(primitive)
    given = dict(zip(known, args))  # noqa: B905 - the rest comes by name
    takes = f"{primitive.__name__} takes {', '.join(known)}"
    if len(args) > len(known):
        problems.append(Problem("schedule", "", f"expected at most {len(known)} arguments, got {len(args)}", takes))
    for name, value in named.items():
        if name not in known:
            problems.append(Problem("schedule", f"argument {name!r}", "there is no such argument", takes))
        elif name in given:
            problems.append(Problem("schedule", f"argument {name!r}", "it is given twice"))
        else:
            given[name] = value
    result: list[Any] = []
    for p in known.values():
        if p.name not in given:
            if p.required:
                problems.append(Problem("schedule", f"argument {p.name!r}", "it is missing", takes))
            result.append(p.default)
            continue
        try:
            result.append(p.kind.read(given[p.name]))
        except WrongValueError as e:
            shown = repr(given[p.name])
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            problems.append(Problem("schedule", f"argument {p.name!r}", f"expected {e}, got {shown}"))
            result.append(None)
    last = [p.required or value != p.default for p, value in zip(known.values(), result, strict=True)]
    while last and not last[-1]:
        last.pop()
    return tuple(result[: len(last)])
