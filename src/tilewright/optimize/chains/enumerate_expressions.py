"""All tiling expressions of a chain: deep ones, in which every loop is nested, and flat ones, in which loops follow
each other (MCFuser, section III-A).

The axes of a statement lie on one path of nested loops, because a tile of it is computed at one place. So two axes that
a statement has in common are nested in each other, in either order; axes that none has in common may be nested as well,
or follow each other. Expressions are therefore all forests over the axes in which axes of a common statement lie on one
path: for the two products of the paper the 4! = 24 orders, `mn(k,h)` and `nm(k,h)`.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

from tilewright.optimize.chains.expression import TiledLoop, TilingExpression, axes_of, nested
from tilewright.optimize.chains.problem import Chain

Axes = frozenset[str]


def expressions_of(chain: Chain) -> tuple[TilingExpression, ...]:
    """The tiling expressions of a chain; loops in a row are in the order of the statements in them.

    Batch axes and axes of a single tile have no loops here. The number grows with the factorial of that of the axes.
    """
    neighbours = _neighbours(chain)
    first_use = {a: next(k for k, s in enumerate(chain.statements) if a in s.axes) for a in chain.loop_axes}

    def first_statement(loop: TiledLoop) -> int:
        return min(first_use[a] for a in axes_of((loop,)))

    @cache
    def trees(axes: Axes) -> tuple[TiledLoop, ...]:
        roots = [a for a in chain.loop_axes if a in axes]
        return tuple(TiledLoop(root, body) for root in roots for body in forests(axes - {root}))

    @cache
    def forests(axes: Axes) -> tuple[TilingExpression, ...]:
        if not axes:
            return ((),)
        return tuple(
            tuple(sorted(loops, key=first_statement))
            for groups in _set_partitions(_components(axes, neighbours))
            for loops in product(*(trees(frozenset().union(*group)) for group in groups))
        )

    return forests(frozenset(chain.loop_axes))


def deep_expressions_of(chain: Chain) -> tuple[TilingExpression, ...]:
    """The deep expressions alone: every order of the axes."""
    return tuple(_loop_orders(chain.loop_axes))


def _loop_orders(axes: Sequence[str]) -> Iterator[TilingExpression]:
    if not axes:
        yield ()
    for axis in axes:
        for inner in _loop_orders([a for a in axes if a != axis]):
            yield nested((axis,), *inner)


def _neighbours(chain: Chain) -> dict[str, Axes]:
    """The axes that share a statement with an axis, by its name."""
    return {a: frozenset().union(*(s.axes for s in chain.statements if a in s.axes)) for a in chain.loop_axes}


def _components(axes: Axes, neighbours: dict[str, Axes]) -> list[Axes]:
    """The connected components of axes, of which neighbours are connected; sorted, for equal results everywhere."""
    components: list[Axes] = []
    left = sorted(axes)
    while left:
        component, added = {left[0]}, [left[0]]
        while added:
            new = (neighbours[added.pop()] & axes) - component
            component |= new
            added += sorted(new)
        components.append(frozenset(component))
        left = [a for a in left if a not in component]
    return components


def _set_partitions(parts: Sequence[Axes]) -> Iterator[list[list[Axes]]]:
    """Every way to group parts."""
    if not parts:
        yield []
        return
    first, *others = parts
    for groups in _set_partitions(others):
        yield [[first], *groups]
        for k in range(len(groups)):
            yield [*groups[:k], [first, *groups[k]], *groups[k + 1 :]]
