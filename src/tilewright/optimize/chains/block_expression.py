"""Expressions of one unit of a machine: spatial loops run on parallel units, the others in each of them.

Rule 1 of MCFuser (section III-C) binds the spatial loops of the results to the grid of a GPU's thread blocks; here they
become parallel loops over cores. Expressions whose loops within a block are equal are one.
"""

from dataclasses import dataclass

from tilewright.optimize.chains.expression import (
    TiledLoop,
    TilingExpression,
    expression_text,
    loop_paths,
    nested,
    without_loops,
)
from tilewright.optimize.chains.problem import Chain


@dataclass(frozen=True, slots=True)
class BlockExpression:
    """An expression in two parts.

    Attributes:
        grid: axes whose tiles are computed by independent blocks, outermost first, without batch axes.
        body: the loops of a block.
    """

    grid: tuple[str, ...]
    body: TilingExpression

    def __str__(self) -> str:
        return f"{' '.join(self.grid)} | {expression_text(self.body)}".strip()

    def expression(self, chain: Chain, eliminated: frozenset[str] = frozenset()) -> TilingExpression:
        """The loops in one expression, batch axes first, without those that are eliminated."""
        loops = nested((*chain.batch, *self.grid), *self.body)
        return without_loops(loops, eliminated)


def bind_grid(chain: Chain, expression: TilingExpression) -> BlockExpression:
    """An expression with its spatial loops bound to the grid: those around which everything else is nested.

    A loop in a scope with others stays where it is: `mn(k,h)` computes a tile of C once for all tiles of h, and h in
    the grid would compute it once for each.
    """
    grid: list[str] = []
    kept: list[str] = []
    scope = expression
    while len(scope) == 1:
        (grid if scope[0].axis in chain.grid_axes else kept).append(scope[0].axis)
        scope = scope[0].body
    return BlockExpression(tuple(sorted(grid, key=chain.loop_axes.index)), nested(tuple(kept), *scope))


def has_many_partial_tiles(chain: Chain, body: TilingExpression) -> bool:
    """Whether a loop that an intermediate is summed up along is around one over its own tiles, so that partial sums of
    all of these are kept at a time (rule 2)."""
    paths = loop_paths(body)
    return any(
        reduced in paths[axis]
        for s in chain.statements
        if not s.is_output
        for axis in s.result.axes & paths.keys()
        for reduced in s.reductions
    )


def grid_of(chain: Chain, expression: TilingExpression) -> tuple[str, ...]:
    """The axes of the leading loops whose iterations are independent: those to run in parallel."""
    grid: list[str] = []
    scope: tuple[TiledLoop, ...] = expression
    while len(scope) == 1 and scope[0].axis in chain.grid_axes:
        grid.append(scope[0].axis)
        scope = scope[0].body
    return tuple(grid)
