"""Generators of unique names: `i`, `i_1`, `i_2`, ...; and the name that a misspelt one may mean."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """`did you mean 'split'?`, or an empty text where no name is similar."""
    matches = get_close_matches(name, list(candidates), 1)
    return f"did you mean {matches[0]!r}?" if matches else ""


def unique_name(base: str, taken: Container[str], *, separator: str = "_", first: int = 1) -> str:
    """`base` itself, or `base_1`, `base_2`, ... where it is taken; numbers count from `first`."""
    name, number = base, first
    while name in taken:
        name, number = f"{base}{separator}{number}", number + 1
    return name


def underscored_name(name: str, *taken: Container[str]) -> str:
    """The name, with as many underscores behind it as make it different from the taken ones."""
    while any(name in names for names in taken):
        name += "_"
    return name


@dataclass(slots=True)
class UniqueNames:
    """Hands out names that were not used before, numbered as `unique_name` does.

    Attributes:
        used: the names that are taken; names are only ever added.
        first: the first number.
        counters: the next number to try, by base.
    """

    used: set[str] = field(default_factory=set[str])
    first: int = 1
    counters: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, names: Iterable[str], first: int = 1) -> "UniqueNames":
        """A generator for which `names` are taken."""
        return cls(set(names), first)

    def fresh(self, base: str) -> str:
        """`base` itself, or `base` with the first free number where it is taken."""
        name = base
        while name in self.used:
            number = self.counters.get(base, self.first)
            self.counters[base] = number + 1
            name = f"{base}_{number}"
        self.used.add(name)
        return name
