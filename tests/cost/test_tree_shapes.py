"""Trees of kernels whose sizes are symbols: shapes that are scored in one batch have the times of each alone."""

import numpy as np
import pytest
from tests.fuzz_trees.draw import random_tree
from tests.fuzz_trees.kernels import random_kernel
from tests.tile.trees import func_of

from tilewright.cost.trees.regimes import nests_regime
from tilewright.cost.trees.tree_model import TreeModel, times_at_shapes, tree_times
from tilewright.machine.shipped import machine_named
from tilewright.tile.shape_samples import ShapeSamples
from tilewright.tile.tree_sizes import tree_sizes

MACHINE = machine_named("sapphire-rapids").with_cores(2)


def models_of(seed: int) -> tuple[list[TreeModel], np.ndarray]:
    """The models of a random tree at several shapes, and some sizes of it; no models where its sizes are literal."""
    rng = np.random.default_rng(seed)
    func = func_of(random_kernel(rng))
    tree = random_tree(func, rng)
    shapes = ShapeSamples.of(func.symbols).shapes if func.symbols else ()
    models = [TreeModel.of(tree, func, MACHINE, frozenset(), shape) for shape in shapes]
    sizes = np.array(tree_sizes(tree), np.int64)
    return [x for x in models if x is not None], np.stack([sizes, sizes * 2, sizes])


@pytest.mark.parametrize("part", range(6))
def test_a_batch_of_shapes_has_the_times_of_each_alone(part: int) -> None:
    for seed in range(20 * part, 20 * (part + 1)):
        models, sizes = models_of(seed)
        if models:
            np.testing.assert_array_equal(times_at_shapes(models, sizes), [x.times(sizes) for x in models])


def test_most_shapes_share_a_batch() -> None:
    models = [models_of(seed)[0] for seed in range(40)]
    regimes = [len({nests_regime(x.shapes, MACHINE) for x in each}) for each in models]
    assert sum(regimes) < 0.75 * sum(map(len, models))


def test_trees_of_one_sketch_have_the_times_of_each_alone() -> None:
    rng = np.random.default_rng(3)
    func = func_of(random_kernel(rng))
    trees = [random_tree(func, rng) for _ in range(4)]
    assert tree_times(trees, func, MACHINE) == [tree_times([x], func, MACHINE)[0] for x in trees]
