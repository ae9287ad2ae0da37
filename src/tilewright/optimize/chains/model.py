"""MCFuser's analytical model (section IV-A), for arrays of tile sizes at a time.

    t = (t_mem + t_comp) * (N_block + N_units) / N_block

t_mem is the bytes of all loads and stores over the bandwidth of memory, t_comp the operations of all computations over
the peak rate, N_block the number of blocks and N_units that of the units they run on. A statement is executed once per
iteration of the loops around its place (`place_statements.py`). Tiles are counted with the points that they have: the
last one along an axis may be smaller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from tilewright.machine.model import Level, Machine
from tilewright.optimize.chains.block_expression import BlockExpression
from tilewright.optimize.chains.expression import Path, loop_paths, statement_path
from tilewright.optimize.chains.problem import Chain, ChainStatement, ChainTensor, DimIndex

MAX_RESULT_BYTES = 192 << 10
"""Bytes of the results of statements in a tile on processors: with copies of operands they fit the stack. Larger ones
would take slices of the workspace (`loops/private_memory.py`), whose accesses keep their masks: attention of 512 x 4096
in tiles of 48 x 1024 takes 1.06 times as long with them."""

Tiles = NDArray[np.int64]
"""Tile sizes [candidate, axis], in the order of the chain's axes."""

Values = NDArray[np.float64]
"""One number per candidate."""

Trips = Mapping[str, Values]
"""Iterations of the loop over the tiles of an axis."""


@dataclass(frozen=True, slots=True)
class UnitResources:
    """What the model knows of a machine.

    Attributes:
        fast_bytes: fast memory of a unit: the private cache of a core that is next to the shared ones, the shared
            memory of a multiprocessor.
        result_bytes: how much of it the results of statements may take: on processors `MAX_RESULT_BYTES`.
        gbs: bandwidth of what is behind it, of all units together, in bytes per nanosecond.
        gflops: peak rate of all units together, in operations per nanosecond.
        units: cores, or multiprocessors.
    """

    fast_bytes: float
    result_bytes: float
    gbs: float
    gflops: float
    units: int

    @staticmethod
    def of(machine: Machine, data_bytes: float) -> "UnitResources":
        """The resources of a machine for a kernel whose inputs and outputs have so many bytes: of a processor, they
        come from the nearest shared cache that holds them all."""
        units = machine.cores if machine.gpu is None else machine.gpu.multiprocessors
        gflops = machine.gflops(machine.cores)
        if machine.gpu is not None:
            return UnitResources(machine.gpu.shared_bytes, inf, machine.levels[-1].gbs(units), gflops, units)
        fast = private_level(machine)
        behind = machine.levels[machine.levels.index(fast) + 1 :]
        source = next((x for x in behind[:-1] if x.bytes >= data_bytes), machine.levels[-1])
        return UnitResources(fast.share, MAX_RESULT_BYTES, source.gbs(units), gflops, units)


