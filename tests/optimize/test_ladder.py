"""Lengths of tiles and chunks: divisors of any number in no time, chunks of numbers that have none."""

from math import prod
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.optimize.construct.tile_lattice import MAX_FACTOR, divisors, k_block_sizes


@given(st.integers(1, 3000))
def test_divisors_are_all(n: int) -> None:
    assert divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)


@pytest.mark.parametrize("n", [(1 << 52) - 47, 1 << 52, prod((3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41))])
def test_divisors_of_large_numbers_take_no_time(n: int) -> None:
    start = process_time()
    found = divisors(n)
    assert process_time() - start < 0.1
    assert found[0] == 1
    assert found[-1] == n
    assert list(found) == sorted(set(found))
    assert all(n % d == 0 and min(d, n // d) <= MAX_FACTOR for d in found)


@pytest.mark.parametrize(
    ("n", "found"),
    [(1, (1,)), (16, (1, 2, 4, 8, 16)), (13, (1, 2, 4, 7, 13)), (1021, (1, 2, 4, 8, 16, 32, 64, 128, 256, 511, 1021))],
)
def test_lengths_without_divisors_are_even(n: int, found: tuple[int, ...]) -> None:
    assert k_block_sizes(n) == found


@given(st.integers(2, 1 << 20))
def test_there_is_a_length_up_to_every_power_of_two(n: int) -> None:
    found = k_block_sizes(n)
    for most in (1 << k for k in range(n.bit_length())):
        assert any(most < 2 * d <= 2 * most for d in found)
