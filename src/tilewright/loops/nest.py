"""A block in its loops: the view of the program that the parts of the verifier share."""

from dataclasses import dataclass

from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import Binary, Expr, Var
from tilewright.expr.polynomial import polynomial
from tilewright.expr.simplify import substitute
from tilewright.loops.ir import Block, For
from tilewright.loops.printer import show_loop, show_stmt


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: the place, the sentence, and the offending loop or block as text."""

    where: str
    what: str
    shown: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
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
    known: Bounds

    @staticmethod
    def of(block: Block, loops: tuple[For, ...]) -> "Nest":
        """The view of `block` inside `loops`."""
        known = Bounds()
        for loop in loops:
            known = known.with_loop(loop.var, loop.extent)
        return Nest(block, loops, {i.var: i.binding for i in block.iters}, known.assuming(block.predicate))

    def bound(self, e: Expr) -> Expr:
        """`e` over loop variables instead of the block's own."""
        return substitute(e, self.bindings)

    @property
    def shown(self) -> str:
        """The headers of the loops and the block as text."""
        headers = [f"{'  ' * depth}{show_loop(loop)}" for depth, loop in enumerate(self.loops)]
        body = [f"{'  ' * len(self.loops)}{line}" for line in show_stmt(self.block).splitlines()]
        return "\n".join([*headers, *body])


@dataclass(frozen=True, slots=True)
class Digit:
    """(source // lower) % modulus, or source // lower where modulus is None: one digit of a fused or split index."""

    source: Expr
    lower: Expr
    modulus: Expr | None


def digit(atom: Expr) -> Digit | None:
    """The digit that an atom of a polynomial is; None for other atoms (minima, loads, products)."""
    from tilewright.expr.nodes import const

    match atom:
        case Var():
            return Digit(atom, const(1), None)
        case Binary("floordiv" | "mod" as op, a, b):
            inner = _digit_or_whole(a)
            if op == "floordiv":
                if inner.modulus is None:
                    return Digit(inner.source, inner.lower * b, None)
                return Digit(inner.source, inner.lower * b, _exact(inner.modulus, b))
            if inner.modulus is None or _exact(inner.modulus, b) is not None:
                return Digit(inner.source, inner.lower, b)
            return None
        case _:
            return None


def _digit_or_whole(e: Expr) -> Digit:
    """A digit where `e` is one, else all of `e`."""
    from tilewright.expr.nodes import const

    found = digit(e) if len(polynomial(e)) == 1 and not isinstance(e, Var) else None
    if found is not None and (found.modulus is None or isinstance(found.modulus, Expr)):
        return found
    return Digit(e, const(1), None)


def _exact(whole: Expr, part: Expr) -> Expr | None:
    quotient = whole // part
    return quotient if quotient * part is whole else None
