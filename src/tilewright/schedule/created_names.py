"""Names of the loops, blocks and buffers that a step created."""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.loops.ir import Block, For, Func, walk


@dataclass(frozen=True, slots=True)
class CreatedNames:
    """Names in textual order."""

    loops: tuple[str, ...]
    blocks: tuple[str, ...]
    buffers: tuple[str, ...]

    @classmethod
    def between(cls, before: Func, after: Func) -> "CreatedNames":
        """The names in `after` that are not in `before`."""
        statements = [[s for s, _ in walk(f.body)] for f in (before, after)]
        return cls(
            _added(*([s.var.name for s in stmts if isinstance(s, For)] for stmts in statements)),
            _added(*([s.name for s in stmts if isinstance(s, Block)] for stmts in statements)),
            _added(*([b.name for b in f.allocs] for f in (before, after))),
        )


def _added(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    existing = set(old)
    return tuple(n for n in new if n not in existing)
