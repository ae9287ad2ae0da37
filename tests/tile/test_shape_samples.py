"""Sizes that nobody declared, of which a model tells how large they are: pictures that it divides into maps."""

from hypothesis import given
from hypothesis import strategies as st

from tilewright.expr.define import MAX_SIZE
from tilewright.expr.nodes import Expr, Symbol
from tilewright.tile.shape_samples import (
    DEFAULT_MAX_SIZE,
    GRID_STEPS,
    MAX_DOWNSAMPLING,
    SMALLEST_MAP_SIZES,
    SMALLEST_SIZES,
    ShapeSamples,
    ranges_from_divisions,
    used_by,
)

H, W = Symbol("h", 1, MAX_SIZE), Symbol("w", 1, MAX_SIZE)
DECLARED = Symbol("d", 1, 64)


def halved(size: Expr, times: int) -> Expr:
    """What convolutions of stride 2 leave."""
    for _ in range(times):
        size = (size + 1) // 2
    return size


def test_ranges_of_images_follow_from_the_largest_divisor() -> None:
    ranges = ranges_from_divisions((H, W, DECLARED), [halved(H, k) for k in range(6)] + [halved(W, 3), DECLARED // 4])
    assert ranges == {H: (128, 1024), W: (32, DEFAULT_MAX_SIZE)}


def test_nested_divisions_multiply() -> None:
    assert ranges_from_divisions((H,), [((H + 3) // 4 * 2 + 5) // 8])[H] == (
        SMALLEST_MAP_SIZES[0] * 16,
        SMALLEST_MAP_SIZES[1] * 16,
    )


def test_undivided_sizes_and_products_keep_their_ranges() -> None:
    assert ranges_from_divisions((H, W), [H, H * 2 + 1, H * W // 64, (H + W) // 8]) == {}


def test_divisors_are_limited() -> None:
    assert ranges_from_divisions((H,), [H // (1 << 20)])[H] == (
        SMALLEST_MAP_SIZES[0] * MAX_DOWNSAMPLING,
        SMALLEST_MAP_SIZES[1] * MAX_DOWNSAMPLING,
    )


def test_declared_minima_are_kept() -> None:
    large = Symbol("h", 5000, MAX_SIZE)
    assert ranges_from_divisions((large,), [large // 2])[large] == (5000, 5000)


def test_feature_map_sizes_follow_from_the_image() -> None:
    rows, columns = Symbol("n0", 1, MAX_SIZE // 8), Symbol("n1", 1, MAX_SIZE // 8)
    values = {rows: halved(H, 3), columns: halved(W, 3)}
    ranges = ranges_from_divisions((H, W), [halved(H, 5), halved(W, 5)])
    samples = ShapeSamples.of(used_by((H, W, DECLARED), values.values()), ranges).mapped(values)
    assert tuple(samples.representative.values()) == (46, 46)
    assert [tuple(s.values()) for s in samples.shapes] == [(18, 18), (41, 41), (96, 96), (18, 96), (96, 41)]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 200))
def test_mapped_sizes_are_at_least_their_minima(first: int, second: int, taken: int) -> None:
    symbol = Symbol("n0", 3, MAX_SIZE)
    divided = (halved(H, first) - taken) // (1 << second)
    samples = ShapeSamples.of((H,), ranges_from_divisions((H,), [divided])).mapped({symbol: divided, H: H})
    for sizes in (samples.representative, *samples.shapes):
        assert sizes[symbol] >= 3
        assert sizes[H] >= 1
    assert len({tuple(s.items()) for s in samples.shapes}) == len(samples.shapes)


@given(st.integers(1, 40), st.integers(0, 2000))
def test_the_grid_has_all_small_sizes_of_a_symbol_and_both_ends(low: int, further: int) -> None:
    size = Symbol("d", low, low + further)
    grid = {sizes[size] for sizes in ShapeSamples.of((size,)).grid}
    assert grid >= set(range(low, min(low + further, low + SMALLEST_SIZES - 1) + 1))
    assert max(grid) == low + further
    assert min(grid) == low
    assert len(grid) <= SMALLEST_SIZES + GRID_STEPS
