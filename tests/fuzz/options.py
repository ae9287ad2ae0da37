"""Choices as data: every choice that a random computation depends on has a name and a recorded value.

Drawn choices replay from their record, and a record with smaller values is a smaller computation of the same kind.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from tilewright.expr.define import Size, symbol

Choice = int | str | bool
T = TypeVar("T", int, str)

SYMBOLIC_UP_TO = 4
"""A symbolic size is declared to go up to this many times the drawn one."""


class Options:
    """Answers from the record, or from `rng` where the record is silent; one that does not fit becomes the first."""

    def __init__(self, record: dict[str, Choice], rng: Random | None = None) -> None:
        self.record, self.rng = record, rng
        self.sizes: dict[str, int] = {}
        self.least: dict[str, int] = {}

    def choice(self, name: str, values: Sequence[T]) -> T:
        """One of a few values; the first is the simplest."""
        if self.record.get(name) not in values:
            self.record[name] = values[0] if self.rng is None else self.rng.choice(values)
        return self.record[name]  # type: ignore[return-value]

    def flag(self, name: str, chance: float = 0.5) -> bool:
        """Yes or no; no is the simpler answer."""
        if not isinstance(self.record.get(name), bool):
            self.record[name] = self.rng is not None and self.rng.random() < chance
        return bool(self.record[name])

    def number(self, name: str, low: int, high: int) -> int:
        """A literal in a range."""
        value = self.record.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            value = low if self.rng is None else self.rng.randint(low, high)
        self.record[name] = min(max(value, low), high)
        return int(self.record[name])

    def size(self, name: str, high: int, low: int = 1) -> Size:
        """An extent: a literal, or a symbol whose value for the run is recorded."""
        value = self.number(name, low, high)
        if not self.flag(f"{name} symbolic", 0.3):
            return value
        self.sizes[name], self.least[name] = value, low
        return symbol(name, low, SYMBOLIC_UP_TO * high)
