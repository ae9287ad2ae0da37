"""The search space of a chain after the four pruning rules of MCFuser (section III-C), and what each of them removed.

The space is the product of expressions and tile sizes. Rules 1 and 2 concern expressions, rule 3 each axis alone, and
rule 4 whole candidates; so all sizes but the last are products, and no space is materialised.

1. Expressions that are equal once spatial loops are bound to the grid are one.
2. No loop along which an intermediate is summed up is around one over its tiles.
3. Tiles divide an extent that is a power of two; others are padded by less than 5 %.
4. The tiles of a block take at most 1.2 times the fast memory; on processors, results also fit the stack.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import ceil, inf, prod

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import ScheduleError
from tilewright.machine.model import Machine
from tilewright.optimize.chains.block_expression import BlockExpression, bind_grid, has_many_partial_tiles
from tilewright.optimize.chains.enumerate_expressions import deep_expressions_of, expressions_of
from tilewright.optimize.chains.expression import TilingExpression
from tilewright.optimize.chains.model import ChainModel, Tiles, UnitResources, Values
from tilewright.optimize.chains.place_statements import order_problem
from tilewright.optimize.chains.problem import Chain, ChainAxis

MAX_PADDING = 0.05
"""Rule 3: points beyond the extent that tiles may cover, relative to it."""

MIN_OPTIONS = 3
"""Tile sizes that an axis keeps, if it has so many."""

MAX_FAST_MEMORY_USE = 1.2
"""Rule 4: bytes of tiles relative to the fast memory, as the estimate is not exact."""

MAX_LOOP_AXES = 7
"""Axes with loops of the largest chains that are enumerated: 7! = 5040 deep expressions."""

CHUNK = 1 << 18
"""Candidates that are estimated at a time."""

TileOptions = tuple[int, ...]
"""The tile sizes of an axis, growing."""


class Variant(Enum):
    """Which space is searched.

    Attributes:
        MCFUSER: deep and flat expressions; loops of one iteration are eliminated.
        CHIMERA: deep expressions alone, and loops of one iteration stay where they are (MCFuser-Chimera, section VI-A,
            after Chimera, HPCA 2023).
    """

    MCFUSER = "mcfuser"
    CHIMERA = "chimera"

    @property
    def eliminates(self) -> bool:
        """Whether loops of one iteration are eliminated."""
        return self is Variant.MCFUSER

    @property
    def enumerate(self) -> Callable[[Chain], tuple[TilingExpression, ...]]:
        """The function that enumerates the expressions of a chain."""
        return expressions_of if self is Variant.MCFUSER else deep_expressions_of


def tile_options(axis: ChainAxis) -> TileOptions:
    """All tile sizes of an axis: multiples of its granule, and the whole axis if it is of a literal extent."""
    if axis.is_batch:
        return (1,)
    if axis.is_single_tile:
        return (axis.extent,)
    count = ceil(max(axis.extent, axis.largest) / axis.granule)
    options = range(axis.granule, axis.granule * count + 1, axis.granule)
    return tuple(options) if axis.is_symbolic else (*options[:-1], axis.extent)


def unpadded_options(axis: ChainAxis) -> TileOptions:
    """The tile sizes that rule 3 leaves; of those that cut the axis into as many tiles, the smallest.

    Where they are fewer than `MIN_OPTIONS`, as of primes, the limit of the padding is doubled until they are not. Those
    of a symbolic axis are the granule times powers of two: its padding is not known before the kernel runs.
    """
    options = tile_options(axis)
    if len(options) == 1:
        return options
    if axis.is_symbolic:
        return tuple(t for t in options if (t // axis.granule).bit_count() == 1)
    if axis.extent.bit_count() == 1:
        return tuple(t for t in options if axis.extent % t == 0)
    limit = MAX_PADDING
    while True:
        unpadded = tuple(t for t in options if _padding(axis, t) < limit)
        if len(unpadded) >= min(MIN_OPTIONS, len(options)):
            smallest = {ceil(axis.extent / t): t for t in reversed(unpadded)}
            return tuple(sorted(smallest.values()))
        limit *= 2


def _padding(axis: ChainAxis, tile: int) -> float:
    return (ceil(axis.extent / tile) * tile - axis.extent) / axis.extent


@dataclass(frozen=True, slots=True)
class PruningCounts:
    """What is left of a space after every rule, in order.

    Attributes:
        expressions: numbers of expressions: of all, after rule 1, after rule 2. Rule 2 includes the order of
            statements: of two products it leaves none that is out of order.
        sizes: numbers of combinations of tile sizes: of all, after rule 3.
        candidates: number of candidates after rule 4.
    """

    expressions: tuple[int, int, int]
    sizes: tuple[int, int]
    candidates: int

    @property
    def waterfall(self) -> tuple[tuple[str, int], ...]:
        """(what was applied, candidates that are left)."""
        every, first, second = self.expressions
        all_sizes, unpadded = self.sizes
        return (
            ("all", every * all_sizes),
            ("rule 1", first * all_sizes),
            ("rule 2", second * all_sizes),
            ("rule 3", second * unpadded),
            ("rule 4", self.candidates),
        )


@dataclass(frozen=True, slots=True)
class ChainSpace:
    """The pruned space.

    Attributes:
        chain: the chain.
        models: of the expressions that rules 1 and 2 leave.
        options: per axis the tile sizes that rule 3 leaves.
        variant: which space it is.
    """

    chain: Chain
    models: tuple[ChainModel, ...]
    options: tuple[TileOptions, ...]
    variant: Variant

    @staticmethod
    def of(chain: Chain, machine: Machine, variant: Variant = Variant.MCFUSER) -> "ChainSpace":
        """The pruned space.

        Raises:
            ScheduleError: the chain has more than `MAX_LOOP_AXES` axes.
        """
        if len(chain.loop_axes) > MAX_LOOP_AXES:
            what = f"expected at most {MAX_LOOP_AXES} axes with several tiles, got {len(chain.loop_axes)}"
            raise ScheduleError(what, where="fused chain", hint="fuse fewer contractions")
        data = sum(x.bytes * prod(chain.extent(d) for d in x.dims) for x in chain.tensors())
        resources = UnitResources.of(machine, data)
        blocks = legal_blocks(chain, variant)
        models = tuple(ChainModel(chain, b, resources, variant.eliminates) for b in blocks)
        return ChainSpace(chain, models, tuple(map(unpadded_options, chain.axes)), variant)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of tile sizes per axis."""
        return tuple(map(len, self.options))

    def tiles(self, positions: Tiles) -> Tiles:
        """Tile sizes from positions in the options [candidate, axis]."""
        return np.stack([np.asarray(o)[positions[:, k]] for k, o in enumerate(self.options)], axis=1)

    def chunks(self) -> Iterator[tuple[ChainModel, Tiles]]:
        """All candidates that rules 1 to 3 leave, at most `CHUNK` at a time, of one expression each."""
        for model in self.models:
            for positions in all_positions(self.shape):
                yield model, self.tiles(positions)

    def counts(self) -> PruningCounts:
        """What every rule left."""
        expressions = self.variant.enumerate(self.chain)
        blocks = {bind_grid(self.chain, e) for e in expressions}
        sizes = prod(len(tile_options(a)) for a in self.chain.axes), prod(self.shape)
        fitting = sum(map(self._count_fitting, self.models))
        return PruningCounts((len(expressions), len(blocks), len(self.models)), sizes, fitting)

    def _count_fitting(self, model: ChainModel) -> int:
        """Candidates of an expression that pass rule 4.

        The footprint is linear in the tile size of an axis that nothing reduces along, so for given sizes along the
        others those that fit are the ones up to a limit.
        """
        free = self._linear_axis()
        if free is None:
            return sum(int(fits(model, self.tiles(p)).sum()) for p in all_positions(self.shape))
        options, total = np.asarray(self.options[free]), 0
        for positions in all_positions(tuple(1 if k == free else n for k, n in enumerate(self.shape))):
            tiles = self.tiles(positions)
            larger = tiles.copy()
            larger[:, free] += 1
            room = [limit - f(tiles) for f, limit in _memory_limits(model)]
            growth = [f(larger) - f(tiles) for f, _ in _memory_limits(model)]
            steps = [np.where(g > 0, np.floor(r / np.maximum(g, 1)), inf) for r, g in zip(room, growth, strict=True)]
            largest = np.where(np.min(room, axis=0) < 0, -1, options[0] + np.min(steps, axis=0))
            total += int(np.searchsorted(options, largest, side="right").sum())
        return total

    def _linear_axis(self) -> int | None:
        """The axis with the most tile sizes among those that the footprint is linear in; None where there is none.
        Along a reduction it is not: whether that has several tiles decides how many partial results are kept."""
        reduced = {a for s in self.chain.statements for a in s.reductions}
        spatial = [k for k, a in enumerate(self.chain.axes) if a.name not in reduced and self.shape[k] > 1]
        tensors = [x for s in self.chain.statements for x in (*s.loads, s.result)]
        linear = [k for k in spatial if all(x.occurrences(self.chain.axes[k].name) <= 1 for x in tensors)]
        return max(linear, key=lambda k: self.shape[k], default=None)


