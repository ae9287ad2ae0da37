"""The search: deterministic, near the best of the whole space, and by measured times where there are any."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from tests.optimize.chain_space.chain_cases import gemm_chain, products

from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.expression import ChainTiling, axes_of
from tilewright.optimize.chains.model import UnitResources
from tilewright.optimize.chains.pruning import ChainSpace, Variant
from tilewright.optimize.chains.search import MODEL_ALONE, SearchSettings, search

MACHINE = machine_named("sapphire-rapids").with_cores(2)
WHOLE = SearchSettings(population=1 << 20)
CHAIN = products({"m": 1024, "k": 768, "n": 1536, "h": 512, "p": 384})


def test_the_search_is_deterministic() -> None:
    space = ChainSpace.of(CHAIN, MACHINE)
    assert search(space, SearchSettings(seed=3)) == search(space, SearchSettings(seed=3))


@pytest.mark.parametrize("machine", ["sapphire-rapids", "zen5", "h200"])
@pytest.mark.parametrize("variant", Variant)
def test_the_search_is_near_the_best_of_the_space(machine: str, variant: Variant) -> None:
    space = ChainSpace.of(CHAIN, machine_named(machine), variant)
    every = search(space, WHOLE)
    assert every.generations == 1
    for seed in range(3):
        result = search(space, SearchSettings(seed=seed))
        assert result.best is not None
        assert every.best is not None
        assert every.best.estimate <= result.best.estimate <= 1.15 * every.best.estimate
        assert result.estimated < every.estimated
    alone = search(space, MODEL_ALONE).best
    assert alone is not None
    assert alone.estimate <= 1.01 * every.best.estimate


def test_times_come_from_the_measurer() -> None:
    """The measured time favours small tiles along n, which the model does not."""
    space = ChainSpace.of(CHAIN, MACHINE)
    measured: list[ChainTiling] = []

    def measure(tilings: Sequence[ChainTiling]) -> list[float | None]:
        measured.extend(tilings)
        return [float(t.tile("n")) for t in tilings]

    result = search(space, SearchSettings(), measure)
    assert result.best is not None
    assert result.best.nanoseconds == min(t.tile("n") for t in measured)
    assert len(measured) == len(set(measured)) == result.measured
    assert [x.nanoseconds for x in result.ranked] == sorted(x.nanoseconds for x in result.ranked)


def test_tilings_that_cannot_be_built_are_passed_over() -> None:
    space = ChainSpace.of(CHAIN, MACHINE)
    flat = search(space, SearchSettings(), lambda tilings: [None for _ in tilings])
    assert flat.best is None
    assert flat.generations == 100

    best = search(space).best
    assert best is not None

    def all_but_the_best(tilings: Sequence[ChainTiling]) -> list[float | None]:
        return [None if t.tile("m") == best.tiling.tile("m") else 1.0 for t in tilings]

    result = search(space, SearchSettings(), all_but_the_best)
    assert result.best is not None
    assert result.best.tiling.tile("m") != best.tiling.tile("m")


def test_the_search_ends_when_the_best_time_settles() -> None:
    space = ChainSpace.of(CHAIN, MACHINE)
    times = iter(1000 * 0.9**k for k in range(20))
    slower: list[float] = []

    def improving(tilings: Sequence[ChainTiling]) -> list[float | None]:
        slower.append(max(next(times), 500.0))
        return [slower[-1]] * len(tilings)

    result = search(space, SearchSettings(epsilon=0.02), improving)
    assert [round(t) for t in slower] == [1000, 900, 810, 729, 656, 590, 531, *[500] * 4]
    assert result.generations == len(slower)


def test_the_paper_ends_after_one_generation_without_a_change() -> None:
    space = ChainSpace.of(CHAIN, MACHINE)
    assert search(space, SearchSettings(patience=1), lambda tilings: [1.0] * len(tilings)).generations == 2


def test_eliminated_loops_are_not_in_the_tiling() -> None:
    space = ChainSpace.of(gemm_chain(m=512, n=256, k=64, h=64), MACHINE)
    for x in search(space, WHOLE).ranked:
        extents = {a.name: a.extent for a in space.chain.axes}
        assert set(axes_of(x.tiling.expression)) == {a for a, t in x.tiling.tiles if t < extents[a]}
    kept = search(ChainSpace.of(space.chain, MACHINE, Variant.CHIMERA), WHOLE).best
    assert kept is not None
    assert sorted(axes_of(kept.tiling.expression)) == ["h", "k", "m", "n"]


def test_nothing_fits_a_tiny_memory() -> None:
    space = ChainSpace.of(CHAIN, MACHINE)
    tiny = UnitResources(100, inf, 1.0, 1.0, 2)
    space = replace(space, models=tuple(replace(m, resources=tiny) for m in space.models))
    assert search(space).best is None


def test_fitting_candidates_are_found_where_they_are_rare() -> None:
    space = ChainSpace.of(CHAIN, MACHINE)
    small = UnitResources(6500, inf, 1.0, 1.0, 2)
    space = replace(space, models=tuple(replace(m, resources=small) for m in space.models))
    result = search(space, SearchSettings(population=4))
    assert result.best is not None
