"""Tile sizes: divisors of small and huge numbers, K-blocks of numbers without divisors."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.optimize.construct.tile_lattice import (
    MAX_FACTOR,
    NO_EDGE,
    NUM_EDGES,
    AxisLattice,
    TilingRules,
    divisors,
    k_block_sizes,
)


@given(st.integers(1, 3000))
def test_divisors_are_complete(n: int) -> None:
    assert divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)


@pytest.mark.parametrize("n", [(1 << 52) - 47, 1 << 52, prod((3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41))])
def test_divisors_of_large_numbers_are_capped(n: int) -> None:
    all_divisors = divisors(n)
    assert all_divisors[0] == 1
    assert all_divisors[-1] == n
    assert list(all_divisors) == sorted(set(all_divisors))
    assert all(n % d == 0 and min(d, n // d) <= MAX_FACTOR for d in all_divisors)


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(1, (1,)), (16, (1, 2, 4, 8, 16)), (13, (1, 2, 4, 7, 13)), (1021, (1, 2, 4, 8, 16, 32, 64, 128, 256, 511, 1021))],
)
def test_k_blocks_without_divisors_are_even(n: int, sizes: tuple[int, ...]) -> None:
    assert k_block_sizes(n) == sizes


@given(st.integers(2, 1 << 20))
def test_k_block_sizes_cover_every_power_of_two(n: int) -> None:
    sizes = k_block_sizes(n)
    for limit in (1 << k for k in range(n.bit_length())):
        assert any(limit < 2 * d <= 2 * limit for d in sizes)


@given(st.integers(1, 200), st.sampled_from((1, 4, 16)), st.booleans(), st.data())
def test_numbers_of_neighbours_are_those_of_the_rules(
    extent: int, multiple: int, whole: bool, data: st.DataObject
) -> None:
    sizes = divisors(extent) if multiple == 1 else tuple(multiple * k for k in (1, 2, 4))
    rules = TilingRules(extent, multiple, sizes, is_l2_whole=whole, is_l1_whole=whole and multiple > 1)
    starts = [data.draw(st.sampled_from(sizes)) for _ in range(2)]
    for start in starts:
        # numbered from another start, the same tilings have other numbers
        lattice = AxisLattice(rules)
        lattice.closest(start, start, start)
        for k in range(200):
            if k == len(lattice.tilings):
                break
            (row,) = lattice.successors(np.array([k])).tolist()
            reached = [None if n == NO_EDGE else lattice.tilings[n] for n in row]
            assert reached == [rules.neighbour(lattice.tilings[k], edge) for edge in range(NUM_EDGES)]
        assert lattice.sizes[: len(lattice.tilings)].tolist() == [list(x) for x in lattice.tilings]