def all_positions(shape: tuple[int, ...]) -> Iterator[Tiles]:
    """All positions in an array of a shape [position, axis], at most `CHUNK` at a time."""
    for start in range(0, prod(shape), CHUNK):
        flat = np.arange(start, min(start + CHUNK, prod(shape)))
        yield np.stack(np.unravel_index(flat, shape), axis=1).astype(np.int64)


def fits(model: ChainModel, tiles: Tiles) -> NDArray[np.bool_]:
    """Whether candidates pass rule 4."""
    return np.all([f(tiles) <= limit for f, limit in _memory_limits(model)], axis=0)


def _memory_limits(model: ChainModel) -> tuple[tuple[Callable[[Tiles], Values], float], ...]:
    """Functions of tile sizes, and the most that each may be."""
    fast_memory = MAX_FAST_MEMORY_USE * model.resources.fast_bytes
    return (model.footprint, fast_memory), (model.result_footprint, model.resources.result_bytes)


def legal_blocks(chain: Chain, variant: Variant) -> tuple[BlockExpression, ...]:
    """The expressions that rules 1 and 2 and the order of statements leave, in the order of enumeration."""
    distinct = dict.fromkeys(bind_grid(chain, e) for e in variant.enumerate(chain))
    return tuple(
        b for b in distinct if not has_many_partial_tiles(chain, b.body) and order_problem(chain, b.body) is None
    )
