"""A few random chains of convolutions; `make fuzz-conv-chains` checks hundreds."""

import pytest
from tests.fuzz_conv_chains.check import check

COUNT = 12


@pytest.mark.parametrize("part", range(2))
def test_random_chains_are_refused_or_compute_the_same(part: int) -> None:
    outcomes = [check(seed) for seed in range(part * COUNT // 2, (part + 1) * COUNT // 2)]
    assert sum(o.tiling is not None for o in outcomes) >= COUNT // 4
