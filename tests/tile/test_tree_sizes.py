"""Sizes of tile trees: a sketch with other sizes is the tree with these, and paths name the place of every size."""

import pytest
from tests.tile.spaces import drawn
from tests.tile.trees import cases

from tilewright.errors import ScheduleError
from tilewright.tile.lower import tile_program_tree
from tilewright.tile.tree import Loop, Pack, Partition, RFactor, TileTree, walk_tree
from tilewright.tile.tree_sizes import LoopStep, statement_paths, tree_sizes, with_sizes


def some_trees() -> list[TileTree]:
    """Those written by hand, and those of random programs, with partitions and staging in parts."""
    programs = [d for seed in range(12) for d in drawn(seed, "x86-64-v4")]
    return [c.tree for c in cases().values()] + [
        tile_program_tree(d.tiled, d.task.func, d.parallel, d.cores) for d in programs
    ]


TREES = some_trees()


def test_a_tree_with_its_own_sizes_is_itself() -> None:
    assert any(isinstance(node, Partition) for tree in TREES for node, _ in walk_tree(tree.body))
    for tree in TREES:
        assert with_sizes(tree, tree_sizes(tree)) == tree


def test_every_size_is_replaced() -> None:
    for tree in TREES:
        sizes = tuple(range(1000, 1000 + len(tree_sizes(tree))))
        changed = with_sizes(tree, sizes)
        assert tree_sizes(changed) == sizes
        assert with_sizes(changed, tree_sizes(tree)) == tree


def test_staging_comes_first_then_loops_in_pre_order() -> None:
    tree = cases()["three caches"].tree
    steps = [node.step for node, _ in walk_tree(tree.body) if isinstance(node, Loop)]
    staging = [x.size if isinstance(x, RFactor) else x.width for x in tree.staging if isinstance(x, RFactor | Pack)]
    assert tree_sizes(tree) == (*staging, *steps)


def test_paths_state_the_places_of_sizes() -> None:
    for tree in TREES:
        sizes = tree_sizes(tree)
        parts = {node: node.parts for node, _ in walk_tree(tree.body) if isinstance(node, Partition)}
        tiles = {part.tile for cut in parts.values() for part in cut}
        for path in statement_paths(tree):
            for node in path.nodes:
                if isinstance(node, LoopStep):
                    assert sizes[node.place] == node.loop.step
                else:
                    assert sizes[node.place] in tiles
                    assert [sizes[k] for k in node.tiles] == sorted((sizes[k] for k in node.tiles), reverse=True)


def test_a_wrong_number_of_sizes_is_refused() -> None:
    tree = cases()["attention"].tree
    with pytest.raises(ScheduleError, match=f"expected {len(tree_sizes(tree))} sizes, got 2"):
        with_sizes(tree, (1, 2))
