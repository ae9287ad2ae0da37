"""The analytical model: volumes against executed loop nests and by hand, footprints, and the formula of the time."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from tests.optimize.chain_space.chain_cases import (
    execute_placed,
    expression,
    gemm_chain,
    loaded_bytes_with_one_tile_kept,
    points,
    products,
    tensor,
    tiled_chains,
)

from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.block_expression import BlockExpression
from tilewright.optimize.chains.model import ChainModel, UnitResources, tiles_of
from tilewright.optimize.chains.problem import Chain, ChainAxis

UNITS = UnitResources(fast_bytes=1 << 20, result_bytes=inf, gbs=10.0, gflops=100.0, units=4)
MHNK = BlockExpression(("m", "h"), expression("nk"))
FLAT = BlockExpression(("m",), expression("n(k,h)"))
TiledChain = tuple[Chain, BlockExpression, dict[str, int]]


def _dead(chain: Chain, tiles: dict[str, int]) -> list[str]:
    return [a.name for a in chain.axes if tiles[a.name] >= a.extent]


@given(tiled_chains())
def test_volumes_are_those_of_the_executed_statements(case: TiledChain) -> None:
    """With eliminated loops, and with loops of one iteration that keep their statements."""
    chain, block, tiles = case
    for eliminates in (True, False):
        estimate = ChainModel(chain, block, UNITS, eliminates).estimate(tiles_of(chain, [tiles]))
        dead = _dead(chain, tiles) if eliminates else []
        assert (estimate.bytes[0], estimate.flops[0]) == execute_placed(chain, block, tiles, dead)


@given(tiled_chains())
def test_loaded_bytes_are_those_of_one_kept_tile_per_input(case: TiledChain) -> None:
    """What hoisting and elimination save is what a nest without hoisting saves that keeps the last tile it loaded."""
    chain, block, tiles = case
    output = chain.statements[-1].result
    stored = output.bytes * points(chain, output, {})
    estimate = ChainModel(chain, block, UNITS).estimate(tiles_of(chain, [tiles]))
    repeats = np.prod([np.ceil(chain.axis(a).extent / tiles[a]) for a in block.grid if a not in output.axes])
    loaded = estimate.bytes[0] - stored * repeats
    assert loaded == loaded_bytes_with_one_tile_kept(chain, block, tiles)


@given(tiled_chains())
def test_elimination_never_moves_or_computes_more(case: TiledChain) -> None:
    chain, block, tiles = case
    eliminated, kept = (
        ChainModel(chain, block, UNITS, eliminates).estimate(tiles_of(chain, [tiles])) for eliminates in (True, False)
    )
    assert eliminated.bytes[0] <= kept.bytes[0]
    assert eliminated.flops[0] <= kept.flops[0]


@given(tiled_chains())
def test_an_array_of_candidates_has_the_estimates_of_each(case: TiledChain) -> None:
    chain, block, tiles = case
    whole = {a.name: a.extent for a in chain.axes}
    model = ChainModel(chain, block, UNITS)
    both, one = model.estimate(tiles_of(chain, [whole, tiles])), model.estimate(tiles_of(chain, [tiles]))
    for name in ("bytes", "flops", "blocks", "footprint", "nanoseconds"):
        assert getattr(both, name)[1] == getattr(one, name)[0]


def test_volumes_of_the_paper_by_hand() -> None:
    """Fig. 4: A is loaded h n times with k in tiles, and once with k in one; B m times each way."""
    chain = gemm_chain(m=1024, n=1024, k=512, h=512)
    model = ChainModel(chain, MHNK, UNITS)
    rows = {"m": 128, "n": 64, "h": 128}
    tiles = tiles_of(chain, [rows | {"k": 64}, rows | {"k": 512}])
    m, n, h = 8, 16, 4
    a, b, d, e = (4 * x for x in (1024 * 512, 512 * 1024, 1024 * 512, 1024 * 512))
    assert model.estimate(tiles).bytes.tolist() == [
        a * h * n + b * m * h + d * m + e,
        a * h + b * m * h + d * m + e,
    ]
    first, second = 2 * 1024 * 512 * 1024, 2 * 1024 * 1024 * 512
    assert model.estimate(tiles).flops.tolist() == [first * h + second] * 2
    assert model.estimate(tiles).blocks.tolist() == [m * h] * 2


def test_a_flat_expression_computes_nothing_twice() -> None:
    chain = gemm_chain(m=1024, n=1024, k=512, h=512)
    tiles = tiles_of(chain, [{"m": 128, "n": 64, "k": 64, "h": 128}])
    estimate = ChainModel(chain, FLAT, UNITS).estimate(tiles)
    assert estimate.flops[0] == 2 * (1024 * 512 * 1024 + 1024 * 1024 * 512)
    m, n = 8, 16
    assert estimate.bytes[0] == 4 * 512 * 1024 * (n + m + m + 1)
    assert estimate.blocks[0] == m


def test_last_tiles_count_the_points_that_they_have() -> None:
    chain = gemm_chain(m=100, n=100, k=100, h=100)
    tiles = tiles_of(chain, [{"m": 48, "n": 48, "k": 100, "h": 100}])
    assert ChainModel(chain, FLAT, UNITS).estimate(tiles).bytes[0] == 4 * 100 * 100 * (1 + 3 + 3 + 1)


def test_footprint_counts_one_tile_per_tensor_and_all_partial_results() -> None:
    """Equation 1; in n(k,h) the partial sums of all tiles along h live while n goes on."""
    chain = gemm_chain(m=1024, n=1024, k=512, h=512)
    rows = {"m": 32, "n": 64, "k": 16, "h": 128}
    tiles = tiles_of(chain, [rows, rows | {"n": 1024}])
    inputs = np.array([32 * 16 + 16 * 64 + 64 * 128, 32 * 16 + 16 * 1024 + 1024 * 128])
    product = np.array([32 * 64, 32 * 1024])
    assert ChainModel(chain, MHNK, UNITS).footprint(tiles).tolist() == (4 * (inputs + product + 32 * 128)).tolist()
    partial = np.array([32 * 512, 32 * 128])
    assert ChainModel(chain, FLAT, UNITS).footprint(tiles).tolist() == (4 * (inputs + product + partial)).tolist()


def test_bytes_of_an_element_count() -> None:
    chain = gemm_chain(m=64, n=64, k=64, h=64)
    half = replace(
        chain,
        statements=tuple(
            replace(s, loads=tuple(replace(x, bytes=2) for x in s.loads), result=replace(s.result, bytes=2))
            for s in chain.statements
        ),
    )
    tiles = tiles_of(chain, [{"m": 16, "n": 16, "k": 16, "h": 16}])
    for value in ("bytes", "footprint"):
        full, halved = (getattr(ChainModel(c, FLAT, UNITS).estimate(tiles), value)[0] for c in (chain, half))
        assert full == 2 * halved


def test_time_is_that_of_equation_2() -> None:
    chain = gemm_chain(m=64, n=64, k=64, h=64)
    tiles = tiles_of(chain, [{"m": 16, "n": 16, "k": 16, "h": 16}])
    x = ChainModel(chain, MHNK, UNITS).estimate(tiles)
    assert x.blocks[0] == 16
    assert x.nanoseconds[0] == pytest.approx((x.bytes[0] / 10.0 + x.flops[0] / 100.0) * (16 + 4) / 16)


def test_batches_are_blocks_that_share_nothing_but_what_they_do_not_index() -> None:
    axes = (ChainAxis("b", 8, is_batch=True), *gemm_chain(m=64, n=64, k=64, h=64).axes)
    c, e = gemm_chain(m=64, n=64, k=64, h=64).statements
    batch = frozenset("b")
    first = replace(c, axes=c.axes | batch, loads=(tensor("A", "b", "m", "k"), tensor("B", "b", "k", "n")))
    second = replace(e, axes=e.axes | batch, loads=(tensor("D", "n", "h"),), result=tensor("E", "b", "m", "h"))
    chain = Chain(axes, (replace(first, result=tensor("C", "b", "m", "n")), second))
    tiles = tiles_of(chain, [{"b": 1, "m": 64, "n": 64, "k": 64, "h": 64}])
    estimate = ChainModel(chain, FLAT, UNITS).estimate(tiles)
    assert estimate.blocks[0] == 8
    assert estimate.bytes[0] == 4 * 64 * 64 * 8 * 4


def test_windows_load_their_overlap_for_every_tile() -> None:
    chain = products({"m": 8, "k": 3, "n": 4, "h": 4}, granule=1)
    c, e = chain.statements
    window = replace(tensor("A", "m"), dims=((("m", 1), ("k", 1)),))
    chain = replace(chain, statements=(replace(c, loads=(window, c.loads[1])), e))
    model = ChainModel(chain, FLAT, UNITS)
    tiles = tiles_of(chain, [{"m": m, "n": 4, "k": 3, "h": 4} for m in (8, 2)])
    others = [4 * (3 * 4 * t + 4 * 4 * t + 8 * 4) for t in (1, 4)]
    assert (model.estimate(tiles).bytes - others).tolist() == [4 * (8 + 2), 4 * 4 * (2 + 2)]


def test_processors_have_private_caches_and_gpus_shared_memory() -> None:
    core = UnitResources.of(machine_named("sapphire-rapids").with_cores(2), 1e6)
    machine = machine_named("sapphire-rapids")
    assert (core.fast_bytes, core.units) == (machine.level("L2").share, 2)
    assert core.gbs == machine.level("L3").gbs(2)
    assert UnitResources.of(machine, 1e12).gbs == machine.level("memory").gbs(machine.cores)
    gpu = machine_named("h200")
    assert gpu.gpu is not None
    resources = UnitResources.of(gpu, 1e6)
    assert (resources.fast_bytes, resources.units) == (gpu.gpu.shared_bytes, gpu.gpu.multiprocessors)
    assert resources.gbs == gpu.level("memory").gbs(132)


def test_symbolic_sizes_count_as_the_mean_over_their_samples() -> None:
    chain = gemm_chain(m=64, n=64, k=64, h=64)
    samples = tuple(gemm_chain(m=m, n=64, k=64, h=64) for m in (16, 256))
    model = ChainModel(replace(chain, samples=samples), FLAT, UNITS)
    tiles = tiles_of(chain, [{"m": 16, "n": 64, "k": 64, "h": 64}])
    times = [replace(model, chain=s).estimate(tiles).nanoseconds[0] for s in samples]
    assert model.times(tiles)[0] == pytest.approx(np.sqrt(times[0] * times[1]))
