"""Kinds of arguments of primitives: names, integers, sizes, choices, layouts, and tuples of these.

A kind normalises a value from Python or JSON, writes it as JSON and as Python text, and describes itself as a JSON
Schema.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tilewright.errors import LayoutError
from tilewright.expr.algebra.bounds import NO_BOUNDS
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.layout.layout import Layout
from tilewright.layout.sizes import MAX_INTEGER, MAX_TEXT, WrongSizeError, check_size, parse_size


class WrongValueError(Exception):
    """The value is not of the expected kind; the text names the kind."""


class ArgumentKind(ABC):
    """The kind of an argument."""

    @abstractmethod
    def read(self, value: object) -> Any:
        """A value from Python or JSON in its normal form.

        Raises:
            WrongValueError: names what was expected.
        """

    def write(self, value: Any) -> Any:
        """The value as JSON."""
        return value

    def show(self, value: Any) -> str:
        """The value as Python text that a method of `Schedule` takes."""
        return repr(self.write(value))

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of `write`'s results."""


@dataclass(frozen=True, slots=True)
class NameKind(ArgumentKind):
    """The name of a loop, block or buffer."""

    def read(self, value: object) -> str:
        """A non-empty text."""
        if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or isinstance(value, StrEnum):
            raise WrongValueError("a name")
        return value

    def schema(self) -> dict[str, Any]:
        """A text."""
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class IntegerKind(ArgumentKind):
    """An integer; the primitive checks its range."""

    def read(self, value: object) -> int:
        """Integers of Python and NumPy."""
        if isinstance(value, (bool, float)) or not hasattr(value, "__index__"):
            raise WrongValueError("an integer")
        whole = int(value)  # pyright: ignore[reportArgumentType]
        if abs(whole) > MAX_INTEGER:
            raise WrongValueError(f"an integer of at most {MAX_INTEGER}")
        return whole

    def schema(self) -> dict[str, Any]:
        """An integer."""
        return {"type": "integer"}


@dataclass(frozen=True, slots=True)
class FlagKind(ArgumentKind):
    """A bool."""

    def read(self, value: object) -> bool:
        """A bool."""
        if not isinstance(value, bool):
            raise WrongValueError("true or false")
        return value

    def schema(self) -> dict[str, Any]:
        """A bool."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class SizeKind(ArgumentKind):
    """An integer, or an expression over symbols and loop variables. Variables are stored by name; they are resolved in
    the function that the step is applied to."""

    def read(self, value: object) -> int | Expr:
        """An integer, an int64 expression, or the text of one."""
        try:
            size = check_size(parse_size(value) if isinstance(value, str) else value)
            if not isinstance(size, Expr):
                return size
            named = substitute(size, {v: Var(v.name) for v in free_vars(size)})
            return check_size(simplify(named, NO_BOUNDS))
        except WrongSizeError as e:
            raise WrongValueError(str(e)) from None
        except RecursionError:
            raise WrongValueError("an expression (it is nested too deeply)") from None

    def write(self, value: int | Expr) -> int | str:
        """A number, or text."""
        return str(value) if isinstance(value, Expr) else value

    def schema(self) -> dict[str, Any]:
        """An integer or a text."""
        return {"type": ["integer", "string"]}


@dataclass(frozen=True, slots=True)
class ChoiceKind(ArgumentKind):
    """A member of an enumeration, or of a subset of one."""

    members: tuple[StrEnum, ...]

    def read(self, value: object) -> StrEnum:
        """A member or its text."""
        member = next((m for m in self.members if isinstance(value, str) and m.value == value), None)
        if member is None:
            raise WrongValueError(f"one of {', '.join(m.value for m in self.members)}")
        return member

    def write(self, value: StrEnum) -> str:
        """The member's text."""
        return value.value

    def schema(self) -> dict[str, Any]:
        """One of the texts."""
        return {"enum": [m.value for m in self.members]}


@dataclass(frozen=True, slots=True)
class TupleKind(ArgumentKind):
    """A tuple of values of one kind, of fixed `length` unless that is None."""

    item: ArgumentKind
    length: int | None = None

    def read(self, value: object) -> tuple[Any, ...]:
        """Lists and tuples."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise WrongValueError("a list")
        if self.length is not None and len(value) != self.length:
            raise WrongValueError(f"{self.length} values")
        try:
            return tuple(self.item.read(v) for v in value)
        except WrongValueError as e:
            raise WrongValueError(f"a list, each value {e}") from None

    def write(self, value: tuple[Any, ...]) -> list[Any]:
        """A list."""
        return [self.item.write(v) for v in value]

    def show(self, value: tuple[Any, ...]) -> str:
        """A tuple."""
        inner = ", ".join(self.item.show(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"

    def schema(self) -> dict[str, Any]:
        """An array."""
        fixed = {} if self.length is None else {"minItems": self.length, "maxItems": self.length}
        return {"type": "array", "items": self.item.schema(), **fixed}


@dataclass(frozen=True, slots=True)
class LayoutKind(ArgumentKind):
    """A layout; its symbols are resolved by name, like those of a size."""

    def read(self, value: object) -> Layout:
        """A layout or its JSON form."""
        if isinstance(value, Layout):
            return value
        try:
            return Layout.from_json(value)
        except (LayoutError, RecursionError) as e:
            reason = f"{e.where}: {e.what}" if isinstance(e, LayoutError) else "it is nested too deeply"
            raise WrongValueError(f"a layout ({reason})") from None

    def write(self, value: Layout) -> dict[str, Any]:
        """The layout's own JSON form."""
        return value.to_json()

    def schema(self) -> dict[str, Any]:
        """A reference to the common definition of layouts."""
        return {"$ref": "#/$defs/layout"}


@dataclass(frozen=True, slots=True)
class OptionalKind(ArgumentKind):
    """A value or None."""

    item: ArgumentKind

    def read(self, value: object) -> Any:
        """None stays None."""
        return None if value is None else self.item.read(value)

    def write(self, value: Any) -> Any:
        """None is null."""
        return None if value is None else self.item.write(value)

    def show(self, value: Any) -> str:
        """None is None."""
        return "None" if value is None else self.item.show(value)

    def schema(self) -> dict[str, Any]:
        """The value's schema or null."""
        return {"anyOf": [self.item.schema(), {"type": "null"}]}
