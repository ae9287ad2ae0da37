"""Arguments of primitives as data, derived from the primitives' signatures.

A primitive's JSON form, its schema and the checks of its arguments follow from its annotations; each parameter after
the function has one of the kinds of `argument_kinds`. `Annotated[Enumeration, members]` is a choice among `members`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from tilewright.errors import Defect, InternalError
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
        InternalError: the type of an annotation cannot be stored as data.
    """
    hints = get_type_hints(primitive, include_extras=True)
    result: dict[str, Parameter] = {}
    for p in list(inspect.signature(primitive).parameters.values())[1:]:
        if p.kind is not p.POSITIONAL_OR_KEYWORD:
            raise InternalError(f"parameter {p.name!r} of {primitive.__name__} is not positional")
        kind = _kind_of(hints.get(p.name), f"parameter {p.name!r} of {primitive.__name__}")
        required = p.default is p.empty
        result[p.name] = Parameter(p.name, kind, required, None if required else p.default)
    return result


def _kind_of(hint: Any, where: str) -> ArgumentKind:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (str, int, bool, Layout):
        return {str: NameKind(), int: IntegerKind(), bool: FlagKind(), Layout: LayoutKind()}[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return ChoiceKind(tuple(hint))
    if origin is Annotated:
        return ChoiceKind(arguments[1])
    if origin in (Union, UnionType):
        alternatives = tuple(a for a in arguments if a is not NoneType)
        kind = (
            SizeKind()
            if set(alternatives) == {int, Expr}
            else _kind_of(alternatives[0], where)
            if len(alternatives) == 1
            else None
        )
        if kind is not None:
            return OptionalKind(kind) if len(alternatives) < len(arguments) else kind
    if origin is tuple and (len(arguments) == 2 and arguments[1] is Ellipsis):
        return TupleKind(_kind_of(arguments[0], where))
    if origin is tuple and arguments and len(set(arguments)) == 1:
        return TupleKind(_kind_of(arguments[0], where), len(arguments))
    if origin is Sequence:
        return TupleKind(_kind_of(arguments[0], where))
    raise InternalError(f"{where} has the type {hint}, which can't travel as data")


def bind_arguments(
    primitive: Callable[..., Any], args: Sequence[object], named: Mapping[str, object], problems: list[Defect]
) -> tuple[Any, ...]:
    """Arguments in their normal form, in the signature's order, without defaults at the end.

    Args:
        primitive: a function whose first parameter is the loop function.
        args: positional arguments.
        named: keyword arguments.
        problems: errors are appended here; the result is then meaningless.
    """
    params = parameters(primitive)
    values = dict(zip(params, args))  # noqa: B905 - the rest comes by name
    signature = f"{primitive.__name__} takes {', '.join(params)}"
    if len(args) > len(params):
        problems.append(Defect("schedule", "", f"expected at most {len(params)} arguments, got {len(args)}", signature))
    for name, value in named.items():
        if name not in params:
            problems.append(Defect("schedule", f"argument {name!r}", "there is no such argument", signature))
        elif name in values:
            problems.append(Defect("schedule", f"argument {name!r}", "it is given twice"))
        else:
            values[name] = value
    result: list[Any] = []
    for p in params.values():
        if p.name not in values:
            if p.required:
                problems.append(Defect("schedule", f"argument {p.name!r}", "it is missing", signature))
            result.append(p.default)
            continue
        try:
            result.append(p.kind.read(values[p.name]))
        except WrongValueError as e:
            shown = repr(values[p.name])
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            problems.append(Defect("schedule", f"argument {p.name!r}", f"expected {e}, got {shown}"))
            result.append(None)
    last = [p.required or value != p.default for p, value in zip(params.values(), result, strict=True)]
    while last and not last[-1]:
        last.pop()
    return tuple(result[: len(last)])
