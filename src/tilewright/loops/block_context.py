"""BlockContext: a block with its enclosing loops, its bindings and the bounds that hold where it runs."""

from dataclasses import dataclass

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var
from tilewright.loops.ir import Block, For
from tilewright.loops.printer import show_loop, show_stmt


@dataclass(frozen=True, slots=True, eq=False)
class BlockContext:
    """A block with its enclosing loops. Contexts compare by identity.

    Attributes:
        block: the block.
        loops: the enclosing loops, outermost first.
        bindings: its iteration variables in terms of the loop variables.
        bounds: ranges of the loop variables, and the block's predicate.
    """

    block: Block
    loops: tuple[For, ...]
    bindings: dict[Var, Expr]
    bounds: Bounds

    @staticmethod
    def of(block: Block, loops: tuple[For, ...]) -> "BlockContext":
        """The context of `block` inside `loops`."""
        bounds = Bounds.from_loops((loop.var, loop.extent) for loop in loops)
        return BlockContext(block, loops, {i.var: i.binding for i in block.iters}, bounds.assuming(block.predicate))

    def over_loops(self, e: Expr) -> Expr:
        """`e` with the block's iteration variables replaced by their bindings."""
        return substitute(e, self.bindings)

    @property
    def text(self) -> str:
        """The headers of the loops and the block as text."""
        headers = [f"{'  ' * depth}{show_loop(loop)}" for depth, loop in enumerate(self.loops)]
        body = [f"{'  ' * len(self.loops)}{line}" for line in show_stmt(self.block).splitlines()]
        return "\n".join([*headers, *body])
