"""Estimated search costs: how many programs the reuse of a source's program measures, before that program is known.

The mean over sampled sizes of the source's program, where for every block size of the target all micro-tile counts and
all chunk counts in their ranges are measured, then the unroll factors and vector lengths (ETO, Section 6.1).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from tilewright.optimize.construct.tile_lattice import divisors
from tilewright.optimize.reuse.block_shapes import block_shapes
from tilewright.optimize.reuse.loop_vector import LoopVector
from tilewright.optimize.reuse.reuse_ranges import FeatureRange, ReuseRanges, choices_in

MAX_THREADS = 1024
"""Threads of a GPU's block, all of them fewer."""


class SearchFeature(StrEnum):
    """What the hierarchical search varies.

    Attributes:
        BLOCKS: number of parallel tasks.
        THREADS: number of micro-tiles.
        MEMORY: number of chunks of the reduction.
        UNROLLING: unroll factors.
        VECTOR_LENGTHS: vector lengths of the inputs.
    """

    BLOCKS = "blocks"
    THREADS = "threads"
    MEMORY = "memory"
    UNROLLING = "unrolling"
    VECTOR_LENGTHS = "vectors"


ALL_FEATURES = frozenset(SearchFeature)


@dataclass(frozen=True, slots=True)
class SearchSize:
    """How much a hierarchical search measures apart from the operators.

    Attributes:
        features: those that are varied; the others are frozen, as those of other sketches than multi-level tiling.
        unroll_factors: number of unroll factors that are tried in addition.
        vector_lengths: number of vector lengths that are tried in addition, per input.
        max_threads: micro-tiles of a parallel task are fewer than this; None without a limit.
        samples: how many sizes of the source's program are drawn.
        max_blocks: numbers of parallel tasks that are tried at most; None without a limit.
        max_counts: numbers of micro-tiles, and of chunks, that are tried at most per number of tasks.
    """

    features: frozenset[SearchFeature] = ALL_FEATURES
    unroll_factors: int = 4
    vector_lengths: int = 2
    max_threads: int | None = MAX_THREADS
    samples: int = 10
    max_blocks: int | None = None
    max_counts: int | None = None

    def frozen(self, features: Collection[SearchFeature]) -> "SearchSize":
        """The same search that varies these features alone."""
        return replace(self, features=frozenset(features))


GPU_SEARCH = SearchSize()
"""The search of the paper, on GPUs."""

MAX_BLOCKS, MAX_COUNTS = 4, 4
"""On processors: numbers of parallel tasks tried at most, and for each numbers of micro-tiles and of chunks."""

PROCESSOR_SEARCH = SearchSize(
    unroll_factors=2, vector_lengths=0, max_threads=None, max_blocks=MAX_BLOCKS, max_counts=MAX_COUNTS
)
"""The search of `reuse_search.py`, on processors."""

CROSS_THREAD_REDUCTION = GPU_SEARCH.frozen([SearchFeature.THREADS])
"""The search for sketches that reduce across threads: one block, its reduction is not chunked."""

TWO_LEVEL_TILES = GPU_SEARCH.frozen([SearchFeature.BLOCKS, SearchFeature.THREADS])
"""The search for sketches that share out fused loops: nothing is staged in chunks."""


def estimated_search_cost(
    target: LoopVector, source: LoopVector, sizes: Collection[SearchSize] = (GPU_SEARCH,)
) -> float:
    """The estimated number of programs that are measured for a target that reuses a source's program.

    Args:
        target, source: a reuse pair.
        sizes: of the searches for all sketches of which one may turn out to be the source's; the largest counts, until
            it is known which one.
    """
    return max(_estimate(target, source, size) for size in sizes)


@dataclass(frozen=True, slots=True)
class SourceSizes:
    """The sizes of a source's program.

    Attributes:
        block: results per parallel task.
        threads: micro-tiles per parallel task.
        chunks: chunks of the reduction.
    """

    block: int
    threads: int
    chunks: int


def _estimate(target: LoopVector, source: LoopVector, size: SearchSize) -> float:
    """The mean over sampled programs of the source."""
    samples = _sampled_sizes(source, size.samples, size.max_threads)
    return sum(_measurements(target, source, s, size) for s in samples) / len(samples)


@lru_cache(maxsize=4096)
def _sampled_sizes(source: LoopVector, samples: int, max_threads: int | None) -> tuple[SourceSizes, ...]:
    """Sizes of programs of a source: block sizes drawn by their number of divisors, micro-tiles and chunks uniformly.
    The same operator gives the same draws."""
    rng = np.random.default_rng(source.extents)
    blocks = np.array(divisors(source.spatial_points), np.int64)
    weights = np.array([len(divisors(int(s))) for s in blocks], np.float64)
    chunks = divisors(source.k_block_extent)
    sizes: list[SourceSizes] = []
    for block in rng.choice(blocks, samples, p=weights / weights.sum()):
        threads = _thread_counts(int(block), max_threads)
        sizes.append(
            SourceSizes(
                int(block), threads[int(rng.integers(len(threads)))], chunks[int(rng.integers(len(chunks)))]
            )
        )
    return tuple(sizes)


def _measurements(target: LoopVector, source: LoopVector, sizes: SourceSizes, size: SearchSize) -> int:
    """The programs that are measured where the source's program has these sizes."""
    ranges = ReuseRanges.of(target, source)
    targets, sources = block_shapes(target), block_shapes(source)
    varied = size.features
    source_blocks = source.spatial_points / sizes.block
    blocks = block_choices(target, source, sizes.block) if SearchFeature.BLOCKS in varied else (sizes.block,)
    blocks = blocks[: size.max_blocks]
    total = 0
    for block in blocks:
        blocks_ratio = source_blocks / (target.spatial_points / block)
        threads = _thread_counts(block, size.max_threads)
        total += len(choices_in(threads, ranges.threads.scaled(blocks_ratio * sizes.threads))[: size.max_counts])
        if SearchFeature.MEMORY in varied and block in targets:
            loads = FeatureRange(1 / ranges.memory.highest, 1 / ranges.memory.lowest)
            load_ratio = targets[block].elements / sources[sizes.block].elements
            loads = loads.scaled(load_ratio * sizes.chunks / blocks_ratio)
            total += len(choices_in(divisors(target.k_block_extent), loads)[: size.max_counts]) - 1
    lengths = size.vector_lengths * len(target.kind.accesses) * (SearchFeature.VECTOR_LENGTHS in varied)
    return total + len(blocks) * (size.unroll_factors * (SearchFeature.UNROLLING in varied) + lengths)


def block_choices(target: LoopVector, source: LoopVector, block: int) -> tuple[int, ...]:
    """The block sizes of a target that are tried where a source's program has blocks of some size: descending where
    the target is the larger operator, else ascending. Where only spatial extents differ, one smaller size more."""
    blocks = ReuseRanges.of(target, source).blocks
    source_blocks = source.spatial_points / block
    ends = [target.spatial_points / (source_blocks * end) for end in (blocks.lowest, blocks.highest)]
    options = divisors(target.spatial_points)
    choices = choices_in(options, FeatureRange.between(*ends))
    if source.reduction_points == target.reduction_points and (position := options.index(choices[0])) > 0:
        choices = (options[position - 1], *choices)
    return tuple(reversed(choices)) if target.points > source.points else choices


@lru_cache(maxsize=1 << 16)
def _thread_counts(block: int, limit: int | None) -> tuple[int, ...]:
    return divisors(block) if limit is None else tuple(d for d in divisors(block) if d < limit)
