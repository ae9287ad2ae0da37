"""Exchange of register tiles: local searches go on from the best register tile of two axes at once.

Register tiles of equal area, such as 4 x 96 and 9 x 48, are several edges apart, and the tiles between them are worse:
they leave registers idle or spill. So hill climbing by single edges ends in whichever a walk came close to.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tilewright.optimize.construct.local_search import LocalSearch, search_locally
from tilewright.optimize.construct.lock_step import SteppedSearch
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import NO_EDGE, EdgeKind
from tilewright.tile.program import L1, L2, REGISTER, Sketch

MAX_EXCHANGES = 4
"""Exchanges of one search at most; it ends by itself, as every one improves the time."""

Path = tuple[int, tuple[int, ...]]
"""A tiling of an axis, and the edges that lead to it."""


def best_by_sketch(searches: Iterable[LocalSearch], count: int) -> list[LocalSearch]:
    """The best search of each sketch, the best `count` of them."""
    best: dict[Sketch, LocalSearch] = {}
    for search in sorted(searches, key=lambda s: s.nanoseconds):
        best.setdefault(search.sketch, search)
    return list(best.values())[:count]


def exchange_register_tiles(search: LocalSearch) -> SteppedSearch[LocalSearch]:
    """A search that goes on until nothing is better, `MAX_EXCHANGES` times at most: by the best register tile along the
    lanes and one other axis, then by hill climbing."""
    for _ in range(MAX_EXCHANGES):
        exchanged = yield from _exchanged(search)
        if exchanged is None:
            break
        start, nanoseconds = exchanged.states[-1:], np.array([exchanged.nanoseconds])
        (climbed,) = yield from search_locally(search.space, search.sketch, start, nanoseconds)
        search = climbed.continued_from([exchanged])
    return search


def _exchanged(search: LocalSearch) -> SteppedSearch[LocalSearch | None]:
    """The search with a better register tile along the lanes and one other axis; None where there is none."""
    space, lane, end = search.space, search.sketch.lane, search.states[-1]
    along_lanes = _register_paths(space, lane, int(end[lane]))
    pairs = [
        (axis, x, y)
        for axis in space.problem.spatial
        if axis != lane
        for xs, ys in zip(along_lanes, _register_paths(space, axis, int(end[axis])), strict=True)
        for y in ys
        for x in xs
    ]
    states = np.repeat(end[None], len(pairs), axis=0)
    for k, (axis, x, y) in enumerate(pairs):
        states[k, lane], states[k, axis] = x[0], y[0]
    lowerable = np.flatnonzero(space.are_lowerable(space.sizes(states))) if pairs else []
    if not len(lowerable):
        return None
    nanoseconds = yield from space.nanoseconds(search.sketch, states[lowerable])
    best = int(nanoseconds.argmin())
    if not nanoseconds[best] < search.nanoseconds:
        return None
    axis, x, y = pairs[lowerable[best]]
    return _with_steps(search, [(lane, e) for e in x[1]] + [(axis, e) for e in y[1]], float(nanoseconds[best]))


def _with_steps(search: LocalSearch, steps: Sequence[tuple[int, int]], nanoseconds: float) -> LocalSearch:
    """A search with further steps."""
    states = [search.states[-1]]
    for axis, edge in steps:
        state = states[-1].copy()
        state[axis] = search.space.lattices[axis].successor(state[axis : axis + 1], np.array([edge]))[0]
        states.append(state)
    return replace(
        search,
        states=np.concatenate([search.states, np.stack(states[1:])]),
        edges=(*search.edges, *steps),
        nanoseconds=nanoseconds,
    )


def _register_paths(space: SearchSpace, axis: int, tiling: int) -> tuple[list[Path], list[Path]]:
    """The tilings of an axis with every register tile: with the cache tiles that these leave, and with the smallest."""
    here: Path = (tiling, ())
    grown, shrunk = (_repeated(space, axis, here, e + REGISTER) for e in (EdgeKind.TILE, EdgeKind.INV_TILE))
    paths = [here, *grown, *shrunk]
    return paths, [_with_smallest_cache_tiles(space, axis, path) for path in paths]


def _with_smallest_cache_tiles(space: SearchSpace, axis: int, path: Path) -> Path:
    """A path that goes on to the smallest cache tiles."""
    for level in (L1, L2):
        path = [path, *_repeated(space, axis, path, EdgeKind.INV_TILE + level)][-1]
    return path


def _repeated(space: SearchSpace, axis: int, path: Path, edge: int) -> list[Path]:
    """What a path leads to by one edge again and again, each tiling once: some edges lead back."""
    paths: list[Path] = []
    (reached, edges), passed = path, {NO_EDGE, path[0]}
    while (following := int(space.lattices[axis].successors(np.array([reached]))[0, edge])) not in passed:
        reached, edges = following, (*edges, int(edge))
        passed.add(reached)
        paths.append((reached, edges))
    return paths
