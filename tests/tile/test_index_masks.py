"""Masks by indices: which are found, and the share of tiles that they leave."""

import numpy as np
import pytest
from tests.optimize.chains import PAST, WINDOW, Chain

import tilewright as tw
from tilewright.tile.index_masks import SKIPPED_KEYS, IndexMask, index_masks

ROWS, KEYS = 70, 80


def masks_of(mask: str) -> tuple[IndexMask, ...]:
    """The masks of an attention."""
    return index_masks(tw.create_schedule(Chain((2,), ROWS, (8, KEYS, 24), softmax=True, mask=mask).tensor()).func)


@pytest.mark.parametrize("mask", ["none", "keys", "full", "boolean"])
def test_masks_of_data_are_not_found(mask: str) -> None:
    assert masks_of(mask) == ()


@pytest.mark.parametrize("tile", [(1, 1), (16, 16), (7, 32), (70, 80)])
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_the_share_of_tiles_with_a_score(mask: str, tile: tuple[int, int]) -> None:
    (index_mask,) = masks_of(mask)
    rows, keys = np.arange(ROWS)[:, None], np.arange(KEYS)[None, :]
    allowed = (keys <= rows + PAST) & ((keys >= rows + PAST - WINDOW) | (mask == "causal"))
    live = [
        allowed[r : r + tile[0], k : k + tile[1]].any()
        for r in range(0, ROWS, tile[0])
        for k in range(0, KEYS, tile[1])
    ]
    share = float(np.mean(live))
    left = min(1.0, 0.5 / tile[0] + SKIPPED_KEYS / tile[1])
    sizes = np.array([tile[0]], np.float64), np.array([tile[1]], np.float64)
    actual = index_mask.executed_share({index_mask.row: ROWS, index_mask.key: KEYS}, sizes, {})
    # a last tile that is smaller counts as a whole one, and rows are sampled
    np.testing.assert_allclose(actual, share + (1 - share) * left, atol=0.06)