def private_level(machine: Machine) -> Level:
    """The cache furthest from the core that it does not share; the nearest one where all are shared."""
    private = machine.private_caches
    return private[-1] if private else machine.levels[0]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimates of candidates, one number each.

    Attributes:
        bytes: moved between fast memory and what is behind it.
        flops: operations, with those that are done again.
        blocks: independent blocks.
        footprint: bytes of the tiles of one block.
        nanoseconds: the time.
    """

    bytes: Values
    flops: Values
    blocks: Values
    footprint: Values
    nanoseconds: Values


@dataclass(frozen=True, slots=True)
class ChainModel:
    """The model of one expression of a chain.

    Attributes:
        chain: the chain.
        block: its loops.
        resources: of the machine.
        eliminates: whether loops of one iteration are eliminated before statements are placed; Chimera does not.
    """

    chain: Chain
    block: BlockExpression
    resources: UnitResources
    eliminates: bool = True

    def estimate(self, tiles: Tiles) -> Estimate:
        """The estimates of candidates with these tile sizes."""
        trips = self._trips(tiles)
        executed = self._executed(tiles)
        moved, flops, blocks = self._bytes(trips, executed), self._flops(trips, executed), self._blocks(trips)
        units = self.resources.units
        work = moved / self.resources.gbs + flops / self.resources.gflops
        nanoseconds = work * (blocks + units) / blocks
        return Estimate(moved, flops, blocks, self.footprint(tiles), nanoseconds)

    def times(self, tiles: Tiles) -> Values:
        """Nanoseconds of candidates: where sizes are symbolic, the geometric means over the samples of the chain."""
        if not self.chain.samples:
            return self.estimate(tiles).nanoseconds
        samples = [replace(self, chain=sample).estimate(tiles).nanoseconds for sample in self.chain.samples]
        return np.exp(np.mean(np.log(samples), axis=0))

    def footprint(self, tiles: Tiles) -> Values:
        """Bytes of the tiles that a block keeps at a time: one per tensor, and all partial tiles of a result that is
        summed up in a loop around that over its tiles (rule 4, equation 1 with every live tile counted)."""
        sizes = self._sizes(tiles)
        inputs = dict.fromkeys(x for s in self.chain.statements for x in s.loads)
        return self.result_footprint(tiles) + sum(_tile_points(x, sizes) * x.bytes for x in inputs)

    def result_footprint(self, tiles: Tiles) -> Values:
        """The part of the footprint that the results of statements take."""
        trips, sizes, paths = self._trips(tiles), self._sizes(tiles), loop_paths(self.block.body)
        parts: list[Values] = []
        for s in self.chain.statements:
            live = {a: self._live_extent(s, a, sizes, trips, paths) for a in s.result.axes}
            parts.append(_tile_points(s.result, {**sizes, **live}) * s.result.bytes)
        return sum(parts, np.zeros(len(tiles)))

    def _sizes(self, tiles: Tiles) -> Mapping[str, Values]:
        return {a.name: tiles[:, k].astype(np.float64) for k, a in enumerate(self.chain.axes)}

    def _live_extent(
        self, s: ChainStatement, axis: str, sizes: Mapping[str, Values], trips: Trips, paths: Mapping[str, Path]
    ) -> Values:
        """Points of a result along an axis that are kept at a time."""
        around = paths.get(axis, ())
        summing = [trips[a] > 1 for a in around if a in s.reductions]
        extent = float(self.chain.axis(axis).extent)
        return np.where(np.any(summing, axis=0), extent, sizes[axis]) if summing else sizes[axis]

    def _trips(self, tiles: Tiles) -> Trips:
        return {a.name: np.ceil(a.extent / tiles[:, k]) for k, a in enumerate(self.chain.axes)}

    def _blocks(self, trips: Trips) -> Values:
        return np.prod([trips[a] for a in (*self.chain.batch, *self.block.grid)] or [np.ones(_count(trips))], axis=0)

    def _executed(self, tiles: Tiles) -> Mapping[str, Values]:
        """The share of the tiles along an axis that masks by indices leave, by axis."""
        names, extents = [a.name for a in self.chain.axes], {a.name: a.extent for a in self.chain.axes}
        shares: dict[str, Values] = {}
        for mask in self.chain.masks:
            rows, keys = (tiles[:, names.index(a)].astype(np.float64) for a in (mask.row, mask.key))
            share = mask.executed_share(extents, (rows, keys), self.chain.symbols)
            shares[mask.key] = share * shares.get(mask.key, 1.0)
        return shares

    def _bytes(self, trips: Trips, executed: Mapping[str, Values]) -> Values:
        """Bytes of all loads and stores; a tile that several statements load at one place is loaded once."""
        paths = loop_paths(self.block.body)
        total = np.zeros(_count(trips))
        loaded: set[ChainTensor] = set()
        for s in self.chain.statements:
            around = statement_path(s.axes, paths)
            for tensor in s.loads:
                if tensor not in loaded:
                    loaded.add(tensor)
                    repeats = self._repeats(around, tensor.axes, tensor.axes, trips)
                    share = _share(tensor.axes, executed, trips)
                    total += self._all_points(tensor, trips) * repeats * tensor.bytes * share
            if s.is_output:
                repeats = self._repeats(around, s.result.axes, s.result.axes, trips, s.reductions)
                total += self._all_points(s.result, trips) * repeats * s.result.bytes
        return total

    def _flops(self, trips: Trips, executed: Mapping[str, Values]) -> Values:
        """Operations of all computations, and of rescaling partial results after every tile but the first one."""
        paths = loop_paths(self.block.body)
        total = np.zeros(_count(trips))
        for s in self.chain.statements:
            around = statement_path(s.axes, paths)
            for work in s.work:
                repeats = self._repeats(around, work.axes, work.axes, trips) * _share(work.axes, executed, trips)
                total += self._extents(work.axes) * repeats * work.flops
            if s.online and s.reductions:
                repeats = self._repeats(around, s.result.axes, s.axes, trips)
                first = np.prod([trips[a] for a in s.reductions], axis=0)
                total += self._extents(s.result.axes) * repeats * (first > 1)
        return total

    def _repeats(
        self,
        around: Path,
        own: frozenset[str],
        placing: frozenset[str],
        trips: Trips,
        finishing: frozenset[str] = frozenset(),
    ) -> Values:
        """How many times the tiles of a statement are gone through: iterations of the loops around it that do not index
        it.

        Args:
            around: axes of the loops around its computation, in a block.
            own: axes of the tiles.
            placing: axes of the loops with a scope edge to it, the innermost live one of which it is placed in.
            trips: iterations of loops.
            finishing: axes of loops that it has to be outside of.
        """
        count = _count(trips)
        repeats, is_inside = np.ones(count), np.zeros(count, dtype=bool)
        for axis in reversed(around):
            is_live = trips[axis] > 1 if self.eliminates else np.ones(count, dtype=bool)
            if axis in finishing:
                repeats, is_inside = np.where(is_live, 1.0, repeats), is_inside & ~is_live
                continue
            if axis in placing:
                is_inside = is_inside | is_live
            if axis not in own:
                repeats = repeats * np.where(is_inside, trips[axis], 1.0)
        for axis in (*self.chain.batch, *self.block.grid):
            if axis not in own:
                repeats = repeats * trips[axis]
        return repeats

    def _extents(self, axes: frozenset[str]) -> float:
        return float(np.prod([self.chain.axis(a).extent for a in axes]))

    def _all_points(self, tensor: ChainTensor, trips: Trips) -> Values:
        """Points of all tiles of a tensor together; where windows overlap, the overlap counts for each."""
        total = np.ones(_count(trips))
        for dim in tensor.dims:
            total = total * _sum_over_tiles(dim, self.chain, trips)
        return total


def _share(axes: frozenset[str], executed: Mapping[str, Values], trips: Trips) -> Values:
    """The share of executions along some axes that masks leave."""
    return np.prod([np.ones(_count(trips)), *(share for a, share in executed.items() if a in axes)], axis=0)


def _count(trips: Trips) -> int:
    return len(next(iter(trips.values())))


def _sum_over_tiles(dim: DimIndex, chain: Chain, trips: Trips) -> Values:
    """The points of a dimension, summed over all tiles: a tile of t_a points along each axis a of its index has
    1 + sum of c_a (t_a - 1) of them."""
    tiles = np.prod([trips[a] for a, _ in dim], axis=0) if dim else np.ones(_count(trips))
    total = tiles
    for axis, coefficient in dim:
        total = total + coefficient * (chain.axis(axis).extent - trips[axis]) * tiles / trips[axis]
    return total


def _tile_points(tensor: ChainTensor, sizes: Mapping[str, Values]) -> Values:
    """Points of one tile of a tensor."""
    points = np.ones(_count(sizes))
    for dim in tensor.dims:
        extent = np.ones(len(points))
        for axis, coefficient in dim:
            extent = extent + coefficient * (sizes[axis] - 1)
        points = points * extent
    return points


def tiles_of(chain: Chain, rows: Sequence[Mapping[str, int]]) -> Tiles:
    """Tile sizes by axis as an array."""
    return np.array([[row[a.name] for a in chain.axes] for row in rows], dtype=np.int64).reshape(-1, len(chain.axes))
