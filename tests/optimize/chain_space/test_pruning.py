"""The pruning rules: counts of the paper, counts against enumeration, and what is left is part of the whole."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.optimize.chain_space.chain_cases import gemm_chain, legal_blocks, products

from tilewright.errors import ScheduleError
from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.block_expression import bind_grid
from tilewright.optimize.chains.enumerate_expressions import expressions_of
from tilewright.optimize.chains.model import UnitResources
from tilewright.optimize.chains.problem import ChainAxis
from tilewright.optimize.chains.pruning import (
    ChainSpace,
    Variant,
    fits,
    tile_options,
    unpadded_options,
)

MACHINE = machine_named("sapphire-rapids").with_cores(2)


def test_waterfall_of_the_paper() -> None:
    """Section III-C: (24 + 2) x 64 x 64 x 32 x 32 candidates for M = N = 1024, K = H = 512.

    The paper counts 5 expressions after rule 1 and 3 after rule 2, without saying which; binding every spatial loop
    that can be bound leaves {n(k,h), nk, kn}, and rule 2 removes kn. Rule 3 removes more than 99 % of the tile sizes.
    """
    counts = ChainSpace.of(gemm_chain(m=1024, n=1024, k=512, h=512), machine_named("h200")).counts()
    assert counts.expressions == (26, 3, 2)
    assert counts.sizes == (64 * 64 * 32 * 32, 7 * 7 * 6 * 6)
    assert counts.waterfall[:4] == (
        ("all", 109051904),
        ("rule 1", 12582912),
        ("rule 2", 8388608),
        ("rule 3", 3528),
    )
    assert 0 < counts.candidates < 3528


def test_chimera_has_deep_expressions_alone() -> None:
    chain = gemm_chain(m=1024, n=1024, k=512, h=512)
    space = ChainSpace.of(chain, MACHINE, Variant.CHIMERA)
    assert space.counts().expressions == (24, 2, 1)
    assert [str(m.block) for m in space.models] == ["m h | nk"]
    assert not space.models[0].eliminates


def test_a_space_of_many_axes_is_counted_without_being_materialised() -> None:
    chain = products({"m": 1024, "k": 768, "n": 3072, "h": 768, "p": 3072, "q": 768})
    counts = ChainSpace.of(chain, MACHINE).counts()
    assert counts.waterfall[0] == ("all", 1014 * 64 * 48 * 192 * 48 * 192 * 48)
    assert 0 < counts.candidates < counts.waterfall[3][1]


@given(st.tuples(*[st.integers(1, 200)] * 4), st.sampled_from((1 << 10, 1 << 13, 1 << 16, 1 << 20)))
def test_counts_of_rule_4_are_those_of_enumeration(sizes: tuple[int, int, int, int], fast_bytes: int) -> None:
    m, n, k, h = sizes
    space = ChainSpace.of(gemm_chain(m=m, n=n, k=k, h=h), MACHINE)
    small = UnitResources(fast_bytes, fast_bytes / 2, 1.0, 1.0, 2)
    space = replace(space, models=tuple(replace(x, resources=small) for x in space.models))
    assert space.counts().candidates == sum(int(fits(x, tiles).sum()) for x, tiles in space.chunks())


@given(st.tuples(*[st.integers(1, 200)] * 4))
def test_what_is_left_is_part_of_the_whole(sizes: tuple[int, int, int, int]) -> None:
    m, n, k, h = sizes
    chain = gemm_chain(m=m, n=n, k=k, h=h)
    space = ChainSpace.of(chain, MACHINE)
    every = {bind_grid(chain, e) for e in expressions_of(chain)}
    assert {x.block for x in space.models} <= every
    assert {x.block for x in ChainSpace.of(chain, MACHINE, Variant.CHIMERA).models} <= {x.block for x in space.models}
    for axis, options in zip(chain.axes, space.options, strict=True):
        assert set(options) <= set(tile_options(axis))
    counts = [count for _, count in space.counts().waterfall]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("names", ["mknh", "mknhp"])
def test_rules_1_and_2_leave_the_legal_expressions(names: str) -> None:
    chain = products(dict.fromkeys(names, 64))
    assert [m.block for m in ChainSpace.of(chain, MACHINE).models] == legal_blocks(chain)


def test_powers_of_two_are_not_padded() -> None:
    assert unpadded_options(ChainAxis("n", 512)) == (16, 32, 64, 128, 256, 512)
    assert len(tile_options(ChainAxis("n", 512))) == 32


def test_other_extents_are_padded_by_less_than_a_twentieth() -> None:
    options = unpadded_options(ChainAxis("n", 1000))
    assert set(options) >= {16, 32, 48, 112, 1000}
    assert all((np.ceil(1000 / t) * t - 1000) / 1000 < 0.05 for t in options)
    assert 96 not in options  # 1056


def test_extents_without_divisors_keep_some_tile_sizes() -> None:
    assert (
        unpadded_options(ChainAxis("n", 197)) == (16, 96, 112, 197) or len(unpadded_options(ChainAxis("n", 197))) >= 3
    )
    assert unpadded_options(ChainAxis("n", 20)) == (16, 20)


def test_batches_and_small_axes_have_one_size() -> None:
    assert tile_options(ChainAxis("b", 12, is_batch=True)) == (1,)
    assert tile_options(ChainAxis("k", 16)) == (16,)
    assert tile_options(ChainAxis("k", 3)) == (3,)
    assert tile_options(ChainAxis("k", 300, is_whole=True)) == (300,)


def test_tiles_of_symbolic_axes_are_never_the_whole_axis() -> None:
    axis = ChainAxis("n", 100, is_symbolic=True, largest=190)
    assert tile_options(axis) == tuple(range(16, 193, 16))
    assert unpadded_options(axis) == (16, 32, 64, 128)


def test_tiles_of_a_block_fit_the_fast_memory() -> None:
    space = ChainSpace.of(gemm_chain(m=1024, n=1024, k=512, h=512), machine_named("h200"))
    model = space.models[0]
    tiles = np.array([[16, 16, 16, 16], [16, 512, 64, 512], [16, 512, 80, 512]])
    operands = [16 * 512 + n * 512 + n * 512 for n in (64, 80)]
    results = [16 * n + 16 * 512 for n in (64, 80)]
    assert model.footprint(tiles)[1:].tolist() == [4 * (a + b) for a, b in zip(operands, results, strict=True)]
    limit = replace(model, resources=replace(model.resources, fast_bytes=4 * 90000 / 1.2))
    assert fits(limit, tiles).tolist() == [True, True, False]


def test_results_of_a_processor_fit_the_stack() -> None:
    space = ChainSpace.of(gemm_chain(m=1024, n=1024, k=128, h=128), MACHINE)
    (deep,) = (m for m in space.models if m.block.grid == ("m", "h"))
    tiles = np.array([[32, 128, 1024, 128], [64, 128, 1024, 128]])
    assert deep.result_footprint(tiles).tolist() == [4 * 32 * (1024 + 128), 4 * 64 * (1024 + 128)]
    assert fits(deep, tiles).tolist() == [True, False]


def test_chains_of_many_axes_are_refused() -> None:
    extents = dict.fromkeys("mknhpqrst", 32)
    chain = products({name: extents[name] for name in "mknhpq"})
    axes = (*chain.axes, *(ChainAxis(name, 32) for name in "rs"))
    with pytest.raises(ScheduleError, match="expected at most 7 axes with several tiles, got 8"):
        ChainSpace.of(replace(chain, axes=axes), MACHINE)
