"""A block in its loops: the view of the program that the parts of the verifier share."""

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Buffer, Expr, Var, const
from tilewright.loops.ir import Block, For
from tilewright.loops.printer import show_loop, show_stmt


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something wrong: the place, the sentence, the offending loop or block as text, and what to do about it.

    `shared` is the buffer of which iterations of a concurrent loop may write one element, if that is what is wrong.
    """

    where: str
    what: str
    snippet: str = ""
    hint: str = ""
    shared_buffer: Buffer | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BlockContext:
    """A block with the loops around it, outermost first.

    Attributes:
        block: the block.
        loops: the loops around it.
        bindings: its iteration variables in terms of the loops.
        known: ranges of the loop variables, and the block's predicate.
    """

    block: Block
    loops: tuple[For, ...]
    bindings: dict[Var, Expr]
    bounds: Bounds

    @staticmethod
    def of(block: Block, loops: tuple[For, ...]) -> "BlockContext":
        """The view of `block` inside `loops`."""
        known = Bounds.from_loops((loop.var, loop.extent) for loop in loops)
        return BlockContext(block, loops, {i.var: i.binding for i in block.iters}, known.assuming(block.predicate))

    def over_loops(self, e: Expr) -> Expr:
        """`e` over loop variables instead of the block's own."""
        return substitute(e, self.bindings)

    @property
    def text(self) -> str:
        """The headers of the loops and the block as text."""
        headers = [f"{'  ' * depth}{show_loop(loop)}" for depth, loop in enumerate(self.loops)]
        body = [f"{'  ' * len(self.loops)}{line}" for line in show_stmt(self.block).splitlines()]
        return "\n".join([*headers, *body])


@dataclass(frozen=True, slots=True)
class IterSplit:
    """(source // lower) % modulus, or source // lower where modulus is None: one digit of a fused or split index."""

    source: Expr
    lower_factor: Expr
    extent: Expr | None


def match_iter_split(atom: Expr) -> IterSplit | None:
    """The digit that an atom of a polynomial is; None for other atoms (minima, loads, products)."""
    match atom:
        case Var():
            return IterSplit(atom, const(1), None)
        case Binary("floordiv" | "mod" as op, a, b):
            nested = isinstance(a, Binary) and a.op in ("floordiv", "mod")
            inner = (match_iter_split(a) if nested else None) or IterSplit(a, const(1), None)
            rest = None if inner.extent is None else exact_quotient(inner.extent, b)
            if inner.extent is not None and rest is None:
                return None
            if op == "mod":
                return IterSplit(inner.source, inner.lower_factor, b)
            return IterSplit(inner.source, inner.lower_factor * b, rest)
        case _:
            return None


def exact_quotient(whole: Expr, part: Expr) -> Expr | None:
    """whole / part where that is known to be an integer."""
    quotient = whole // part
    return quotient if quotient * part is whole else None


def splits_are_bijective(splits: Iterable[tuple[Expr, Expr | None]]) -> bool:
    """Whether digits (lower, modulus) of one source are all of it: 1, m1, m1*m2, ... up to one without modulus."""
    left: dict[Expr, set[Expr | None]] = {}
    for lower, modulus in splits:
        left.setdefault(lower, set()).add(modulus)
    reached: list[Expr] = [const(1)]
    while reached:
        for modulus in left.pop(here := reached.pop(), ()):
            if modulus is None:
                return True
            reached.append(here * modulus)
    return False
