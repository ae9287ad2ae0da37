"""Tiling expressions: the loops over the tiles of a fused chain of contractions, nested or one after the other.

The products C[m,n] = A[m,k] B[k,n] and E[m,h] = C[m,n] D[n,h] have the loops m, n, k, h. `mnkh` nests all of them (a
deep expression); in `mn(k,h)` loop k, which belongs to the first product only, and h, which belongs to the second,
follow each other in the scope of n (a flat one). MCFuser (Zhang et al., SC 2024), section III-A.
"""

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TiledLoop:
    """A loop over the tiles of an axis.

    Attributes:
        axis: name of the axis (`tile/statements.py`).
        body: loops inside it; several run one after the other.
    """

    axis: str
    body: "tuple[TiledLoop, ...]" = ()


TilingExpression = tuple[TiledLoop, ...]
"""Loops in the outermost scope; several run one after the other."""

Path = tuple[str, ...]
"""The axes of nested loops, outermost first."""


@dataclass(frozen=True, slots=True)
class ChainTiling:
    """How a fused chain is tiled: its loops over tiles, and the size of every tile.

    Attributes:
        expression: the loops; an axis of the chain that has no loop here is one tile.
        tiles: (axis, points of a tile) of every axis of the chain.
    """

    expression: TilingExpression
    tiles: tuple[tuple[str, int], ...]

    def tile(self, axis: str) -> int:
        """The points of a tile of an axis.

        Raises:
            KeyError: the chain has no such axis.
        """
        return dict(self.tiles)[axis]


def nested(axes: tuple[str, ...], *body: TiledLoop) -> TilingExpression:
    """Loops over axes nested into each other, outermost first, around a body."""
    result = body
    for axis in reversed(axes):
        result = (TiledLoop(axis, result),)
    return result


def walk_expression(expression: TilingExpression, enclosing: Path = ()) -> Iterator[tuple[TiledLoop, Path]]:
    """Every loop in pre-order, with the axes of the loops around it, outermost first."""
    for loop in expression:
        yield loop, enclosing
        yield from walk_expression(loop.body, (*enclosing, loop.axis))


def axes_of(expression: TilingExpression) -> tuple[str, ...]:
    """The axes of the loops of an expression, in pre-order."""
    return tuple(loop.axis for loop, _ in walk_expression(expression))


def loop_paths(expression: TilingExpression) -> dict[str, Path]:
    """By axis, in pre-order, the axes of the loops around its loop and its own, outermost first."""
    return {loop.axis: (*enclosing, loop.axis) for loop, enclosing in walk_expression(expression)}


def statement_path(axes: Container[str | None], paths: dict[str, Path]) -> Path:
    """The loops around a statement: down to the rightmost one, the last in pre-order, over one of its axes (MCFuser,
    section III-A); `paths` as `loop_paths` gives them."""
    return next((path for axis, path in reversed(paths.items()) if axis in axes), ())


def without_loops(expression: TilingExpression, axes: Collection[str]) -> TilingExpression:
    """The expression without the loops over some axes; what is in them moves into the scope around."""
    result: list[TiledLoop] = []
    for loop in expression:
        body = without_loops(loop.body, axes)
        result += body if loop.axis in axes else (TiledLoop(loop.axis, body),)
    return tuple(result)


def expression_text(expression: TilingExpression, names: Mapping[str, str] | None = None) -> str:
    """The text of an expression as the paper prints it: `mnkh`, `mn(k,h)`.

    Args:
        expression: the loops.
        names: what to print for an axis; by default its name. Names of more than one letter are separated by blanks.
    """
    labels = {axis: (names or {}).get(axis, axis) for axis in axes_of(expression)}
    separator = "" if all(len(x) == 1 for x in labels.values()) else " "

    def scope(loops: TilingExpression) -> str:
        texts = [separator.join(x for x in (labels[loop.axis], scope(loop.body)) if x) for loop in loops]
        return texts[0] if len(texts) == 1 else f"({','.join(texts)})" if texts else ""

    return scope(expression)
