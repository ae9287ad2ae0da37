"""UniqueNames: a generator of names that were not used before."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class UniqueNames:
    """Generates names that were not used before: `i`, `i_1`, `i_2`, ...

    Attributes:
        used: the names that are taken.
        first: the first number that is appended.
        counters: the last number that was appended, by base name.
    """

    used: set[str] = field(default_factory=set[str])
    first: int = 1
    counters: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, names: Iterable[str]) -> "UniqueNames":
        """A pool in which `names` are taken."""
        return cls(set(names))

    def fresh(self, base: str) -> str:
        """`base` itself, or `base_1`, `base_2`, ... where it is taken."""
        name = base
        while name in self.used:
            self.counters[base] = self.counters.get(base, self.first - 1) + 1
            name = f"{base}_{self.counters[base]}"
        self.used.add(name)
        return name
