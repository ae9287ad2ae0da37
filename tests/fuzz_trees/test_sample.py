"""A few random tile trees; `make fuzz-trees` checks hundreds."""

import pytest
from tests.fuzz_trees.check import check, is_fused

from tilewright.loops import private_memory

COUNT = 24


@pytest.mark.parametrize("part", range(4))
def test_random_trees_are_refused_or_compute_the_same(part: int) -> None:
    outcomes = [check(seed) for seed in range(part * COUNT // 4, (part + 1) * COUNT // 4)]
    trees = [o.tree for o in outcomes if o.tree is not None]
    assert len(trees) >= COUNT // 8
    assert any(map(is_fused, trees))


@pytest.mark.parametrize("part", range(2))
def test_random_trees_whose_private_buffers_exceed_the_stack(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_memory, "MAX_STACK_BYTES", 0)
    outcomes = [check(seed) for seed in range(100 + part * COUNT // 4, 100 + (part + 1) * COUNT // 4)]
    assert any(o.slices for o in outcomes)
